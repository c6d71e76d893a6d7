import copy
import functools
import os
from pathlib import Path

import pytest
import yaml
from omegaconf import DictConfig, OmegaConf
from torchrl.envs import Transform

from hydrl.config import CONFIGS, tree
from hydrl.config.schema import RULES, KeyScope, keys_with_scope
from hydrl.config.settings import Settings, check_action_space, load, needs_dataset, read_action_spaces
from hydrl.config.signatures import accepted_parameters, targets
from hydrl.config.tree import find, paths
from hydrl.envs import make_env
from hydrl.errors import UserError
from tests.conftest import composed, data_of, needs_vmas, settings

# Added by scripts/search.py alone, see tests/experiments/test_search.py; and what the package itself reads.
RANGES = [*(CONFIGS / "search").glob("*.yaml"), CONFIGS / "eval_backends.yaml"]
RANGES += [CONFIGS / "networks.yaml", CONFIGS / "precisions.yaml"]
FILES = sorted(
    str(path.relative_to(CONFIGS).with_suffix("")) for path in CONFIGS.rglob("*.yaml") if path not in RANGES
)
TUNED = [file for file in FILES if file.startswith("tuned/") and file.count("/") == 2]
TASKS = {"discrete": "cartpole", "continuous": "pendulum"}
TASKS["multi-discrete"] = "gym env.id=tests.fakes.multi_discrete:Shown-v0 +env.space=bits"
TASKS |= {f"multi-agent {kind}": "custom env._target_=tests.fakes.envs.CountingTeam" for kind in TASKS}
TASKS["text"] = "digits"
ARGUMENTS = {"env/gym": ["env.id=CartPole-v1"], "env/custom": ["env._target_=torchrl.envs.PendulumEnv"]}
ARGUMENTS["env/prompts"] = ["env.task._target_=hydrl.contrib.language.tasks.Digits"]
ARGUMENTS["model/folder"] = ["model.path=none"]
ARGUMENTS["env/vmas"] = ["env.scenario=navigation"]
ARGUMENTS |= {"env/minatar": ["env.id=MinAtar/Breakout-v1"], "env/atari": ["env.id=ALE/Pong-v5"]}
ARGUMENTS["env/minigrid"] = ["env.id=MiniGrid-DoorKey-5x5-v0"]
ARGUMENTS["env/dm_control"] = ["env.id=cartpole-swingup"]
ARGUMENTS["env/robotics"] = ["env.id=FetchReach-v4"]
ARGUMENTS["env/pettingzoo"] = ["env.id=mpe2/simple_spread_v3"]
ARGUMENTS["env/self_play"] = ["env.id=classic/tictactoe_v3"]
ARGUMENTS["env/open_spiel"] = ["env.id=kuhn_poker"]
ARGUMENTS["env/envpool"] = ["env.id=CartPole-v1"]
ARGUMENTS |= {"env/brax": ["env.id=inverted_pendulum"], "env/jumanji": ["env.id=Snake-v1"]}
KINDS = ("replay_buffer", "npz", "h5", "minari")
ARGUMENTS |= {f"data/{kind}": ["minibatches=mixed", "data.path=none"] for kind in KINDS}
ARGUMENTS |= {"minibatches/mixed": ["data=replay_buffer", "data.path=none"]}
MOUNTED = {"layers": "layers@actor"}  # a group of parts of other groups' choices
WITH = {
    "lstm": "recurrent_ppo",
    "gru": "recurrent_ppo",
    "noisy": "rainbow",
    "solved": "sft",
}  # an algorithm these need
PARTS = ["env", "actor", "critic", "exploration", "collector", "buffer"]
PARTS += [
    "minibatches",
    "loss",
    "target",
    "optim",
    "schedule",
]


