import errno
import importlib.util
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import hydra
import pytest
import torch
import yaml
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict
from torchrl.envs import EnvBase

import hydrl
import train
from hydrl.config import CONFIGS, command_line, hydra_errors, tuned, user_dirs
from hydrl.config.command_line import read_arguments
from hydrl.config.migrations import new_words
from hydrl.config.overrides import key_of, parse_value, quote_paths, words_to_repeat
from hydrl.config.settings import Settings
from hydrl.config.tree import option_names
from hydrl.errors import DivergedError, Interrupted, UserError
from hydrl.run.checkpoint import resume_command
from tests.conftest import ROOT, composed, settings
from tests.fakes.user_mistakes import MISTAKES

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
# Mistakes told through all of Hydra: one of each kind that it finds or that follows its composing, and those
# with options, several values or words of Hydra's; the others are told from what is composed once.
WITH_HYDRA = [
    "optim.lrr=1", "+optim.lr=1", "environment=cartpole", "encoder=resnet", "env=cartpol", "algo=", "env=gym",
    "env=[cartpole,pendulum]", "experiment=nosuch", "+algo=dqn", "~transforms.normalise", "~seed", "eval=[]",
    "optim.lr", "optim.lr=abc", "optim.lr=-1", "actor.num_cells.7=3", "total_frames=${frames}",
    "total_frames=???", "env=gym env.id=NoSuchEnv-v0", "algo=dqn env=pendulum", "algo=ppo loss=dqn",
]  # fmt: skip
OF_HYDRA = re.compile(r"(^| )-|hydra|=(\w+,)+\w+|range\(")

main = hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")(train.main.__wrapped__)


def main_of_what_is_composed_once() -> None:
    """In place of Hydra's, whose parser of options, folders and composing anew take most of the time."""
    *words, run_dir = sys.argv[1:]
    cfg = composed(*words, hydra=True)
    cfg.hydra.runtime.output_dir = run_dir.removeprefix("hydra.run.dir=")
    HydraConfig.instance().set_config(cfg)
    with open_dict(cfg):
        del cfg["hydra"]
    train.main.__wrapped__(cfg)


def composed_once(words: list[str], **options: object) -> DictConfig:
    """In place of composing anew."""
    return composed(*words, hydra="return_hydra_config" in options)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Told:
    """Runs a command line in this process; gives the exit code and all that was printed."""
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # put back what command_line.run sets
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)  # and what Hydra does
    monkeypatch.setattr(sys, "path", [*sys.path])

    def call(line: str, main: Callable[[], None] = main) -> tuple[int, str]:
        arguments = line.split()
        if "hydra.run.dir" not in line and "resume=" not in line:
            arguments += [f"hydra.run.dir={tmp_path / 'run'}"]
        if "-m" in arguments:
            arguments += [f"hydra.sweep.dir={tmp_path / 'sweep'}"]
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        code = command_line.run(main, resume_command.expand)
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
    monkeypatch.setattr(train, "train", lambda settings, *_: seen.append(settings))
    return seen


def command_to_resume(chosen: Settings) -> str:
    """What is printed where a run is stopped, with DIR in place of its folder."""
    command = resume_command.resume_command(Path(chosen.run_dir), chosen.needs_trust)
    return command.replace(chosen.run_dir, "DIR")


def assert_short(output: str) -> None:
    assert 1 <= len(output.strip().splitlines()) <= 2, output
    assert output.startswith("error: "), output
    assert not [noise for noise in NOISE if noise in output], output


