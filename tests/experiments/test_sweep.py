"""Sweeps: what is told of their members, and that every member ends as it should."""

import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from ray.exceptions import ActorDiedError

import train
from hydra_plugins.hydrl_launcher import combinations
from hydrl.config import command_line
from hydrl.contrib.ray import cluster, launcher
from hydrl.errors import UserError
from hydrl.experiments import member_checks, processes
from hydrl.experiments.sweep import COMMON_FILE, MAX_NAME, folder_name
from tests.conftest import HANGING, check_envs_in_child, typed

TINY = ["-m", "debug=fast", "tuned=none", "algo=ppo", "env=cartpole", "minibatches.epochs=1"]
TINY += ["checkpoint_every_frames=256", "compile=false"]
# Takes the place of train.py: it notes its command line and ends as a member of its seed does.
MEMBER = """
import json, os, signal, sys
from pathlib import Path

words = dict(word.partition("=")[::2] for word in sys.argv[1:])
folder = Path(words["hydra.run.dir"].strip("'"))
folder.mkdir(exist_ok=True)
with (folder.parent / "begun").open("a") as begun:
    print(*sys.argv[1:], file=begun)
seed = int(words["seed"])
if seed == 1:
    print("error: seed=1 is refused", file=sys.stderr)
    sys.exit(2)
if seed == 2:
    print("error: loss_actor is nan", file=sys.stderr)
    sys.exit(3)
if seed == 3:
    raise RuntimeError("a defect")
if seed == 4:
    os.kill(os.getpid(), signal.SIGKILL)
if seed == 5:
    os.kill(os.getppid(), signal.SIGTERM)  # as a scheduler stops the sweep
    signal.pause()
print("trained", seed)
summary = {"frames": 2048, "wall_seconds": 12.3, "eval/return_mean": 497.25, "eval/return_std": 3.5}
summary |= {"solved_at_frames": 1024, "solved_at_seconds": 7.4}
(folder / "summary.json").write_text(json.dumps(summary))
"""
SCORES = ["2,048", "497.2 ± 3.5", "1,024 frames, 7 s", "12"]
NONE = [""] * 4