def with_file(file: str, run_dir: Path) -> Settings:
    """The settings with this file chosen, under the first algorithm it fits."""
    group, _, choice = file.partition("/")
    if "vmas" in file:
        needs_vmas()
    if not choice:
        return settings(run_dir=run_dir)
    if group == "experiment":
        return settings(f"experiment={choice}", run_dir=run_dir)
    if group == "tuned" and "/" in choice:
        algo, _, env = choice.partition("/")
        task = [f"env={env}", *ARGUMENTS.get(f"env/{env}", [])]
        return settings(f"algo={algo}", *task, *data_of(algo), run_dir=run_dir)
    refusals = []
    for algo in fitting(group, choice):
        for kind in read_action_spaces()[algo]:
            base = {"algo": algo, "env": TASKS[kind]} | {MOUNTED.get(group, group): choice}
            untuned = ["~tuned"] * (group != "tuned")
            overrides = " ".join([*untuned, *(f"{key}={value}" for key, value in base.items())]).split()
            try:
                found = settings(*overrides, *ARGUMENTS.get(file, []), *data_of(algo), run_dir=run_dir)
                check_action_space(found, kind)
                return found
            except UserError as error:
                refusals.append(str(error))
    raise AssertionError(refusals)


def fitting(group: str, choice: str) -> list[str]:
    """The algorithms that a choice may fit: those that say so, or else those that do not say."""
    if group in ("algo", "layers", "rnn", "data"):
        return [WITH.get(choice, choice if group == "algo" else "crossq")]
    fits = {algo: tree.read_option(f"/algo/{algo}")["compatible_with"] for algo in read_action_spaces()}
    saying = [algo for algo, each in fits.items() if choice in each.get(group, [])]
    return saying or [algo for algo, each in fits.items() if group not in each]


def content(file: str) -> DictConfig:
    """What a file says, over the tuned numbers it begins from."""
    own = OmegaConf.load(CONFIGS / f"{file}.yaml")
    bases = [str(base) for base in own.pop("defaults", [])]
    return OmegaConf.merge(*(content(base[1:]) for base in bases if base.startswith("/tuned/")), own)


def leaves(file: str) -> dict[str, object]:
    """The plain values a file sets, by dotted path."""
    values = OmegaConf.to_container(content(file))
    found = {path: find(values, path) for path in paths(values)}
    return {
        path: value
        for path, value in found.items()
        if not isinstance(value, dict) and "${" not in str(value) and value != "???"
    }


@pytest.mark.parametrize("file", FILES)
def test_every_file_composes_passes_the_checks_and_arrives(file: str, tmp_path: Path):
    chosen = with_file(file, tmp_path)
    values = chosen.model_dump()
    header = (CONFIGS / f"{file}.yaml").read_text().partition("\n")[0]
    whole = header == "# @package _global_"
    place = header.removeprefix("# @package ") if "@package logger." in header else file.partition("/")[0]
    for path, value in leaves(file).items():
        if whole:
            assert find(values, path) == value, path
        elif file.startswith("layers/"):
            key, _, rule = path.partition(".requires.")  # whose own keys have dots
            value = find(values["actor"], f"{key}.requires" if rule else path)
            assert path in values["actor"] or value is not None, path
        elif path.endswith("_target_") and not path.startswith("hydra."):  # numbers the algorithm may change
            assert find(values, f"{place}.{path}".removeprefix("train.")) == value, path

    for part in PARTS:
        node = chosen.loss.module if part == "loss" else getattr(chosen, part)
        built = chosen.build(part)
        if node is None:
            assert built("whatever it is given") is None, part
        else:
            assert type(built) is functools.partial, part  # Hydra's own costs 0.5 ms a call
    assert all(type(built) is functools.partial for built in chosen.logger_builders.values())
    assert all(isinstance(make(), Transform | None) for make in chosen.transform_builders)
    assert len(chosen.transform_builders) == len(chosen.transforms)


def test_what_a_frame_is_is_said_where_the_simulator_makes_several():
    said = "total_frames=20,000 agent steps are 80,000 simulator frames"
    skipping = settings("algo=ppo", "env=atari", "env.id=ALE/Pong-v5", "total_frames=20_000").chosen
    assert [each for each in skipping if said in each] == skipping[-1:]
    twice = settings("algo=sac", "env=dm_control", "env.id=walker-walk", "total_frames=20_000").chosen
    assert "with env.repeat=2, total_frames=20,000 agent steps are 40,000 simulator frames" in twice[-1]
    once = settings("algo=sac", "env=dm_control", "env.id=walker-walk", "env.repeat=1").chosen
    assert "a frame is" not in str(once)
    assert "a frame is" not in str(settings("algo=ppo", "env=cartpole").chosen)