@pytest.fixture
def no_families(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gymnasium as it is where no task of Atari's or MinAtar's was made in this process."""
    registry = gymnasium.registry
    for each in [id for id in registry if id.startswith(("ALE/", "MinAtar/", "MiniGrid-", "BabyAI-"))]:
        monkeypatch.delitem(registry, each)


@pytest.mark.usefixtures("canary", "no_families")
@pytest.mark.parametrize("line", MISTAKES)
def test_a_mistake_is_told_in_a_line_before_any_environment_starts(line: str, told: Told, monkeypatch):
    if line in WITH_HYDRA or OF_HYDRA.search(line):
        code, output = told(line)
    else:
        monkeypatch.setattr(tuned, "find_added_words", lambda _: [])  # which composing adds
        monkeypatch.setattr(tuned, "compose_run", composed_once)
        code, output = told(line, main_of_what_is_composed_once)
    assert code == 2, output
    assert_short(output)
    assert not [each for each in MISTAKES[line] if each not in output], output


def test_all_unknown_keys_and_wrong_values_are_named_at_once(told: Told):
    line = (
        "optim.lrr=1 seed=abc total_frames=1.5 +eval.foo=2 loss.value_estimator.gamma=2 +optim.nestrov=true"
    )
    code, output = told(line)
    assert code == 2
    first, *others = output.splitlines()
    assert first == "error: 6 mistakes:"
    assert [other.partition(": ")[0].strip() for other in others] == [
        word.lstrip("+") for word in line.split()
    ]
    assert others[0] == "  optim.lrr=1: no such key. Write optim.lr=1."


def test_a_module_s_near_names_are_suggested(told: Told):
    line = "--config-dir=docs/my_project/conf algo=my_ppo env=line actor._target_=my_nets.actr"
    assert told(line)[1].endswith(". Write actor._target_=my_nets.actor.\n")


def test_a_module_in_the_working_folder_is_named(told: Told, tmp_path: Path, monkeypatch):
    (tmp_path / "lying_here.py").write_text("def actor(): ...")
    monkeypatch.chdir(tmp_path)
    advice = ". Start with PYTHONPATH=. and write actor._target_=lying_here.actor.\n"
    assert told("env=cartpole actor._target_=lying_here.actor")[1].endswith(advice)


def test_the_version_is_its_own(told: Told):
    assert told("--version") == (0, f"hydrl {hydrl.__version__}\n")


def test_the_table_of_mistakes_is_long_and_each_kind_is_told_through_hydra():
    assert len(MISTAKES) >= 200
    assert set(WITH_HYDRA) <= MISTAKES.keys()
    assert 20 <= sum(map(bool, map(OF_HYDRA.search, MISTAKES))) <= 40


@pytest.mark.usefixtures("canary")
def test_cuda_is_refused_where_there_is_none(told: Told, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    code, output = told("device=cuda")
    assert code == 2
    assert_short(output)
    assert "device=cuda" in output
    assert "Use device=cpu or device=auto." in output


@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize(
    ("line", "package"),
    [
        ("logger=tensorboard", "tensorboard"),
        ("logger=trackio", "trackio"),
        ("logger=wandb", "wandb"),
        ("algo=mappo env=vmas_navigation", "vmas"),
        ("algo=dqn env=cartpole collector=ray", "ray"),
        ("algo=dqn env=cartpole eval.backend=ray", "ray"),
    ],
)
def test_a_package_that_is_missing_is_told_before_the_environment(line, package, told: Told, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, *rest: None if name == package else find_spec(name, *rest),
    )
    code, output = told(line)
    assert code == 2
    assert_short(output)
    assert f"{line.split()[-1]}: {package}, which " in output
    assert (
        f" is not installed. Run pip install 'hydrl{'' if package == 'wandb' else f'[{package}]'}'" in output
    )


@pytest.mark.usefixtures("canary")
def test_an_environment_whose_package_is_missing_is_refused(told: Told, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "Box2D", None)
    for name in [name for name in sys.modules if name.startswith("gymnasium.envs.box2d")]:
        monkeypatch.delitem(sys.modules, name)
    code, output = told("env=gym env.id=LunarLander-v3")
    assert code == 2
    assert_short(output)
    assert "env.id=LunarLander-v3" in output
    assert "pip install 'hydrl[box2d]'.\n" in output


@pytest.fixture
def own_choices(tmp_path: Path) -> Path:
    """A folder of somebody's own with an actor and an algorithm."""
    folder = tmp_path / "choices"
    for name, text in {
        "critic/other": "_target_: my.critic\n",
        "exploration/noise": "_target_: torchrl.modules.AdditiveGaussianModule\nsigma_init: 0.5\n",
        "actor/mine": "_target_: hydrl.networks.actors.q_value\nnum_cells: [8]\nactivation: ReLU\n"
        "in_keys: [observation]\n",
        "algo/mine": "# @package _global_\ndefaults: [dqn, override /actor: mine]\n"
        "algo: mine\ncompatible_with: {actor: [mine], critic: [null, mine]}\n",
    }.items():
        (folder / name).parent.mkdir(parents=True)
        (folder / f"{name}.yaml").write_text(text)
    return folder


@pytest.mark.usefixtures("canary")
@pytest.mark.parametrize("adding", ["--config-dir=FOLDER", "hydra.searchpath=[file://FOLDER]"])
def test_choices_of_one_s_own_are_held_to_what_fits(adding: str, own_choices: Path, told: Told, trained):
    adding = adding.replace("FOLDER", str(own_choices))
    assert told(f"{adding} env=cartpole algo=mine") == (0, "")
    assert trained[-1].actor["num_cells"] == [8]
    code, output = told(f"{adding} env=cartpole algo=ppo actor=mine")
    assert code == 2
    assert output.startswith(
        "error: actor=mine: does not go with algo=ppo, which learns on-policy with a stoch"
    )
    assert ". Use actor=stochastic, " in output
    code, output = told(f"{adding} env=cartpole algo=mine critic=other")
    assert (code, output) == (
        2,
        "error: critic=other: does not go with algo=mine, which learns off-policy with a Q-network. "
        "Use critic=null or critic=mine.\n",
    )
    code, output = told(f"{adding} env=cartpole algo=dqn actor=min")
    assert code == 2
    assert output.startswith("error: actor=min: no such option. Try mine, ")
    for key, advice in {
        "eps_start": "exploration has sigma_init",
        "mean": "Write +exploration.mean=1",
    }.items():
        code, output = told(f"{adding} env=cartpole algo=ppo exploration=noise exploration.{key}=1")
        assert (code, output) == (2, f"error: exploration.{key}=1: no such key. {advice}.\n")


def test_a_run_with_choices_of_one_s_own_is_resumed_with_them(
    own_choices, told: Told, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        train, "find_resume_point", lambda *_: None
    )  # its checkpoint is not what this is about
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    words = ["env=cartpole", "algo=mine", "~tuned"]
    (tmp_path / "run" / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(words))
    source = {"path": "choices", "schema": "file", "provider": "hydra.searchpath in command-line"}
    runtime = {"cwd": str(tmp_path), "config_sources": [source]}
    (tmp_path / "run" / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": {"runtime": runtime}}))
    resumed = f"resume={tmp_path / 'run'} total_frames=4_096"
    code, output = told(resumed)
    assert code == 2
    assert_short(output)
    assert f"the run uses options from other folders. Add --config-dir={own_choices} or where" in output
    for number, line in enumerate(
        [
            f"--config-dir {own_choices} {resumed}",
            resumed.replace(" ", f" --config-dir {own_choices} "),
            f"hydra.searchpath=[file://{own_choices}] {resumed}",
            f"trust=true {resumed}",
        ]
    ):
        code, output = told(line)
        assert code == 0, output
        assert len(trained) == number + 1
        assert trained[-1].actor["num_cells"] == [8]
        assert trained[-1].total_frames == 4_096
        command = f"python train.py resume=DIR --config-dir={own_choices}"
        assert command_to_resume(trained[-1]) == command  # what is printed where it is stopped
    runtime["config_sources"] *= 2
    (tmp_path / "run" / ".hydra" / "hydra.yaml").write_text(yaml.safe_dump({"hydra": {"runtime": runtime}}))
    several = f"'hydra.searchpath=[file://{own_choices},file://{own_choices}]'"
    assert command_to_resume(trained[-1]) == f"python train.py resume=DIR {several}"


def test_files_of_one_s_own_that_are_never_read_are_refused(own_choices, told: Told, tmp_path):
    code, output = told(f"--config-dir={own_choices} algo=mine env=cartpole tuned=nosuch")
    assert (code, output[:37]) == (2, "error: tuned=nosuch: no such option. ")
    (own_choices / "env").mkdir()
    (own_choices / "env" / "cartpole.yaml").write_text("task: cartpole\n")
    code, output = told(f"--config-dir={own_choices} algo=mine env=cartpole")
    assert code == 2
    assert_short(output)
    assert f"{own_choices}/env/cartpole.yaml: is never read, as hydrl has one of that name" in output


def test_what_is_typed_beside_resume_is_trusted_and_what_lies_in_the_folder_is_not(
    told, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(
        train, "find_resume_point", lambda *_: None
    )  # its checkpoint is not what this is about
    (tmp_path / "run" / ".hydra").mkdir(parents=True)
    words = ["env=custom", "env._target_=tests.fakes.envs.CountingEnv"]
    (tmp_path / "run" / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump(words))
    code, output = told(f"resume={tmp_path / 'run'}")
    assert code == 2
    assert (
        "names tests.fakes.envs.CountingEnv, which is not one of hydrl's components. Add trust=true" in output
    )
    assert told(f"resume={tmp_path / 'run'} env._target_=tests.fakes.envs.CountingEnv")[0] == 0
    assert told(f"resume={tmp_path / 'run'} trust=true")[0] == 0
    assert [each.env["_target_"] for each in trained] == ["tests.fakes.envs.CountingEnv"] * 2
    assert command_to_resume(trained[0]) == "python train.py resume=DIR trust=true"


def test_nothing_typed_is_no_mistake():
    hydra_errors.check_options([])


def test_options_may_stand_anywhere(told: Told, trained: list[Settings]):
    told("algo=ppo hydra/launcher=basic -m seed=1,2")
    assert [each.seed for each in trained] == [1, 2]
    assert told("algo=dqn --cfg job seed=3 --resolve env=cartpole")[1].splitlines()[0] == "seed: 3"


@dataclass
class Arguments:
    run: str
    episodes: int = 100
    trust: bool = False


def test_a_script_s_arguments_are_told_as_the_configuration_s_are():
    example = "run=outputs/… episodes=100"
    assert read_arguments(Arguments, ["run=7", "episodes=3"], example) == Arguments("7", 3)
    for words, message in {
        "episode=3": "episode=3: no such key. Write episodes=3.",
        "episodes=many": "episodes=many: Value 'many' of type 'str' could not be converted to Integer",
        "episodes": f"episodes: no value. Write KEY=VALUE, such as {example}",
        "--config-dir=conf": "--config-dir=conf: the run remembers its folders. Write trust=true",
        "episodes=3": f"run: no value. Write run=VALUE, such as {example}",
    }.items():
        with pytest.raises(UserError, match=f"^{re.escape(message)}"):
            read_arguments(Arguments, [words], example)


def test_an_unknown_key_beside_an_unknown_option_is_named_at_the_same_time(told: Told):
    code, output = told("env=cartpol optim.lrr=1 seed=1")
    assert code == 2
    first, option, key = output.splitlines()
    assert first == "error: 2 mistakes:"
    assert option.startswith("  env=cartpol: no such option. Try cartpole")
    assert key == "  optim.lrr=1: no such key. Write optim.lr=1."


def test_a_file_that_cannot_be_written_mentions_earlier_checkpoints_only_if_there_are_some(tmp_path: Path):
    error = OSError(errno.ENOSPC, "No space left on device", "a/metrics.csv")
    message = "a/metrics.csv cannot be written: No space left on device."
    assert command_line.explain_unwritable(error, tmp_path) == message
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "checkpoint-000000000128.torchrl").touch()
    assert command_line.explain_unwritable(error, tmp_path) == f"{message} What was saved before is intact."


def test_an_environment_s_id_with_a_slash_or_colon_is_one_folder():
    cfg = composed("env=gym", "env.id=ALE/Pong-v5", hydra=True)
    assert re.fullmatch(r"outputs/ppo-ALE_Pong-v5/[\d_-]+-seed0", cfg.hydra.run.dir)
    cfg = composed("env=gym", "env.id=my_envs:Line-v0", hydra=True)
    assert cfg.hydra.run.dir.startswith("outputs/ppo-my_envs-Line-v0/")


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


def test_a_sweep_takes_the_tuned_numbers_of_each_member(told: Told, trained: list[Settings]):
    assert told("-m hydra/launcher=basic env=inverted_double_pendulum,inverted_pendulum")[0] == 0
    tuned = yaml.safe_load((CONFIGS / "tuned/ppo/inverted_double_pendulum.yaml").read_text())
    default = yaml.safe_load((CONFIGS / "train.yaml").read_text())
    assert [each.total_frames for each in trained] == [tuned["total_frames"], default["total_frames"]]
    assert [each.transforms["reward_scaling"]["scale"] for each in trained] == [0.01, None]


def test_a_sweep_by_a_launcher_of_others_takes_parts_that_tuned_files_choose(told, trained, tmp_path):
    assert told("-m hydra/launcher=basic algo=dqn env=acrobot,cartpole")[0] == 0
    assert [each.schedule and each.schedule["power"] for each in trained] == [1.0, None]
    folders = {each.name for each in (tmp_path / "sweep").iterdir() if each.is_dir()}
    assert folders == {"algo=dqn,env=acrobot", "algo=dqn,env=cartpole"}


def test_what_is_printed_and_what_is_saved_of_tuned_parts(told: Told, trained: list[Settings], tmp_path):
    ours = "algo=ddpg env=pendulum exploration=ornstein_uhlenbeck"
    printed = yaml.safe_load(told(f"--cfg job {ours}")[1])
    own = yaml.safe_load((CONFIGS / "exploration" / "ornstein_uhlenbeck.yaml").read_text())
    assert printed["exploration"] == own
    del own["limits"]  # a rule, which is not saved
    assert printed["optim"]["lr"] == 1e-3
    assert told(ours)[0] == 0
    assert trained[0].exploration == own
    saved = yaml.safe_load((tmp_path / "run" / ".hydra" / "overrides.yaml").read_text())
    assert saved == ours.split()


def test_a_choice_stands_beside_tuned_numbers_of_another(told: Told, trained: list[Settings]):
    for typed in ("schedule=null", "schedule=cosine", "schedule.power=0", "schedule=null tuned=null"):
        assert told(f"algo=dqn env=acrobot {typed}")[0] == 0
    assert [each.schedule and each.schedule["_target_"][25:] for each in trained] == [
        None,
        "CosineAnnealingLR",
        "PolynomialLR",
        None,
    ]
    line = "--config-dir=docs/my_project/conf env=cartpole actor=q_net"  # which takes no num_cells
    for algo in ("dqn", "prioritized_dqn"):
        assert told(f"{line} algo={algo}")[0] == 0
        assert trained[-1].actor == {"_target_": "my_nets.q_network", "width": 32}
        assert trained[-1].loss.value_estimator == {"gamma": 0.98}


def test_a_choice_is_refused_where_a_tuned_file_writes_its_part_over(told: Told, trained, tmp_path):
    file = tmp_path / "conf" / "tuned" / "dqn" / "cartpole_masked.yaml"
    file.parent.mkdir(parents=True)
    text = "schedule:\n  _target_: torch.optim.lr_scheduler.PolynomialLR\n  power: 1.0\n"
    file.write_text(f"# @package _global_\n{text}")
    line = f"--config-dir={tmp_path / 'conf'} algo=dqn env=cartpole_masked"
    for typed in ("schedule=null", "schedule=cosine"):
        code, output = told(f"{line} {typed}")
        assert code == 2
        assert_short(output)
        assert f"error: {typed}: changes nothing, for tuned=dqn/cartpole_masked sets " in output
        assert ". Set schedule.power, or add tuned=null" in output
    for typed in ("schedule=linear", "schedule.power=0", "schedule=null tuned=null"):
        assert told(f"{line} {typed}")[0] == 0
    assert [each.schedule and each.schedule["power"] for each in trained] == [1.0, 0.0, None]


def test_numbers_that_nothing_named_are_not_passed_over(told: Told, trained, monkeypatch):
    monkeypatch.setattr(tuned, "implied_words", lambda *_: [])
    code, output = told("algo=dqn env=acrobot")
    assert (code, output) == (
        2,
        "error: tuned=auto: chooses no preset here. Write tuned=dqn/acrobot, or tuned=null for none.\n",
    )
    assert told("algo=dqn env=acrobot tuned=null")[0] == 0
    assert told("algo=dqn env=cartpole_masked")[0] == 0  # which has none


@pytest.mark.parametrize(
    ("line", "nearest"),
    [
        ("-m hydra/launcher=processe seed=0,1", "processes, "),
        ("hydra/job_logging=stdou", "stdout, "),
        ("tuned=ppo/cartpol", "ppo/cartpole, "),
        ("+tuned/ppo=cartpol", "cartpole, "),
    ],
)
def test_a_wrong_choice_of_a_nested_group_or_of_hydra_s_own_is_told_the_nearest(line, nearest, told: Told):
    code, output = told(line)
    assert code == 2
    assert_short(output)
    assert f": no such option. Try {nearest}" in output


def test_each_kind_of_end_has_its_exit_code(told: Told, monkeypatch: pytest.MonkeyPatch):
    def ends_with(error: BaseException | None) -> tuple[int, str]:
        def end(settings: Settings, *_: object) -> None:
            if error:
                raise error

        monkeypatch.setattr(train, "train", end)
        return told("", main_of_what_is_composed_once)

    monkeypatch.setattr(tuned, "find_added_words", lambda _: [])  # which composing adds
    code, output = ends_with(RuntimeError("a defect"))
    assert code == 1
    assert "Traceback" in output
    assert "a defect" in output
    assert ends_with(UserError("a mistake")) == (2, "error: a mistake\n")
    code, output = ends_with(DivergedError("loss_critic is nan"))
    assert code == 3
    assert output.startswith("error: diverged at frame 0: loss_critic is nan")
    for ended in (SystemExit(), SystemExit(0), SystemExit("no licence")):  # an environment's own
        reason = f"the environment or a library ended the run by sys.exit({ended.code!r})"
        assert ends_with(ended) == (1, f"error: {reason}\n")
    assert ends_with(Interrupted(15)) == (143, "")
    assert ends_with(KeyboardInterrupt()) == (130, "")
    assert ends_with(None) == (0, "")


@pytest.mark.parametrize(
    "line", ["optim.lrr=1", "algo=ppo optim.lr=-1", "algo=ppo minibatches.size=0", "minibatches.draw=frame"]
)
def test_a_real_command_line_is_answered_without_pytorch_where_it_can_be(line: str, tmp_path: Path):
    command = [sys.executable, "-X", "importtime", "train.py", *line.split(), f"hydra.run.dir={tmp_path}"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    lines = done.stderr.splitlines(keepends=True)
    imports = {each.split("|")[-1].strip() for each in lines if each.startswith("import time:")}
    assert "hydra" in imports
    assert not [name for name in imports if name.startswith("torch.")]
    answer = "".join(each for each in lines if not each.startswith("import time:"))
    assert (done.returncode, done.stdout) == (2, "")
    assert_short(answer)
    assert line.split()[-1].partition("=")[0] in answer


def test_output_that_nobody_reads_to_the_end_is_no_mistake():
    command = f"{sys.executable} train.py --help | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "python train.py algo=ppo env=inverted_double_pendulum\n"
    assert done.stderr == ""
    assert done.returncode in (0, 141)  # 0 where all of it still fitted into the pipe


def test_help_lists_the_groups_and_their_choices_after_three_examples(told: Told):
    code, output = told("--help")
    assert code == 0
    assert [line.startswith("python train.py ") for line in output.splitlines()[:4]] == [True] * 3 + [False]
    assert f"\nalgo: {', '.join(option_names(CONFIGS / 'algo'))}\n" in output
    for group in CONFIGS.iterdir():
        assert not list(group.glob("*.yaml")) or f"\n{group.name}: " in output
    assert "_target_" not in output
    assert output.rstrip().endswith("\nhydrl docs prints the folder of the documentation.")


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("--config-dir=README.md", "--config-dir=README.md: no such folder. Write --config-dir=DIR"),
        ("--config-dir= seed=1", "--config-dir: no folder is named"),
        (
            "--config-name=mine",
            "--config-name=mine: there is one root. Leave it out; --config-dir=DIR adds your own files",
        ),
        ("--cfg jobs", "--cfg jobs: no such word. Write job, hydra or all"),
        ("seed=1 --cfg", "Write job, hydra or all"),
        ("--info nosuch", "Write all, config, defaults, defaults-tree, "),
        ("--help=1", "--help=1: it takes no value. Write --help"),
        ("--env-id CartPole-v1", "Write env=cartpole, and see --help"),
        ("--env-id Foo-v1", "Write env=gym env.id=Foo-v1, and see --help"),
        ("--no-cuda", "--no-cuda: no such option. Write KEY=VALUE, and see --help"),
        ("=3", "=3: this cannot be read. Write KEY=VALUE"),
        ("run_dir=here", "run_dir=here: it follows from hydra.run.dir. Write hydra.run.dir=here"),
    ],
)
def test_what_hydra_would_answer_at_length_or_not_at_all(words: str, answer: str):
    with pytest.raises(UserError) as error:
        command_line.check_arguments(words.split())
    assert answer in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "answers"),
    [
        (
            "algo=ppoo env=cartpol",
            ["algo=ppoo: no such option. Try ppo,", "env=cartpol: no such option."],
        ),
        (
            "--total-timesteps 4096 --seed 1 --env CartPole-v1",
            ["--total-timesteps 4096: no such option. Write total_frames=4096", "seed=1,", "env=cartpole,"],
        ),
    ],
)
def test_several_unknown_options_are_named_at_once(words: str, answers: list[str]):
    with pytest.raises(UserError) as error:
        command_line.check_arguments(words.split())
    first, *lines = str(error.value).splitlines()
    assert first == f"{len(answers)} mistakes:"
    assert all(answer in line for answer, line in zip(answers, lines, strict=True))


