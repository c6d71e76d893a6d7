import importlib.util
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import hydra
import pytest
import torch
import yaml
from conftest import ROOT
from torchrl.envs import EnvBase

import train
from hydrl import cli
from hydrl.config import CONFIGS, Settings
from hydrl.errors import Interrupted, UserError

NOISE = (
    "Traceback",
    "Error executing job",
    "HYDRA_FULL_ERROR",
    "Error getting",
    "full_key",
    "object_type",
    "usage:",
)
Told = Callable[..., tuple[int, str]]

# What a stranger types, and what the answer must hold: the key, the value, and what would do.
MISTAKES: dict[str, list[str]] = {
    # Keys that do not exist.
    "optim.lrr=1": ["optim.lrr=1", "did you mean optim.lr?"],
    "+optim.lrr=1": ["optim.lrr=1", "did you mean optim.lr?"],
    "++optim.lrr=1": ["optim.lrr=1", "did you mean optim.lr?"],
    "+eval.foo=1": ["eval.foo=1", "eval has every_frames, episodes, final_episodes"],
    "+foo=1": ["foo=1", "the top level has seed, run_dir, total_frames"],
    "+loss.module.clip_epsilonn=0.1": [
        "loss.module.clip_epsilonn=0.1",
        "did you mean loss.module.clip_epsilon?",
    ],
    "+loss.value_estimator.gama=0.9": [
        "loss.value_estimator.gama=0.9",
        "did you mean loss.value_estimator.gamma?",
    ],
    "+buffer.storage.max_sise=9": ["buffer.storage.max_sise=9", "buffer.storage.max_size"],
    "lr=1e-3": ["lr=1e-3", "did you mean optim.lr?"],
    "gamma=0.9": ["gamma=0.9", "did you mean loss.value_estimator.gamma?"],
    "num_envs=4": ["num_envs=4", "did you mean collector.num_envs?"],
    "optim/lr=3": ["optim/lr=3", "did you mean optim.lr?"],
    "eval.foo.bar=3": ["eval.foo.bar=3", "eval has every_frames"],
    "seed.foo=3": ["seed.foo=3", "seed has no keys of its own"],
    "optim.amsgrad=true": ["optim.amsgrad=true", "optim has lr, eps", "write +optim.amsgrad=true"],
    "optim={lrr:1}": ["optim={lrr:1}", "optim.lr"],
    "hydra.run.dirr=x": ["hydra.run.dirr=x", "did you mean hydra.run.dir?"],
    "+loss.module.gamma=0.9": ["loss.module.gamma=0.9", "set loss.value_estimator.gamma"],
    "+collector.seed=3": ["collector.seed=3", "set seed"],
    "+collector.total_frames=3": ["collector.total_frames=3", "set total_frames"],
    "+env.num_envs=3": ["env.num_envs=3", "set collector.num_envs"],
    "+schedule.T_max=3 schedule=cosine": ["schedule.T_max=3", "leave it out"],
    "+optim.lr=1": ["+optim.lr=1", "is there already; write optim.lr=1"],
    "+optim=adamw": ["+optim=adamw", "is there already; write optim=adamw"],
    # Wrong types.
    "optim.lr=abc": ["optim.lr=abc", "a number"],
    "total_frames=abc": ["total_frames=abc", "an integer"],
    "total_frames=1e6": ["total_frames=1000000.0", "an integer; write total_frames=1000000"],
    "seed=1.5": ["seed=1.5", "an integer"],
    "seed=abc total_frames=1.5": ["seed=abc", "an integer"],
    "actor.num_cells=64": ["actor.num_cells=64", "a list; write actor.num_cells=[64]"],
    "actor.num_cells=[64,abc]": ["actor.num_cells=[64, abc]", "an integer"],
    "actor.num_cells.0=abc": ["actor.num_cells=[abc, ", "an integer"],
    "eval.stop_when_solved=maybe": ["eval.stop_when_solved=maybe", "true or false"],
    "eval.solved_at=high": ["eval.solved_at=high", "a number"],
    "torch_threads=many": ["torch_threads=many", "an integer or auto"],
    "eval=3": ["eval=3", "a group of keys"],
    "transforms.normalize=null": ["transforms.normalize=null", "drop it with ~transforms.normalize"],
    "env._target_=null": ["env._target_=null", "the dotted path of a class or function"],
    "+transforms.mine.low=3": ["transforms.mine has low", "names no part"],
    # Out of range.
    "optim.lr=-1": ["optim.lr=-1", "greater than 0"],
    "optim.lr=nan": ["optim.lr=nan", "a finite number"],
    "loss.value_estimator.gamma=2": ["loss.value_estimator.gamma=2", "at most 1"],
    "collector.num_envs=0": ["collector.num_envs=0", "greater than 0"],
    "seed=-1": ["seed=-1", "at least 0"],
    "max_grad_norm=0": ["max_grad_norm=0", "greater than 0"],
    "minibatches.epochs=0": ["minibatches.epochs=0", "greater than 0"],
    "loss.module.loss_critic_type=huber": ["loss.module.loss_critic_type=huber", "l1, l2 or smooth_l1"],
    "device=tpu": ["device=tpu", "auto, cpu, cuda or cuda:N"],
    "logger=wandb logger.mode=offlin": ["logger.mode=offlin", "auto, online or offline"],
    "+transforms.step_counter.max_steps=-3": ["transforms.step_counter", "max_steps", "one"],
    # Choices that do not exist, the nearest first.
    "env=cartpol": ["env=cartpol", "try cartpole, "],
    "env=CartPole-v1": ["env=CartPole-v1", "try cartpole, ", "gym"],
    "algo=pppo": ["algo=pppo", "try ppo, "],
    "actor=tanhnormal": ["actor=tanhnormal", "try tanh_normal, "],
    "logger=wandbb": ["logger=wandbb", "try wandb, "],
    "optim=adm": ["optim=adm", "try adam, adamw"],
    "optim=1": ["optim=1", "try adam, adamw"],
    "exploration=null": ["exploration=null", "none"],
    "algo=": ["algo=", "dqn", "ppo"],
    "experiment=nosuch": ["experiment=nosuch", "dqn_intro", "quickstart"],
    "tuned=cartpole": ["tuned=cartpole", "dqn/cartpole", "none"],
    "hydra/launcher=nosuch": ["hydra/launcher/nosuch", "basic"],
    "~env": ["~env", "choose env=acrobot|"],
    # The environment.
    "env=gym": ["env.id has no value", "env.id=VALUE"],
    "env=custom": ["env._target_ has no value", "env._target_=VALUE"],
    "env=gym env.id=NoSuchEnv-v0": ["env.id=NoSuchEnv-v0", "doesn't exist"],
    "env=gym env.id=CartPol-v1": ["env.id=CartPol-v1", "Did you mean", "CartPole"],
    "env=cartpole +env.gravityy=3": ["CartPole-v1", "gravityy"],
    "env=custom env._target_=no.such.Class": [
        "env._target_=no.such.Class",
        "No module named 'no'",
        "class or function",
    ],
    "env=custom env._target_=torchrl.envs.Pendulum": [
        "env._target_=torchrl.envs.Pendulum",
        "cannot be imported",
    ],
    "env=custom env._target_=torchrl.envs": ["env._target_=torchrl.envs", "is a module", "class or function"],
    "env=custom env._target_=gymnasium.envs.classic_control.CartPoleEnv": ["CartPoleEnv", "'device'"],
    # Sizes that do not fit each other.
    "collector.frames_per_batch=1000 collector.num_envs=3": [
        "collector.frames_per_batch=1000",
        "collector.num_envs=3",
        "use collector.frames_per_batch=999 or 1002",
    ],
    "collector=multi_sync collector.num_workers=3 collector.num_envs=4 collector.frames_per_batch=1000": [
        "collector.frames_per_batch=1000",
        "collector.num_workers=3",
        "use collector.frames_per_batch=996 or 1008",
    ],
    "minibatches.size=5000 collector.frames_per_batch=64": [
        "minibatches.size=5000",
        "collector.frames_per_batch=64; use 64 or fewer",
    ],
    "algo=dqn env=cartpole minibatches.size=500 buffer.storage.max_size=100": [
        "minibatches.size=500",
        "buffer.storage.max_size=100; use 100 or fewer",
    ],
    "algo=dqn env=cartpole minibatches.warmup_frames=5000 buffer.storage.max_size=1000": [
        "minibatches.warmup_frames=5000",
        "use 1000 or fewer",
    ],
    "algo=dqn env=cartpole exploration.eps_end=0.9 exploration.eps_init=0.5": [
        "exploration.eps_end=0.9",
        "exploration.eps_init=0.5",
        "use exploration.eps_end=0.5 or less",
    ],
    "buffer.storage.max_size=8 minibatches.size=4": [
        "buffer.storage.max_size=8",
        "use buffer.storage.max_size=",
    ],
    # Parts that do not fit each other.
    "algo=dqn env=pendulum": ["algo=dqn", "env=pendulum", "continuous", "use algo=ppo"],
    "algo=ppo actor=tanh_normal env=cartpole": ["actor=tanh_normal", "env=cartpole", "actor=categorical"],
    "algo=ppo actor=categorical env=pendulum": ["actor=categorical", "env=pendulum", "actor=tanh_normal"],
    "algo=dqn env=cartpole actor=categorical": [
        "actor=categorical",
        "algo=dqn",
        "use actor=q_value or actor=dueling",
    ],
    "algo=ppo env=cartpole actor=q_value": ["actor=q_value", "algo=ppo", "use actor=stochastic"],
    "algo=ppo critic=none": ["critic=none", "algo=ppo", "use critic=state_value"],
    "algo=ppo loss=dqn": ["loss=dqn", "algo=ppo", "use loss=clip_ppo"],
    "algo=ppo buffer=replay": ["buffer=replay", "algo=ppo", "use buffer=rollout"],
    "algo=ppo exploration=e_greedy": ["exploration=e_greedy", "algo=ppo", "use exploration=none"],
    "algo=ppo target=soft": ["target=soft", "algo=ppo", "use target=none"],
    "algo=dqn env=cartpole loss.module.delay_value=false": [
        "loss.module.double_dqn=true",
        "delay_value=true",
    ],
    "collector=multi_sync transforms=running_norm": ["transforms=running_norm", "use collector=single"],
    "actor.activation=Foo": ["actor.activation=Foo", "try Tanh, ReLU"],
    "critic.activation=relu": ["critic.activation=relu", "ReLU"],
    # Deleting.
    "~transforms.normalise": ["~transforms.normalise", "did you mean transforms.normalize?"],
    "~transforms.nosuch": ["~transforms.nosuch", "transforms has normalize, double_to_float"],
    "~seed": ["seed is missing"],
    "~total_frames": ["total_frames is missing"],
    "~eval.episodes": ["eval.episodes is missing"],
    "~minibatches.size": ["minibatches.size is missing", "give +minibatches.size=VALUE"],
    "~collector.num_envs": ["collector.num_envs is missing", "+collector.num_envs=VALUE"],
    # The command line itself.
    "optim.lr": ["optim.lr", "write optim.lr=VALUE"],
    "=3": ["cannot read =3", "KEY=3"],
    "algo = dqn": ["cannot read algo", "algo=VALUE", "without blanks"],
    "actor.num_cells[0]=3": ["actor.num_cells[0]=3", "key=value"],
    "actor.num_cells.7=3": ["actor.num_cells.7=3", "out of range"],
    "actor.num_cells=64,64": ["actor.num_cells=64,64", "write actor.num_cells=[64,64] for a list"],
    "seed=1,2": ["seed=1,2", "add -m to run them all"],
    "seed=range(1,3)": ["seed=range(1,3)", "add -m"],
    "total_frames=${frames}": ["frames is missing", "total_frames"],
    "total_frames=???": ["total_frames has no value", "total_frames=VALUE"],
    "--lr 3": ["--lr", "write key=value"],
    "--algo=dqn": ["--algo=dqn", "write key=value"],
    "--cfg jb": ["--cfg", "'jb'", "'job'"],
    "algo=ppo -m seed=1,2": ["seed=1,2", "options such as -m before the first"],
    "hydra.run.dir=/proc/nope": ["/proc/nope cannot be written", "hydra.run.dir=DIR"],
}


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command line in this process; gives the exit code and all that was printed."""
    main = hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")(
        train.main.__wrapped__
    )
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # put back what cli.run sets

    def call(line: str) -> tuple[int, str]:
        arguments = line.split()
        if "hydra.run.dir" not in line:
            arguments += [f"hydra.run.dir={tmp_path / 'run'}"]
        if "-m" in arguments:
            arguments += [f"hydra.sweep.dir={tmp_path / 'sweep'}"]
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        code = cli.run(main, CONFIGS)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return call


@pytest.fixture
def canary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever resets an environment fails."""

    def reset(*args: object, **kwargs: object) -> None:
        raise AssertionError("an environment was reset")

    monkeypatch.setattr(EnvBase, "reset", reset)


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> list[Settings]:
    """Collects what would be trained with."""
    seen: list[Settings] = []
    monkeypatch.setattr(train, "train", seen.append)
    return seen