def test_no_file_under_configs_is_missed():
    assert sum(len(names) for _, _, names in os.walk(CONFIGS)) == len(FILES) + len(RANGES)
    groups = {file.partition("/")[0] for file in FILES if "/" in file}
    chosen = {
        key for each in OmegaConf.load(CONFIGS / "train.yaml").defaults if each != "_self_" for key in each
    }
    assert groups - MOUNTED.keys() == {
        key.removeprefix("optional ") for key in chosen if not key.startswith("override ")
    }
    assert groups


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith(("algo/", "env/"))])
def test_a_file_is_named_after_what_it_says_it_is(file: str):
    group, _, name = file.partition("/")
    said = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{file}.yaml"))[
        "algo" if group == "algo" else "task"
    ]
    of_any = dict.fromkeys(("gym", "minatar", "atari", "dm_control", "pettingzoo", "self_play"), "${env.id}")
    of_any |= {"minigrid": "${env.id}", "open_spiel": "${env.id}"}
    of_any |= {"robotics": "${env.id}", "envpool": "${env.id}"}
    of_any |= {"jumanji": "${env.id}", "brax": "brax_${env.id}"}
    of_any |= {"custom": "${env._target_}", "prompts": "${env.task._target_}", "vmas": "${env.scenario}"}
    assert said == of_any.get(name, name)


def untuned(*overrides: str) -> dict:
    """What an algorithm does by default, without what names the task."""
    values = settings(*overrides).model_dump()
    for key in ("env", "task"):
        values.pop(key)
    for key in (
        "reward_threshold",
        "max_steps",
        "every_frames",
    ):  # the task's, as is where its episodes are cut
        values["eval"].pop(key)
    values["transforms"]["step_counter"].pop("max_steps", None)
    values["collector"].pop("task", None)
    return values


@pytest.mark.parametrize("file", TUNED)
def test_tuned_numbers_apply_by_themselves_and_the_command_line_wins(file: str):
    _, algo, env = file.split("/")
    if "vmas" in env:
        needs_vmas()
    tuned, total_frames = leaves(file), 12_345
    assert tuned
    words = [f"algo={algo}", f"env={env}", *ARGUMENTS.get(f"env/{env}", []), *data_of(algo)]
    ours = settings(*words, f"total_frames={total_frames}").model_dump()
    assert ours["total_frames"] == total_frames != tuned.pop("total_frames", None)
    assert {path: find(ours, path) for path in tuned} == tuned


@pytest.mark.parametrize(
    "files", [TUNED[::8], pytest.param(TUNED, marks=pytest.mark.slow)], ids=["few", "all"]
)
def test_without_tuned_numbers_an_algorithm_has_the_same_defaults_on_every_task(files):
    others: dict[str, dict] = {}
    for file in files:
        _, algo, env = file.split("/")
        words = [f"algo={algo}", *data_of(algo)]
        if algo not in others:
            others[algo] = untuned(*words, "env=gym", "env.id=CartPole-v1")
        words += [f"env={env}", *ARGUMENTS.get(f"env/{env}", [])]
        own, other = untuned(*words, "~tuned"), copy.deepcopy(others[algo])
        if algo in ("ppo", "gail"):  # whose discount follows from the task
            for values in (own, other):
                gamma = values["loss"]["value_estimator"].pop("gamma")
                assert algo == "gail" or gamma == values["transforms"]["reward_scaling"].pop("gamma")
        for values in (own, other):
            (values.get("data") or {}).pop("task", None)  # which a set of data is held to
            for name in OmegaConf.load(CONFIGS / "env" / f"{env}.yaml").get("transforms", {}):
                values["transforms"].pop(name, None)  # the task's own, as Atari's signs of rewards
        assert own == other
        assert own != untuned(*words)