@pytest.mark.parametrize(
    ("word", "answer"),
    [
        ("help", "help: this cannot be read. Write --help"),
        ("dqn", "dqn: this cannot be read. Write algo=dqn or loss=dqn"),
        (
            "b",
            "b: this cannot be read. Write KEY=VALUE, without blanks; for the shell",
        ),
        ("actor.num_cells=(64;32", "Write 'actor.num_cells=[64,32]'"),
        ("policy_kwargs=dict(net_arch=[64])", "actor.num_cells=[64,64]"),
        ("env.id=a(b", "Write \"env.id='a(b'\""),
    ],
)
def test_a_word_hydra_cannot_read_is_told_with_what_was_meant(word: str, answer: str):
    assert answer in hydra_errors.explain_unreadable(word)


FOLDERS = [
    "plain",
    "a=b",
    "a b#c",
    "(a)",
    "[a",
    "{a}",
    "a,b",
    "it's",
    "x'",
    'a"b',
    "a\\b",
    "a\\\\b",
    "a\\",
    "\u00fc",
    "12",
]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_of_any_name_is_gone_on_with_by_the_command_the_run_prints(name, tmp_path, monkeypatch):
    folder = tmp_path / name
    (folder / ".hydra").mkdir(parents=True)
    for key in ("hydra.run.dir", "data.path"):
        (word,) = quote_paths([f"{key}={folder}"])
        assert parse_value(word.partition("=")[2]) == str(folder)
    (folder / ".hydra" / "overrides.yaml").write_text("[env=cartpole]")
    command = resume_command.resume_command(folder, settings("env=cartpole").needs_trust)
    told = subprocess.run(
        ["bash", "-c", f"printf '%s\\n' {command}"], capture_output=True, text=True, check=True
    )
    _, _, *words = told.stdout.splitlines()
    read = {
        key_of(each): parse_value(each.partition("=")[2])
        for each in resume_command.expand(quote_paths(words))
    }
    assert read == {"env": "cartpole", "resume": str(folder), "hydra.run.dir": str(folder)}
    assert command_line.read_arguments(Arguments, [f"run={folder}"], "").run == str(folder)