def assert_short(output: str) -> None:
    assert 1 <= len(output.strip().splitlines()) <= 2, output
    assert output.startswith("error: "), output
    assert not [noise for noise in NOISE if noise in output], output


@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_in_a_line_before_any_environment_starts(line: str, told: Told):
    code, output = told(line)
    assert code == 2, output
    assert_short(output)
    assert not [each for each in MISTAKES[line] if each not in output], output


def test_the_table_of_mistakes_is_long():
    assert len(MISTAKES) >= 30


@pytest.mark.usefixtures("canary")
def test_cuda_is_refused_where_there_is_none(told: Told, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    code, output = told("device=cuda")
    assert code == 2
    assert_short(output)
    assert "device=cuda" in output
    assert "use device=cpu or device=auto" in output


@pytest.mark.usefixtures("canary")
def test_a_logger_whose_package_is_missing_is_refused_before_the_environment(told: Told, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == "tensorboard" else find_spec(name, *rest),
    )
    code, output = told("logger=tensorboard")
    assert code == 2
    assert_short(output)
    assert "logger=tensorboard" in output
    assert "pip install -e '.[tensorboard]'" in output


@pytest.mark.usefixtures("canary")
def test_an_environment_whose_package_is_missing_is_refused(told: Told, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    code, output = told("env=gym env.id=LunarLander-v3")
    assert code == 2
    assert_short(output)
    assert "env.id=LunarLander-v3" in output
    assert "gymnasium[box2d]" in output


def test_a_run_folder_that_is_a_file_is_refused(told: Told, tmp_path: Path):
    (tmp_path / "notes.txt").touch()
    code, output = told(f"hydra.run.dir={tmp_path / 'notes.txt'}")
    assert code == 2
    assert_short(output)
    assert f"{tmp_path / 'notes.txt'} cannot be written: File exists" in output


def test_a_key_pytorch_has_a_default_for_may_be_left_out(told: Told, trained: list[Settings]):
    assert told("~optim.lr") == (0, "")
    assert "lr" not in trained[0].optim


def test_an_argument_the_yaml_does_not_list_can_be_added(told: Told, trained: list[Settings]):
    assert told("+optim.amsgrad=true optim.lr=2e-4") == (0, "")
    assert trained[0].optim["amsgrad"] is True
    assert trained[0].optim["lr"] == 2e-4


def test_the_configuration_can_be_printed(told: Told, trained: list[Settings]):
    code, output = told("--cfg job algo=dqn env=cartpole optim.lr=2e-4")
    assert code == 0
    assert yaml.safe_load(output)["optim"]["lr"] == 2e-4
    assert not trained


def test_a_sweep_goes_on_after_a_mistake(told: Told, trained: list[Settings]):
    code, output = told("-m seed=0,-1,2")
    assert code == 2
    assert [each.seed for each in trained] == [0, 2]
    assert_short(output)
    assert "seed=-1" in output


def test_a_sweep_takes_the_tuned_numbers_of_each_member(told: Told, trained: list[Settings]):
    assert told("-m algo=ppo env=inverted_double_pendulum,hopper") == (0, "")
    tuned = yaml.safe_load((CONFIGS / "tuned/ppo/inverted_double_pendulum.yaml").read_text())
    default = yaml.safe_load((CONFIGS / "train.yaml").read_text())
    assert [each.total_frames for each in trained] == [tuned["total_frames"], default["total_frames"]]
    assert ["reward_scaling" in each.transforms for each in trained] == [True, False]


def test_a_wrong_choice_in_a_sweep_stops_it_before_it_starts(told: Told, trained: list[Settings]):
    code, output = told("-m optim=adam,adamm")
    assert code == 2
    assert_short(output)
    assert "optim=adamm" in output
    assert not trained


def test_each_kind_of_end_has_its_exit_code(told: Told, monkeypatch: pytest.MonkeyPatch):
    def ends_with(error: BaseException | None) -> tuple[int, str]:
        def end(settings: Settings) -> None:
            if error:
                raise error

        monkeypatch.setattr(train, "train", end)
        return told("")

    code, output = ends_with(RuntimeError("a defect"))
    assert code == 1
    assert "Traceback" in output
    assert "a defect" in output
    assert ends_with(UserError("a mistake")) == (2, "error: a mistake\n")
    assert ends_with(Interrupted(15)) == (143, "")
    assert ends_with(KeyboardInterrupt()) == (130, "")
    assert ends_with(None) == (0, "")


def test_a_defect_weighs_more_than_a_mistake_in_a_sweep(told: Told, monkeypatch: pytest.MonkeyPatch):
    def end(settings: Settings) -> None:
        raise RuntimeError("a defect") if settings.seed == 1 else UserError("a mistake")

    monkeypatch.setattr(train, "train", end)
    code, output = told("-m seed=0,1,2")
    assert code == 1
    assert output.count("error: a mistake") == 2


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ("optim.lrr=1", 10),
        ("env=cartpol", 10),
        ("total_frames=1e6", 10),
        ("algo=ppo actor.activation=Foo", 10),  # asks PyTorch, so it waits for the import
    ],
)
def test_a_real_command_line_answers_soon(line: str, seconds: float, tmp_path: Path):
    command = [sys.executable, "train.py", *line.split(), f"hydra.run.dir={tmp_path}"]
    started = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert time.monotonic() - started < seconds
    assert done.returncode == 2
    assert done.stdout == ""
    assert_short(done.stderr)
    assert re.search(line.split()[-1].partition("=")[0], done.stderr)