def test_a_transform_can_be_dropped_and_another_added_at_the_end():
    names = list(settings("~tuned").transforms)
    assert "normalize" in names
    assert list(settings("~tuned", "~transforms.normalize").transforms) == [
        name for name in names if name != "normalize"
    ]
    clip = "+transforms.clip"
    added = settings(
        "~tuned",
        f"{clip}._target_=torchrl.envs.ClipTransform",
        f"{clip}.in_keys=[observation]",
        f"{clip}.low=-10",
        f"{clip}.high=10",
    )
    assert list(added.transforms) == [*names, "clip"]
    last = added.transform_builders[-1]()
    assert (type(last).__name__, last.low.item(), last.high.item()) == ("ClipTransform", -10, 10)
    assert last.in_keys == ["observation"]


def test_every_key_is_read_by_something():
    seen = set()  # parts that several algorithms have alike
    for algo, *more in [
        *((each,) for each in read_action_spaces()),
        ("ppo", "logger=wandb", "schedule=cosine"),
    ]:
        kind, *_ = read_action_spaces()[algo]
        words = ["~tuned", f"algo={algo}", *f"env={TASKS[kind]}".split(), *data_of(algo)]
        values = load(composed("run_dir=unused", *words, *more)).model_dump()
        nodes = dict(targets(values))
        assert {"env", "actor", "collector", "loss.module", "optim"} <= nodes.keys()
        assert not more or {"logger.wandb", "schedule"} <= nodes.keys()
        open_ended = set()
        for path, node in nodes.items():
            parameters, passes_on = accepted_parameters(import_(node["_target_"]))
            assert {
                key for key in node if key not in ("_target_", "_partial_", *RULES)
            } <= parameters.keys(), path
            open_ended |= {path} if passes_on else set()
        # Those of env go to gymnasium.make, which refuses what it does not know; an encoder's are entries.
        open_ended -= {each for each in nodes if each.endswith("encoder")}
        assert open_ended <= {"env"}

        # Those that a network has of the run are set there.
        takes_any = open_ended | {each for each in nodes if each.endswith(("encoder", ".memory"))}
        parents = dict.fromkeys((nodes.keys() - takes_any) | {"", "eval", "loss"})
        if values["loss"]["value_estimator"] is not None:
            parents["loss.value_estimator"] = None
        for parent in parents:
            part = parent, str(nodes.get(parent, values["loss"]["module"])["_target_"])
            if part in seen:
                continue
            seen.add(part)
            key = f"{parent}.nonsense".lstrip(".")
            wrong = OmegaConf.create(values)
            OmegaConf.update(wrong, key, 1, force_add=True)
            with pytest.raises(UserError, match=rf"{key}=1: (no such key|\S+ takes no nonsense)"):
                load(wrong)
    assert len(seen) > 90


def import_(name: str) -> object:
    from hydra.utils import get_object

    return get_object(name)


def test_loading_changes_nothing_in_what_was_composed():
    cfg = composed("run_dir=unused", "algo=dqn", "env=cartpole")
    before = OmegaConf.to_yaml(cfg)
    first, second = load(cfg), load(cfg)
    assert OmegaConf.to_yaml(cfg) == before
    assert first.model_dump() == second.model_dump()


def test_a_run_is_whole_batches():
    assert settings("total_frames=2_049", "collector.frames_per_batch=1_024").batches == 3
    assert settings("total_frames=2_048", "collector.frames_per_batch=1_024").batches == 2


def test_a_builder_is_called_with_what_is_configured():
    build = settings(
        "algo=dqn", "env=cartpole", "collector.num_envs=4", "collector.frames_per_batch=64"
    ).build
    from hydrl.experience.collectors import make_collector

    collector = build("collector")
    assert collector.func is make_collector
    assert collector.keywords == {"frames_per_batch": 64, "num_envs": 4, "init_random_frames": 0}
    first, second = build("buffer")(), build("buffer")()
    assert first is not second