def test_a_tilde_is_home_where_the_shell_leaves_it(monkeypatch):
    monkeypatch.setenv("HOME", "/home/a b")
    assert quote_paths(["hydra.run.dir=~/x", "resume='~/x'", "--config-dir=~", "optim.lr=~/x"]) == [
        "hydra.run.dir=/home/a b/x",
        "resume=/home/a b/x",
        "--config-dir=/home/a b",
        "optim.lr=~/x",
    ]
    assert command_line.read_arguments(Arguments, ["run=~/x"], "").run == "/home/a b/x"
    assert resume_command.expand(["resume=null"]) == ["resume=null"]
    with pytest.raises(UserError, match=r"resume=None: not a run\. Write resume=DIR, or resume=null"):
        resume_command.expand(["resume=None"])
    with pytest.raises(UserError, match=r"resume=/home/a b/x: there is no such folder"):
        resume_command.expand(["resume=~/x"])


def test_a_set_of_data_has_the_name_that_a_collector_had_for_it():
    assert new_words(["algo=iql", "collector.path=a/b"]) == ["algo=iql", "data.path=a/b"]


def test_several_data_sets_stay_several():
    assert quote_paths(["-m", "data.path=a,b"]) == ["-m", "data.path=a,b"]
    assert quote_paths(["data.path=a,b"]) == ["data.path='a,b'"]


