"""Classes of the user's own are recorded by content: where one has changed, a line says so by name."""

import importlib
import linecache
import sys
from itertools import count
from types import ModuleType

import gymnasium
import pytest

import hydrl
from hydrl.api import python_classes
from hydrl.run.checkpoint import archive
from hydrl.run.checkpoint.user_classes import content, record_classes
from tests.conftest import SMALL_PPO, settings

TASK = """
import gymnasium, numpy as np
class Line(gymnasium.Env):
    limit = 5
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}
    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), 1.0, self.steps == self.limit, False, {}
"""
SAME = TASK.replace("import gymnasium, numpy as np", "import gymnasium\nimport numpy as np").replace(
    "    def step", "\n    # a step of the line\n    def step"
)
OTHER = {
    "a number in a method": TASK.replace("1.0", "2.0"),
    "a name in a method": TASK.replace("steps == self", "steps >= self"),
    "an attribute": TASK.replace("limit = 5", "limit = 6"),
}


CELLS = count()


def defined(source: str, *, cell: bool = False) -> type[gymnasium.Env]:
    """The class that a shell or a notebook's cell defines; of a cell Python knows the source of functions."""
    name, namespace = f"<cell {next(CELLS)}>", {"__name__": "__main__"}
    if cell:
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    exec(compile(source, name, "exec"), namespace)
    return namespace["Line"]


def recorded(made: type) -> dict[str, str]:
    return record_classes(settings(*SMALL_PPO, *python_classes.to_overrides({"env": made})).shown)


@pytest.mark.parametrize("cell", [False, True])
@pytest.mark.parametrize("what", OTHER)
def test_a_class_without_a_file_is_known_by_what_it_says(what, cell):
    first = recorded(defined(TASK, cell=cell))
    assert [*first] == ["Line"]
    assert recorded(defined(SAME, cell=cell)) == first
    assert recorded(defined(OTHER[what], cell=cell))["Line"] != first["Line"]


def test_a_class_of_a_module_is_read_with_those_it_inherits_from(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    file = tmp_path / "own_wrappers.py"
    base = "import gymnasium\nclass Base(gymnasium.Wrapper):\n    share = 0.5\n"
    file.write_text(f"{base}class Half(Base):\n    pass\n")
    name = "own_wrappers.Half"
    chosen = settings(*SMALL_PPO, "env=cartpole", f"+env.wrappers.half._target_={name}")
    first = record_classes(chosen.shown)
    assert [*first] == [name]
    file.write_text(f"# as it was\n{base}class Half(Base):\n\n    pass\n")
    importlib.reload(sys.modules["own_wrappers"])
    assert record_classes(chosen.shown) == first
    file.write_text(f"{base.replace('0.5', '0.25')}class Half(Base):\n    pass\n")
    importlib.reload(sys.modules["own_wrappers"])
    assert record_classes(chosen.shown)[name] != first[name]


def test_two_classes_of_one_name_in_a_file_are_told_apart(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "twice.py").write_text(f"{TASK}\nFirst = Line\n{OTHER['a number in a method']}")
    twice = importlib.import_module("twice")
    assert content(twice.First) != content(twice.Line)
    del sys.modules["twice"]


def test_what_was_defined_anew_since_is_what_a_run_goes_on_with(tmp_path, monkeypatch, capsys):
    cells = ModuleType("cells")
    monkeypatch.setitem(sys.modules, "cells", cells)
    exec(TASK, vars(cells))
    run = hydrl.train(*SMALL_PPO, env=cells.Line, folder=tmp_path / "run")
    assert run.evaluate(1)["returns"].tolist() == [5.0]
    exec(OTHER["a number in a method"], vars(cells))
    assert run.evaluate(1)["returns"].tolist() == [10.0]
    assert "warning: Line has changed since" in capsys.readouterr().err
    run.resume(total_frames=384)
    assert "warning: Line has changed since" in capsys.readouterr().err
    assert run.summary["eval/return_mean"] == 10
    cells.Line = None
    assert run.evaluate(1)["returns"].tolist() == [10.0]


def test_hydrl_s_and_gymnasium_s_own_are_not_recorded():
    assert record_classes(settings(*SMALL_PPO, "env=cartpole").shown) == {}


def test_a_run_its_fork_its_weights_and_its_policy_say_that_the_class_has_changed(tmp_path, capsys):
    def said() -> list[str]:
        return [line for line in capsys.readouterr().err.splitlines() if "has changed" in line]

    first, other = defined(TASK), OTHER["a number in a method"]
    run = hydrl.train(*SMALL_PPO, env=first, folder=tmp_path / "run")
    then = run.summary["classes"]["Line"]
    run.resume(total_frames=320, env=defined(SAME))
    hydrl.train(*SMALL_PPO, env=first, init_from=run, folder=tmp_path / "same")
    hydrl.load(run.folder, trust=True)
    assert said() == []
    now = recorded(defined(other))["Line"]
    line = f"warning: Line has changed since {archive.find(run.folder, 'last')} was saved: its digest "
    line += f"was {then} and is {now}; its present code is used"
    hydrl.train(*SMALL_PPO, env=defined(other), folder=tmp_path / "weights", init_from=run)
    assert said() == [line]
    hydrl.train("total_frames=384", env=defined(other), folder=tmp_path / "fork", resume=run)
    assert said() == [f"{line} with the class attributes that were saved"]
    assert run.evaluate(1)["returns"].tolist() == [10.0]
    assert said() == [line]
    run.resume(total_frames=384, env=defined(other))
    assert said() == [f"{line} with the class attributes that were saved"]
    assert run.summary["classes"] == {"Line": now}
    run.resume(total_frames=448)
    assert said() == []


def test_a_checkpoint_that_recorded_no_classes_goes_on_without_a_word(tmp_path, monkeypatch, capsys):
    save = archive.save

    def older(run, states, metadata, **options):
        return save(run, states, {k: v for k, v in metadata.items() if k != "classes"}, **options)

    with monkeypatch.context() as patch:
        patch.setattr(archive, "save", older)
        run = hydrl.train(*SMALL_PPO, env=defined(TASK), folder=tmp_path / "run")
    assert run.resume(total_frames=320, env=defined(OTHER["an attribute"])).summary["frames"] == 320
    assert "has changed" not in capsys.readouterr().err