def test_only_algorithms_that_can_act_in_the_space_are_named(tmp_path):
    for algo, kinds in read_action_spaces().items():
        run = with_file(f"algo/{algo}", tmp_path)  # with its first kind, which it can act in
        for kind in {"discrete", "continuous", "Composite"} - {*kinds}:
            able = [name for name, others in read_action_spaces().items() if kind in others]
            able = [name for name in able if needs_dataset(name) == needs_dataset(algo)]
            with pytest.raises(UserError) as error:
                check_action_space(run, kind)
            assert [name for name in read_action_spaces() if f"Use algo={name}" in str(error.value)] == able[
                :1
            ]
            assert ("No algorithm here can" in str(error.value)) == (not able)


QUICKSTART = {  # the tutorial "Reinforcement Learning (PPO) with TorchRL"
    "env": {"_target_": "hydrl.envs.gymnasium_env", "id": "InvertedDoublePendulum-v4"},
    "total_frames": 1_000_000,
    "init_stats_frames": 1_000,
    "max_grad_norm": 1.0,
    "target_kl": None,
    "actor.num_cells": [256, 256, 256],
    "actor.activation": "Tanh",
    "actor.scale": "per_state",
    "critic.num_cells": [256, 256, 256],
    "critic.activation": "Tanh",
    "exploration": None,
    "collector._target_": "hydrl.experience.collectors.make_collector",
    "collector.frames_per_batch": 1_000,
    "collector.num_envs": 1,
    "collector.init_random_frames": 0,
    "buffer.storage.max_size": 1_000,
    "buffer.sampler._target_": "torchrl.data.replay_buffers.SamplerWithoutReplacement",
    "minibatches.epochs": 10,
    "minibatches.size": 64,
    "minibatches.advantage": "each_epoch",
    "loss.module._target_": "torchrl.objectives.ClipPPOLoss",
    "loss.module.clip_epsilon": 0.2,
    "loss.module.entropy_coeff": 1e-4,
    "loss.module.critic_coeff": 1.0,
    "loss.module.loss_critic_type": "smooth_l1",
    "loss.value_estimator": {"gamma": 0.99, "lmbda": 0.95, "average_gae": True},
    "target": None,
    "optim": {"_target_": "torch.optim.Adam", "lr": 3e-4, "eps": 1e-8, "fused": False},
    "schedule": {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "eta_min": 0.0},
    "eval.every_frames": 10_000,
}
DQN_INTRO = {  # the tutorial "Introduction to TorchRL"
    "env": {"_target_": "hydrl.envs.gymnasium_env", "id": "CartPole-v1"},
    "total_frames": 2_000,
    "max_grad_norm": None,
    "actor._target_": "hydrl.networks.actors.q_value",
    "actor.num_cells": [128],
    "actor.activation": "Tanh",
    "critic": None,
    "exploration": None,
    "collector.frames_per_batch": 100,
    "collector.num_envs": 1,
    "buffer.storage.max_size": 10_000,
    "minibatches.updates": 1,
    "minibatches.size": 64,
    "minibatches.warmup_frames": 100,
    "loss.module.loss_function": "l2",
    "loss.module.double_dqn": False,
    "loss.value_estimator": {"gamma": 0.99},
    "target": None,
    "optim": {"_target_": "torch.optim.Adam", "lr": 1e-3, "eps": 1e-8, "fused": False},
    "schedule": None,
}


@pytest.mark.parametrize(("name", "documented"), [("quickstart", QUICKSTART), ("dqn_intro", DQN_INTRO)])
def test_an_experiment_has_the_documented_numbers(name: str, documented: dict):
    values = settings(f"experiment={name}").model_dump()
    assert {path: find(values, path) for path in documented} == documented


def test_the_tutorial_stack_stands_in_its_order():
    chosen = settings("experiment=quickstart")
    env = make_env(chosen.build("env"), chosen.transform_builders)
    stack = [type(each).__name__ for each in env.transform]
    # RewardSum stands first, where the reward is still the environment's own; the document has it third.
    assert stack == ["RewardSum", "ObservationNorm", "DoubleToFloat", "StepCounter"]