def test_a_run_that_does_not_begin_leaves_no_folder_that_was_not_there(told: Told, tmp_path, monkeypatch):
    new, there = tmp_path / "new" / "er", tmp_path / "there"
    there.mkdir()
    for folder in (new, there, there / "in"):
        assert told(f"optim.lr=fast hydra.run.dir={folder}")[0] == 2
    assert [each.name for each in tmp_path.iterdir()] == ["there"]
    monkeypatch.setattr(train, "train", lambda *_: signal.raise_signal(signal.SIGINT))
    before = signal.getsignal(signal.SIGINT)
    assert told(f"hydra.run.dir={new}")[0] == 130
    assert not new.parent.exists()
    assert signal.getsignal(signal.SIGINT) == before


def test_ctrl_c_before_the_loop_says_so(capfd: pytest.CaptureFixture[str]):
    with pytest.raises(Interrupted), command_line.exit_on_signal():
        signal.raise_signal(signal.SIGINT)
    assert capfd.readouterr().err == "\nstopped before the first batch; nothing new was saved\n"


@pytest.mark.parametrize(
    ("file", "text", "answer"),
    [
        *(
            (f"{group}/mine", "optim: {lr: 1}", "does not begin with the line `# @package _global_`")
            for group in ("env", "algo", "tuned/ppo", "experiment", "debug")
        ),
        ("env/mine", "# mine\n# @package _global_\ntask: mine", "Write it above all else"),
        ("env/mine", "# @package _globl_\ntask: mine", "does not begin with the line"),
        (
            "actor/mine",
            "# @package _global_\n_target_: a.b",
            "_target_ is no key at the top level. Leave out the",
        ),
        ("loss/mine", "# @package _global_\nmodule: {lmbda: 1}", "module is no key at the top level"),
    ],
)
def test_the_first_line_of_a_file_of_one_s_own_is_that_of_its_group(file, text, answer, tmp_path):
    path = tmp_path / "conf" / f"{file}.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with pytest.raises(UserError, match=rf"^{re.escape(str(path))}.*{re.escape(answer)}"):
        user_dirs.add_folders([tmp_path / "conf"])