@pytest.fixture
def swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[[str], tuple[int, list[list[str]], str]]:
    """Runs a sweep of ``MEMBER``; gives exit code, the table and all that was printed."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # put back what command_line.run sets
    monkeypatch.setattr(processes, "TRAIN_SCRIPT", tmp_path / "member.py")
    processes.TRAIN_SCRIPT.write_text(MEMBER)

    def call(line: str) -> tuple[int, list[list[str]], str]:
        monkeypatch.setattr(sys, "argv", ["train.py", *line.split(), f"hydra.sweep.dir={tmp_path / 'sweep'}"])
        code = command_line.run(train.main)
        printed = capfd.readouterr()
        return code, rows(printed.out), printed.out + printed.err

    return call


def rows(output: str) -> list[list[str]]:
    """The cells of the last table, by row, those over several lines put together."""
    table = output[output.rindex("┏") :] if "┏" in output else ""
    lists: list[list[str]] = []
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.split("│")[1:-1]]
        if cells and cells[0]:
            lists.append(cells)
        elif cells:
            lists[-1] = [f"{above} {below}".strip() for above, below in zip(lists[-1], cells, strict=True)]
    return lists


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["env=cartpole", "seed=3", "algo=ppo"], "ppo-cartpole-seed3"),
        (["algo=ppo", "resume=auto", "trust=true", "logger=wandb", "logger.wandb.project=x"], "ppo"),
        (["optim.lr=1e-3", "+env.max_episode_steps=50"], "env.max_episode_steps_50-optim.lr_1e-3"),
        (["actor.num_cells=[64,64]", "~transforms.normalize"], "actor.num_cells_64_64-transforms.normalize"),
        (["env=gym", "env.id='ALE/Pong v5'"], "gym-env.id_ALE_Pong_v5"),
        (["+env.login=${oc.env:NAME}"], "env.login_oc.env_NAME"),
        # As they were named when sizes had their cell's name.
        (["algo=ppo", "rnn=gru", "rnn.hidden_size=32"], "ppo-memory_gru-memory.gru_32"),
        (["algo=ppo", "rnn=lstm", "rnn.hidden_size=32"], "ppo-memory_lstm-memory.lstm_32"),
        ([], "default"),
    ],
)
def test_a_member_s_folder_is_named_by_its_overrides(overrides: list[str], name: str):
    assert folder_name(overrides) == name
    typed = OverridesParser.create().parse_override(f"hydra.run.dir=outputs/{name}")
    assert typed.value() == f"outputs/{name}"  # without quotes


def test_a_long_name_is_cut_and_still_its_own():
    one, other = (folder_name([*(f"a.key{k}={k}" for k in range(40)), f"seed={s}"]) for s in (0, 1))
    assert len(one) == len(other) == MAX_NAME
    assert one != other


ALL = ["total_frames=5000", "tuned=none"]


@pytest.mark.parametrize(
    ("overrides", "name"),
    [
        (["env=cartpole", "seed=3", "algo=ppo", *ALL], "ppo-cartpole-seed3"),
        (["seed=3", "algo=ppo", *ALL, "optim.lr=1", "resume=auto"], "ppo-optim.lr_1-seed3"),
        (["algo=ppo", "seed=3", "total_frames=9000", "tuned=none"], "ppo-total_frames_9000-tuned_none-seed3"),
        (["algo=ppo", "seed=3", "tuned=none"], "ppo-total_frames_default-tuned_none-seed3"),
        (["algo=ppo", "seed=3"], "ppo-total_frames_default-tuned_default-seed3"),
    ],
)
def test_a_name_leaves_out_what_its_sweep_says_of_all_and_is_no_other_member_s(overrides, name):
    assert folder_name(overrides, ALL) == name


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_sweep_with_new_words_finds_the_folders_of_one_with_old_words(cell):
    old = ["algo=recurrent_ppo", f"memory={cell}", f"memory.{cell}=16", "eval.solved_at=100", "seed=1"]
    new = ["algo=recurrent_ppo", f"rnn={cell}", "rnn.hidden_size=16", "eval.reward_threshold=100", "seed=1"]
    name = f"recurrent_ppo-eval.solved_at_100-memory_{cell}-memory.{cell}_16-seed1"
    assert folder_name(old) == folder_name(new) == name
    assert folder_name(new, old[3:4]) == folder_name(old, new[3:4]) == name.replace("-eval.solved_at_100", "")


class FakeRay(SimpleNamespace):
    """In place of Ray: actors are objects of this process, and what is asked of them threads."""

    def __init__(self) -> None:
        node = {"NodeID": "a" * 56, "Alive": True, "Resources": {"CPU": 2.0}}
        context = SimpleNamespace(get_node_id=lambda: node["NodeID"])
        address = SimpleNamespace(get_node_ip_address=lambda: "10.0.0.1")
        super().__init__(node=node, nodes=lambda: [node], get_runtime_context=lambda: context, util=address)
        self.pool, self.options, self.killed, self.ended = ThreadPoolExecutor(), dict[str, Any](), 0, 0

    def remote(self, **options: Any) -> Any:
        self.options = options
        return lambda kind: SimpleNamespace(remote=lambda *arguments: self.actor(kind(*arguments)))

    def actor(self, instance: Any) -> Any:
        def asks(name: str) -> Any:
            def begin() -> Any:
                answer = self.pool.submit(getattr(instance, name))
                return SimpleNamespace(future=lambda: answer)

            return SimpleNamespace(remote=begin)

        return SimpleNamespace(**{name: asks(name) for name in ("place", "wait", "stop")})

    def kill(self, actor: Any) -> None:
        self.killed += 1

    def shutdown(self) -> None:
        self.ended += 1


@pytest.fixture
def fake_ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    fake = FakeRay()
    for module in (launcher, cluster):
        monkeypatch.setattr(module, "ray", fake)
    monkeypatch.setattr(launcher, "join_cluster", lambda *arguments: vars(fake).update(arguments=arguments))
    monkeypatch.setenv("PYTHONPATH", os.environ.get("PYTHONPATH", ""))  # a member puts it there
    return fake


@pytest.mark.parametrize(
    "jobs",
    [
        pytest.param("hydra.launcher.n_jobs=1", marks=pytest.mark.slow),  # members side by side are harder
        "hydra.launcher.n_jobs=2",
        "hydra/launcher=ray_processes",
    ],
)
def test_the_table_says_what_became_of_each_member(jobs: str, swept, tmp_path, fake_ray):
    code, table, output = swept(f"-m algo=dqn env=cartpole seed=0,1,2,3,4,6 {jobs}")
    assert code == 1
    assert f"{tmp_path / 'sweep'}: 2 of 6 finished" in output
    assert "algo=dqn env=cartpole" in output
    assert table == [
        ["0", "seed=0", "finished", *SCORES, "dqn-cartpole-seed0"],
        ["1", "seed=1", "refused", *NONE, "seed=1 is refused"],
        ["2", "seed=2", "diverged", *NONE, "loss_actor is nan"],
        ["3", "seed=3", "failed", *NONE, "RuntimeError: a defect"],
        ["4", "seed=4", "failed", *NONE, "killed by SIGKILL"],
        ["5", "seed=6", "finished", *SCORES, "dqn-cartpole-seed6"],
    ]
    assert "resume=auto" not in output  # all have ended
    assert "#0 starts: seed=0\n" in output
    assert "#1 refused: seed=1 is refused\n" in output
    assert "Traceback" not in output
    # One at a time print where the sweep does, but their errors.
    log = tmp_path / "sweep" / "dqn-cartpole-seed0.log"
    alone = jobs == "hydra.launcher.n_jobs=1"
    assert log.read_text() == ("" if alone else "trained 0\n")
    assert ("\ntrained 0\n" in output) == alone
    assert "a defect" in (tmp_path / "sweep" / "dqn-cartpole-seed3.log").read_text()


@pytest.mark.parametrize(("seeds", "code"), [("0,6", 0), ("2,0", 3), ("1,2", 2), ("2,4", 1)])
def test_the_worst_end_is_the_exit_code(seeds: str, code: int, swept):
    assert swept(f"-m seed={seeds}")[0] == code


def test_a_member_takes_what_the_sweep_was_told_of_hydra_and_where_configs_are(swept, tmp_path):
    (tmp_path / "more" / "env").mkdir(parents=True)
    line = f"--config-dir {tmp_path / 'more'} -m seed=0 +hydra.job.env_set.X=1 hydra.launcher.n_jobs=2"
    assert swept(f"{line} ~tuned optim.lr=1e-3,2e-3")[0] == 0
    common = f"--config-dir={tmp_path / 'more'} +hydra.job.env_set.X=1 seed=0 ~tuned=null"
    place = f"hydra.run.dir='{tmp_path / 'sweep'}/optim.lr"  # ~tuned is all members' own
    assert (tmp_path / "sweep" / "begun").read_text().splitlines() == [
        f"{common} optim.lr={lr} {place}_{lr}-seed0'" for lr in ("0.001", "0.002")
    ]


def test_other_lists_find_the_members_again_and_mix_none(swept, tmp_path):
    def folders(line: str) -> list[str]:
        code, table, _ = swept(line)
        assert code == 0
        return [row[-1].replace(" ", "") for row in table]  # a narrow table folds them

    first = folders("-m algo=ppo,dqn env=cartpole seed=0 total_frames=5000 log_every_frames=9")
    assert first == ["ppo-cartpole-seed0", "dqn-cartpole-seed0"]
    assert (tmp_path / "sweep" / COMMON_FILE).read_text() == "total_frames=5000\n"
    assert folders("-m algo=ppo env=cartpole seed=0,6 total_frames=5000 resume=auto") == [
        "ppo-cartpole-seed0",
        "ppo-cartpole-seed6",
    ]
    again = folders("-m algo=ppo env=cartpole seed=0 total_frames=5000,9000 trust=true")
    assert again == ["ppo-cartpole-seed0", "ppo-cartpole-total_frames_9000-seed0"]
    assert folders("-m algo=ppo env=cartpole seed=0") == ["ppo-cartpole-total_frames_default-seed0"]


def test_a_sweep_of_before_is_gone_on_with_by_the_names_it_has(swept, tmp_path):
    old = "ppo-cartpole-total_frames_5000-seed0"
    (tmp_path / "sweep" / old).mkdir(parents=True)
    _, table, _ = swept("-m algo=ppo env=cartpole seed=0,6 total_frames=5000 resume=auto")
    assert [row[-1].replace(" ", "") for row in table] == [old, "ppo-cartpole-total_frames_5000-seed6"]


def test_members_find_tuned_numbers_themselves_and_keys_of_the_parts_these_choose_may_be_swept(
    swept, tmp_path
):
    assert swept("-m algo=dqn env=acrobot seed=0 schedule.power=0,1")[0] == 0
    assert (tmp_path / "sweep" / "begun").read_text().splitlines() == [
        f"algo=dqn env=acrobot seed=0 schedule.power={power} "
        f"hydra.run.dir='{tmp_path}/sweep/dqn-acrobot-schedule.power_{power}-seed0'"
        for power in (0, 1)
    ]
    code, _, output = swept("-m algo=dqn env=acrobot,cartpole seed=0 schedule.power=0")
    assert code == 2  # CartPole's tuned numbers choose no schedule
    assert output.startswith("error: schedule.power=0: no such key")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("optim.lrr=1", "optim.lrr=1: no such key. Write optim.lr=1."),
        ("optim=adam,adamm", "optim=adamm: no such option"),
        ("hydra.launcher.n_jobs=0", "hydra.launcher.n_jobs=0: give a whole number, 1 or more"),
        ("hydra.launcher.n_job=2", "hydra.launcher.n_job=2: no such key. Write"),
        (
            "hydra/launcher=ray_processes hydra.launcher.n_jobs=0.5",
            "hydra.launcher.n_jobs=0.5: should be an integer",
        ),
        (
            "hydra/launcher=ray_processes hydra.launcher.num_cpus=0",
            "hydra.launcher.num_cpus=0: should be greater than 0",
        ),
        (
            "hydra/launcher=ray_processes hydra.launcher.num_gpus=-1",
            "hydra.launcher.num_gpus=-1: should be greater",
        ),
        (
            "hydra/launcher=ray_processes hydra.launcher.address=ray://head:10001",
            "hydra.launcher.address=ray://head:10001: should be HOST:PORT of a Ray cluster",
        ),
    ],
)
def test_what_hydra_can_see_is_answered_before_any_member_begins(words: str, answer: str, swept, tmp_path):
    code, table, output = swept(f"-m seed=0,1 {words}")
    assert (code, table) == (2, [])
    assert output.startswith(f"error: {answer}")
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "sweep" / "begun").exists()
    if "hydra.launcher" in answer:  # it is refused before Hydra writes
        assert not (tmp_path / "sweep").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "algo=dqn,ppo env=pendulum seed=0",
            "algo=dqn: acts in discrete action spaces, and env=pendulum has",
        ),
        ("algo=ppo,dqn env=cartpole loss=dqn seed=0", "loss=dqn: does not go with algo=ppo"),
        ("algo=ppo optim.lr=1e-3,-1 seed=0", "optim.lr=-1: should be greater than"),
    ],
)
def test_a_sweep_with_a_wrong_member_is_refused_before_the_first_starts(
    words: str, message: str, swept, tmp_path, monkeypatch
):
    monkeypatch.setattr(member_checks, "check_envs_in_child", check_envs_in_child)
    code, table, output = swept(f"-m {words}")
    assert (code, table) == (2, [])
    assert output.startswith(f"error: {message}")
    assert len(output.splitlines()) == 1
    assert not (tmp_path / "sweep").exists()


def test_each_wrong_member_of_a_sweep_is_named(swept, tmp_path):
    _, _, output = swept("-m algo=dqn,sac env=cartpole,pendulum seed=0")
    first, *lines = output.splitlines()
    assert first == "error: 2 mistakes:"
    assert [line.partition(":")[0] for line in lines] == ["  algo=dqn", "  algo=sac"]


def test_an_interrupted_sweep_begins_no_further_member_and_says_how_to_go_on(swept, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    code, table, output = swept("-m seed=0,5,6,7")
    assert code == 143
    assert [row[2] for row in table] == ["finished", "interrupted"]
    assert f"{tmp_path / 'sweep'}: 1 of 4 finished, 2 not started" in " ".join(output.split())
    assert f"hydra.sweep.dir={tmp_path / 'sweep'} resume=auto" in output
    assert signal.getsignal(signal.SIGTERM) is before


def test_ray_finds_members_a_machine_by_what_each_needs(swept, fake_ray):
    assert (
        swept(
            "-m seed=0,6 hydra/launcher=ray_processes hydra.launcher.num_cpus=2 hydra.launcher.address=h:1"
        )[0]
        == 0
    )
    assert fake_ray.arguments[:3] == ("hydra.launcher.address", "h:1", None)
    assert fake_ray.options == {"max_concurrency": 2, "num_cpus": 2, "num_gpus": 0}
    assert (fake_ray.killed, fake_ray.ended) == (2, 1)  # a member that has ended makes room
    words = "hydra.launcher.n_jobs=3 hydra.launcher.num_cpus=0.5 hydra.sweeper.max_batch_size=1"
    assert swept(f"-m seed=0,6 hydra/launcher=ray_processes {words}")[0] == 0  # a cluster for each batch
    assert fake_ray.arguments[1:3] == (None, {"CPU": 1.5, "GPU": 0})
    code, table, output = swept("-m seed=0 hydra/launcher=ray_processes hydra.launcher.num_gpus=1")
    assert (code, table) == (2, [])
    message = "hydra.launcher.num_cpus=1, hydra.launcher.num_gpus=1: more than any machine of the cluster has"
    assert f"error: {message}.\n" in output
    assert fake_ray.ended == 4


def test_a_sweep_on_ray_is_interrupted_as_any_other(swept, tmp_path, fake_ray):
    code, table, output = swept("-m seed=5,6,7,8 hydra/launcher=ray_processes hydra.launcher.n_jobs=1")
    assert code == 143
    assert [row[2] for row in table] == ["interrupted"]
    assert f"hydra.sweep.dir={tmp_path / 'sweep'} resume=auto" in output


def test_a_machine_that_is_lost_ends_its_members_alone(swept, fake_ray):
    ended = fake_ray.actor

    def lost(instance: Any) -> Any:
        if instance.run.folder.name.endswith("seed0"):
            instance.wait = raises(ActorDiedError())
            fake_ray.node["Alive"] = False
        return ended(instance)

    fake_ray.actor = lost
    code, table, _ = swept("-m seed=0,6 hydra/launcher=ray_processes")
    assert code == 1
    assert [row[2] for row in table] == ["failed", "finished"]
    assert table[0][-1] == f"node {'a' * 8} at 10.0.0.1 is gone"


def raises(error: Exception) -> Callable[[], Any]:
    def call() -> Any:
        raise error

    return call


def test_ctrl_c_lets_all_members_save_and_another_list_goes_on_with_them(tmp_path, monkeypatch):
    place = [f"hydra.sweep.dir={tmp_path}", "hydra.launcher.n_jobs=2"]
    folder = "ppo-cartpole-seed{}"
    running, members = [tmp_path / folder.format(seed) for seed in (0, 1)], []

    def stop() -> None:
        deadline = time.monotonic() + HANGING
        while not all(list(folder.glob("checkpoints/checkpoint-*")) for folder in running):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        for child in psutil.Process().children():
            if str(tmp_path) in str(child.cmdline()):
                members.extend([child, *child.children(recursive=True)])
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # the same one, as it reaches process and group

    stopping = threading.Thread(target=stop)

    # While the sweep waits for what may come of the same Ctrl-C it comes, however slow the machine is.
    def pause(seconds):
        return stopping.join() if seconds == processes.SIGNAL_REPEAT_SECONDS else time.sleep(seconds)

    monkeypatch.setattr(processes, "time", SimpleNamespace(sleep=pause))
    stopping.start()
    begun = typed(*TINY, "seed=0,1,2", "total_frames=1_000_000", *place)  # its members are processes
    stopping.join()
    output = begun.stdout + begun.stderr
    assert begun.returncode == 130, output
    assert len(members) >= 2
    assert not psutil.wait_procs(members, timeout=HANGING)[1]
    assert "Traceback" not in output
    assert [row[1:3] for row in rows(output)] == [["seed=0", "interrupted"], ["seed=1", "interrupted"]]
    frames = [json.loads((folder / "summary.json").read_text())["frames"] for folder in running]
    assert min(frames) >= 256


def test_members_are_all_combinations_and_continuous_ranges_are_refused():
    parse = OverridesParser.create().parse_overrides
    assert combinations(parse(["seed=0,1", "algo=ppo", "optim.lr=choice(1e-3,1e-4)"])) == [
        ["seed=0", "algo=ppo", "optim.lr=0.001"],
        ["seed=0", "algo=ppo", "optim.lr=0.0001"],
        ["seed=1", "algo=ppo", "optim.lr=0.001"],
        ["seed=1", "algo=ppo", "optim.lr=0.0001"],
    ]
    line = re.escape("optim.lr=interval(0,1): is a range. Write the values, as optim.lr=VALUE,VALUE.")
    with pytest.raises(UserError, match=line):
        combinations(parse(["optim.lr=interval(0,1)"]))