def test_a_reference_to_the_environment_is_used_and_saved_as_written(monkeypatch):
    monkeypatch.setenv("WHO", "nobody")
    monkeypatch.setenv("RATE", "0.01")
    chosen = settings(
        "env=cartpole",
        "logger=wandb",
        "logger.wandb.entity=${oc.env:WHO}",
        "logger.wandb.group=${logger.wandb.entity}",
        "logger.wandb.tags=[a,'${oc.env:NOBODY,unset}']",
        "optim.lr='${oc.decode:${oc.env:RATE}}'",
        "anneal_frames=${total_frames}",
    )
    sent = chosen.logger["wandb"]
    assert (sent["group"], sent["tags"], chosen.optim["lr"]) == (
        "nobody",
        ["a", "unset"],
        0.01,
    )
    shown = chosen.shown
    written = shown["logger"]["wandb"]
    assert written["entity"] == written["group"] == "${oc.env:WHO}"
    assert written["tags"] == ["a", "${oc.env:NOBODY,unset}"]
    assert shown["optim"]["lr"] == "${oc.decode:${oc.env:RATE}}"
    assert shown["anneal_frames"] == chosen.total_frames
    assert "nobody" not in str(shown)
    with pytest.raises(UserError, match=r"logger\.wandb\.entity: .*Environment variable 'MISSING' not found"):
        settings("logger=wandb", "logger.wandb.entity=${oc.env:MISSING}")


def test_each_top_level_key_has_at_most_one_role_and_what_makes_another_run_has_none():
    of = {role: keys_with_scope(role) for role in KeyScope}
    assert sum(map(len, of.values())) == len(keys_with_scope(*KeyScope))
    assert of[KeyScope.PROCESS] == {"run_dir", "resume", "trust"}
    assert of[KeyScope.LENGTH] == {"total_frames", "anneal_frames", "eval"}
    assert not {"seed", "env", "collector", "actor", "buffer"} & keys_with_scope(*KeyScope)
    assert {"optim", "loss", "max_grad_norm", "schedule"} <= of[KeyScope.LEARNING]


def test_a_logger_of_an_older_run_is_one_by_itself():
    saved = settings("logger=tensorboard").model_dump() | {"logger": {"_target_": "somewhere.Logger"}}
    chosen = Settings.of(saved, saved)
    assert chosen.logger == {"logger": {"_target_": "somewhere.Logger"}}


def test_a_minibatch_larger_than_the_warm_up_is_said_to_be_waited_for():
    words = ["algo=dqn", "env=cartpole", "minibatches.warmup_frames=100"]
    line = (
        "no update is made before the replay buffer holds minibatches.size=256 frames, more than "
        "minibatches.warmup_frames=100"
    )
    assert line in settings(*words, "minibatches.size=256").chosen
    assert not [each for each in settings(*words, "minibatches.size=64").chosen if "no update" in each]


def test_a_loss_of_one_s_own_says_that_it_learns_from_sequences(tmp_path):
    (tmp_path / "loss").mkdir()
    (tmp_path / "algo").mkdir()
    own = {
        "module": {"_target_": "tests.fakes.losses.SingleStepLoss"},
        "networks": {"value_network": "actor"},
    }
    own["value_estimator"] = {"gamma": 0.99}
    (tmp_path / "loss/own.yaml").write_text(yaml.safe_dump(own))
    declared = {**own, "compatible_with": {"minibatches": ["replay", "sequences"]}}
    (tmp_path / "loss/declared.yaml").write_text(yaml.safe_dump(declared))
    for name in ("own", "declared"):
        algo = (
            f"# @package _global_\ndefaults:\n  - dqn\n  - override /loss: {name}\n  - _self_\nalgo: {name}\n"
        )
        (tmp_path / f"algo/{name}.yaml").write_text(algo + f"compatible_with: {{loss: [{name}]}}\n")
    words = [f"hydra.searchpath=[file://{tmp_path}]", "env=cartpole", "~tuned"]

    def lines(*more: str) -> list[str]:
        return [each for each in settings(*words, *more).chosen if "sequences" in each]

    assert lines("algo=own") == lines("algo=declared", "rnn=lstm") == []
    (line,) = lines("algo=own", "rnn=lstm")
    assert line.startswith(
        "loss=tests.fakes.losses.SingleStepLoss learns from sequences of minibatches.sequence=32 steps"
    )
    assert lines("algo=dqn", "rnn=lstm") == []