def test_files_of_one_s_own_that_say_where_their_keys_lie_are_taken(tmp_path):
    for file, text in {
        "env/mine": "# @package _global_\ntask: mine",
        "env/part": "# @package env\nid: A-v0",
        "logger/mine": "# @package logger.mine\n_target_: a.b",
        "actor/both": "# @package _global_\nactor: {}\ncritic: {}",
    }.items():
        (tmp_path / "conf" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / f"{file}.yaml").write_text(text)
    user_dirs.add_folders([tmp_path / "conf"])
    (tmp_path / "conf" / "env" / "other.yml").touch()
    with pytest.raises(UserError, match=r"other.yml: is never read\. Give it the ending .yaml"):
        user_dirs.add_folders([tmp_path / "conf"])


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("algo=", [f"algo={each}" for each in option_names(CONFIGS / "algo")]),
        ("env=inverted_d", ["env=inverted_double_pendulum"]),
        ("eval.episod", ["eval.episodes="]),
    ],
)
def test_the_shell_completes_choices_and_keys(typed: str, offered: list[str], told: Told, monkeypatch):
    monkeypatch.setenv("COMP_LINE", f"python train.py {typed}")
    monkeypatch.setenv("COMP_POINT", str(len(f"python train.py {typed}")))
    code, output = told("-sc query=bash")
    assert code == 0
    assert output.split() == offered


