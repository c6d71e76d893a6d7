"""The folder of `docs/own_components.md`, as a user has it: somewhere else, and nothing of it in hydrl."""

import re
import shutil
import sys
from collections.abc import Callable
from inspect import signature
from pathlib import Path

import pytest
import torch
from hydra.core.hydra_config import HydraConfig

from hydrl.config import user_dirs
from hydrl.config.schema import CALL_SPECS, WITHIN
from hydrl.config.settings import build_network, check_action_space
from hydrl.deploy.load import open_run
from hydrl.envs import gymnasium_env, make_env
from hydrl.errors import UserError
from hydrl.experiments import search_space
from hydrl.run.run_folder import summary
from hydrl.specs import action_kind
from tests.conftest import ROOT, settings, start, typed

PAGES = [*(ROOT / "docs").glob("own_*.md"), ROOT / "docs" / "action_masks.md"]
PAGE = "\n".join(path.read_text() for path in PAGES)
FAST = ["debug=fast", "total_frames=512", "eval.every_frames=512", "eval.stop_when_solved=false"]
MODULES = ("my_envs", "my_nets", "my_losses", "my_tasks", "my_teams", "my_transforms")


@pytest.fixture
def forget(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this process one that has not seen the folder."""
    path = [*sys.path]

    def call() -> None:
        monkeypatch.setattr(sys, "path", [*path])
        for name in MODULES:
            monkeypatch.delitem(sys.modules, name, raising=False)

    return call


def copy_project(folder: Path) -> Path:
    shutil.copytree(ROOT / "docs" / "my_project", folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch, forget: Callable[[], None]) -> Callable[[Path], Path]:
    """Makes a copy of the folder the working folder."""

    def call(folder: Path) -> Path:
        monkeypatch.chdir(folder)
        monkeypatch.setattr(HydraConfig.instance(), "cfg", None)
        forget()
        return folder

    return call


@pytest.fixture
def project(tmp_path: Path, enter: Callable[[Path], Path]) -> Path:
    """A copy of the folder, which is the working folder too."""
    return enter(copy_project(tmp_path / "mine"))


@pytest.fixture(scope="module")
def shared_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that no test changes, so that its choices are composed once."""
    return copy_project(tmp_path_factory.mktemp("shared") / "mine")


@pytest.fixture
def shared_project(shared_copy: Path, enter: Callable[[Path], Path]) -> Path:
    return enter(shared_copy)


def files() -> list[Path]:
    folder = ROOT / "docs" / "my_project"
    return [each for each in sorted(folder.rglob("*.*")) if each.suffix in (".py", ".yaml")]


def test_the_page_shows_the_files_as_they_are():
    shown = re.findall(r"```(python|yaml)\n(.*?)```", PAGE, re.DOTALL)
    texts = [each.read_text() for each in files()]
    assert len(shown) >= 12
    for _, code in shown:
        code = re.sub(r"\A((import|from) .*\n)+\n+", "", code)  # a page shows the imports of its own part
        assert [text for text in texts if code in text], code
    for file in files():
        assert file.name in PAGE, file


def test_the_page_says_how_each_part_is_called():
    assert "| `env.wrappers.NAME` | `wrapper(env)` | `gymnasium.Wrapper` |" in PAGE
    calls, as_critic = 0, ("value", "discriminator", "predictor")
    assert "| `critic`, `value`, `discriminator`, `predictor` | `critic(env, actor)` |" in PAGE
    for part, row in (CALL_SPECS | WITHIN).items():
        call = ", ".join([*row.positional.split(), *(f"{each}=…" for each in sorted(row.keywords))])
        said = f"`{part.removesuffix('s') if part == 'transforms' else part}({call})`" in PAGE
        assert said or part in as_critic, part
        assert row.gives is None or row.gives in PAGE
        calls += said
    assert calls == len(CALL_SPECS | WITHIN) - len(as_critic)


def test_the_page_lists_the_keys_that_no_task_is_given():
    table = PAGE.partition("These keys under `env` are hydrl's own")[2].partition("\n\nAll others")[0]
    said = [each for row in table.splitlines()[4:] for each in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert {*said} == {"_target_", *signature(gymnasium_env).parameters} - {"kwargs"}


def test_a_wrapper_and_a_metric_are_set_from_the_shell(project):
    """The page's own words, but shorter; always the other way, to the right alone leads to the left."""
    words = ["env.wrappers.slippery.share=1.0", "+env.info_keys={distance: mean, cost: sum}"]
    words.append("eval.max_steps=50")
    done = typed("--config-dir=conf", "algo=my_ppo", "env=slippery", *words, *FAST, "hydra.run.dir=out")
    assert done.returncode == 0, done.stderr
    assert 0 < summary(Path("out"))["eval/distance"] <= 5
    assert 0 <= summary(Path("out"))["eval/cost"] <= 50
    _, _, evaluator = open_run(Path("out"), checkpoint="last", device="cpu", trust=True)
    env = evaluator.make_env(seed=0)
    start, task = env.reset(), env.base_env._env.unwrapped
    begun = task.place
    env.step(start.set("action", torch.tensor([0, 1])))
    assert (begun, task.place) == (3, 2)


@pytest.mark.parametrize(
    "choice",
    [
        ["env=line", "algo=ppo"],
        ["env=gym", "env.id=my_envs:Stairs-v0", "algo=ppo"],
        ["env=made", "algo=my_ppo"],
        ["env=meeting", "algo=ippo"],
        ["env=corridor", "algo=dqn", "actor=q_net", "minibatches.warmup_frames=0"],
        ["env=corridor", "algo=dqn", "encoder=shortcut", "minibatches.warmup_frames=0"],
        ["env=calculator", "algo=grpo", "collector.num_envs=128"],
    ],
)
def test_each_environment_is_trained_in(choice, shared_project, run):
    if "env=meeting" in choice:
        pytest.importorskip("pettingzoo")
    if "env=calculator" in choice:
        pytest.importorskip("transformers")
    user_dirs.add_folders([shared_project / "conf"])
    folder = run(user_dirs.searchpath([shared_project / "conf"]), *choice, *FAST, "total_frames=256")
    assert summary(folder)["frames"] == 256
    losses = (folder / "metrics.csv").read_text().splitlines()[0].split(",")
    assert ("loss/flat" in losses) == ("algo=my_ppo" in choice)
    assert ("train/q_value" in losses) == ("algo=dqn" in choice)


@pytest.mark.slow
def test_a_sweep_is_resumed_and_scored_from_another_folder(project, forget, monkeypatch):
    line = ["--config-dir=conf", "-m", "algo=my_ppo", "env=corridor", "seed=0", *FAST, "hydra.sweep.dir=out"]
    swept = typed(*line)
    assert swept.returncode == 0, swept.stderr
    monkeypatch.chdir("/")
    (folder,) = (project / "out").glob("my_ppo-corridor-seed0")
    assert user_dirs.saved_folders(folder) == [project / "conf"]
    with pytest.raises(UserError, match=r"names my_envs:Corridor-v0, .* add trust=true"):
        open_run(folder, checkpoint="last", device="cpu", trust=False)
    _, frames, evaluator = open_run(folder, checkpoint="last", device="cpu", trust=True)
    assert frames == 512
    returns = evaluator(frames, 3, 2).returns
    assert ((returns >= -5.01) & (returns < 0)).all()  # 50 steps of 0.1 at most
    evaluator.close()
    forget()
    resumed = typed(f"resume={folder}", "total_frames=768", "trust=true")
    assert resumed.returncode == 0, resumed.stderr
    assert (summary(folder)["frames"], summary(folder)["resumed_at_frames"]) == (768, [512])


@pytest.mark.slow
def test_a_run_of_an_own_task_whose_discount_follows_from_its_length_is_resumed_as_the_page_says(project):
    """The page's own words; the task's module must be looked at again for the same discount."""
    begun = typed("--config-dir=conf", "algo=ppo", "env=corridor", *FAST, "hydra.run.dir=out")
    assert begun.returncode == 0, begun.stderr
    resumed = ["resume=out", "--config-dir=conf", "total_frames=768"]
    process = start(*resumed, script=str(ROOT / "train.py"), cwd=project)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert "everything continues exactly" in output
    assert "gamma: 0.95" in (project / "out" / "config_resolved.yaml").read_text()
    assert summary(project / "out")["frames"] == 768


def test_a_search_draws_from_ranges_of_one_s_own_and_its_runs_find_the_folder(project):
    for words in (["--config-dir", "conf"], ["hydra.searchpath=[file://conf]"]):
        plan = search_space.read_plan([*words, "algo=my_ppo", "env=corridor"])
        assert set(plan.space) == {"actor.width", "loss.module.flat"}
        assert plan.overrides == [
            f"hydra.searchpath=[file://{project / 'conf'}]",
            "algo=my_ppo",
            "env=corridor",
        ]
        assert plan.settings.total_frames == 10_240  # of the folder's tuned numbers


# What is added to algo=my_ppo env=corridor, and what the answer holds.
MISTAKES = {
    "+loss.module.flatt=1": "my_losses.FlatLoss takes no flatt. Write loss.module.flat=1.",
    "+loss.extra=1": "loss.extra=1: no such key",
    "+loss.keys.my_key=a": "loss.keys.my_key=a: no such key",
    "+loss.networks.other=actor": "my_losses.FlatLoss takes no other. loss.networks has actor_network, "
    "critic_network",
    "+actor.widthh=1": "actor.widthh=1: my_nets.actor takes no widthh. Write actor.width=1.",
    "+actor.num_cells=[3]": "actor.num_cells=[3]: my_nets.actor takes no num_cells. actor has width",
    "+critic.init=null": "critic.init=null: my_nets.critic takes no init",
    "+transforms.blind.shar=1": "transforms.blind.shar=1: my_transforms.Blind takes no shar. Write "
    "transforms.blind.share=1.",
    "+env.longer=3": "env.longer=3: my_envs:Corridor-v0 takes no longer. ",
    "+extra=1": "extra=1: no such key",
    "+compatible_with.actr=[net]": "compatible_with.actr=[net]: ",
    "action_spaces=[neither]": "action_spaces",
    "critic=state_value": "critic=state_value: does not go with algo=my_ppo. Use critic=net",
    "actor=stochastic": "actor=stochastic: does not go with algo=my_ppo. Use actor=net",
    "actor._target_=my_nets.Net": "my_nets.Net: this class is no TensorDictModuleBase. Name one, or a "
    "function that makes one when called as actor(env, …)",
    "critic._target_=my_nets.actor": "the call critic(env, actor, …) fails: too many positional",
    "loss.module._target_=my_nets.Net": "my_nets.Net: this class is no LossModule",
    "transforms.blind._target_=my_nets.Net": "my_nets.Net: this class is no Transform",
    "+env.wrappers.slip._target_=my_envs.Slippery": "env.wrappers.slip._target_=my_envs.Slippery: the call "
    "wrapper(env, …) fails: missing a required argument: 'share'",
    "+env.wrappers.slip._target_=my_envs.Slippery +env.wrappers.slip.shares=1": "my_envs.Slippery takes no "
    "shares. Write env.wrappers.slip.share=",
    "+env.wrappers.slip._target_=my_envs.Corridor": "my_envs.Corridor: this class is no Wrapper. Name one",
    "env._target_=my_envs.Corridor ~env.id": "my_envs.Corridor: this class is no EnvBase. Use env=gym "
    "env.id=my_envs:Corridor-v0",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_what_does_not_fit_is_refused(words, shared_project):
    user_dirs.add_folders([shared_project / "conf"])
    base = [user_dirs.searchpath([shared_project / "conf"]), "algo=my_ppo", "env=corridor"]
    with pytest.raises(UserError) as raised:
        settings(*base, *words.split())
    assert MISTAKES[words] in str(raised.value)


def test_fits_may_be_left_out(project):
    algo = project / "conf" / "algo" / "my_ppo.yaml"
    algo.write_text(re.sub(r"compatible_with:\n(  .*\n)+", "", algo.read_text()))
    user_dirs.add_folders([project / "conf"])
    chosen = settings(
        user_dirs.searchpath([project / "conf"]), "algo=my_ppo", "env=corridor", "actor=categorical"
    )
    assert (chosen.compatible_with, chosen.loss.compatible_with) == ({}, {})


def test_what_a_builder_gives_is_looked_at(project):
    user_dirs.add_folders([project / "conf"])
    chosen = settings(user_dirs.searchpath([project / "conf"]), "algo=my_ppo", "env=corridor")
    env = make_env(chosen.build("env"), chosen.transform_builders)
    import my_nets

    line = settings(user_dirs.searchpath([project / "conf"]), "algo=my_ppo", "env=line")
    kind = action_kind(make_env(line.build("env"), []))
    with pytest.raises(
        UserError, match=r"algo=my_ppo: acts in discrete action spaces, and env=line has contin"
    ):
        check_action_space(line, kind)
    with pytest.raises(UserError, match=r"actor: is a Net\. Wrap it in a TensorDictModule"):
        build_network("actor", lambda env: my_nets.Net(2, 8), env)
    with pytest.raises(UserError, match=r"actor: writes .* but not action"):
        build_network("actor", lambda env: my_nets.critic(env, None, width=8), env)