@pytest.mark.usefixtures("no_families")
def test_a_refused_run_leaves_no_folder_of_its_own_and_the_one_that_was_named(told, tmp_path, monkeypatch):
    named = tmp_path / "named"
    named.mkdir()
    monkeypatch.chdir(tmp_path)
    for words in (
        ["optim.lr=fast"],
        ["optim.lr=fast", f"hydra.run.dir={named}"],
        ["env=gym", "env.id=ALE/Pong-v5"],  # whose slash makes two folders of one
    ):
        monkeypatch.setattr(sys, "argv", ["train.py", *words])
        assert command_line.run(main) == 2
    assert list(tmp_path.iterdir()) == [named]


@pytest.mark.parametrize(
    ("words", "repeated"),
    [
        (["algo=dqn", "resume=auto", "seed=1"], ["algo=dqn", "seed=1"]),
        (["resume='outputs/a'", "total_frames=9"], ["total_frames=9"]),
        (["resume=outputs/a/checkpoints/x.torchrl"], []),
        (["resume=outputs/b", "optim.lr=1"], ["resume=outputs/b", "optim.lr=1", "hydra.run.dir=FOLDER"]),
    ],
)
def test_the_command_that_repeats_a_run_never_resumes_the_run_itself(words, repeated):
    assert words_to_repeat(words, Path("/x/outputs/a")) == repeated


@pytest.mark.parametrize("resolver", ["as_folder", "without_colons"])
@pytest.mark.parametrize(("value", "name"), [(3, "3"), ("a:B", "a-B")])
def test_a_folder_s_name_is_made_of_any_value(resolver, value, name):
    assert OmegaConf.create({"task": value, "name": f"${{{resolver}:${{task}}}}"}).name == name
