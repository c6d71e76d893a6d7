"""Every family of environments, as the learner sees it, against its raw simulator stepped by hand."""

import ast
import importlib
import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import ROOT
from tests.envs.families.case import Case, Replay, Rows, replay
from tests.envs.families.collected import collect

SEED = 11
HERE = Path(__file__).parent
FILES = sorted({*HERE.glob("*.py")} - {*HERE.glob("test_*.py")})
REFERENCES = [file for file in FILES if file.stem not in ("collected", "guards")]
MODULES = [importlib.import_module(f"tests.envs.families.{file.stem}") for file in FILES]


def is_fast(case: Case, num_envs: int) -> bool:
    """Whether the fast tests have it."""
    return not case.slow and num_envs in (case.num_envs if case.fast_num_envs is None else case.fast_num_envs)


CASES = {case.name: case for module in MODULES for case in getattr(module, "CASES", [])}
GUARDS = [guard for module in MODULES for guard in getattr(module, "GUARDS", [])]
RUNS = [
    pytest.param(case.name, num_envs, marks=[] if is_fast(case, num_envs) else pytest.mark.slow)
    for case in CASES.values()
    for num_envs in case.num_envs
]


def first_difference(ours: np.ndarray, raw: np.ndarray, rows: np.ndarray) -> str:
    """The first row of ``rows``, ``[envs, time]``, in which two arrays differ; empty if none does."""
    raw = raw.reshape(ours.shape).astype(ours.dtype)
    unlike = ((ours != raw) & ((ours == ours) | (raw == raw))).reshape(*rows.shape, -1) & rows[..., None]
    if not unlike.any():
        return ""
    env, step, place = min(np.argwhere(unlike), key=lambda position: position[1])
    numbers = [float(array[env, step].ravel()[place]) for array in (ours, raw)]
    return f"{unlike.any(-1).sum()} of {rows.sum()} rows, first {env=} {step=} {place=}: {numbers}"


def assert_equal(ours: dict, raw: dict, rows: np.ndarray) -> None:
    """Fails if entries differ in any of ``rows``, or are others."""
    assert {*ours} == {*raw}
    differences = {key: first_difference(ours[key], raw[key], rows) for key in raw}
    assert not any(differences.values()), differences


def observed(entries: dict) -> dict:
    """Entries without action masks."""
    return {key: array for key, array in entries.items() if "action_mask" not in (key, key[-1])}


def check_observations(case: Case, ours: Rows, raw: Replay) -> None:
    """Actions are chosen from the raw observations, of new episodes too, and lead to the raw ones."""
    done = raw.ends["done"]
    assert_equal(observed(ours.before), observed(raw.before), np.ones_like(done))
    assert_equal(observed(ours.after), observed(raw.after), ~done)
    assert any(np.ptp(array.astype(float), axis=1).any() for array in observed(raw.before).values())


def check_last_observation(case: Case, ours: Rows, raw: Replay) -> None:
    """The last observation of an episode is in its own row; the next row has that of the next episode."""
    done = raw.ends["done"]
    assert done.sum() >= 3 * len(case.ends)
    assert_equal(observed(ours.after), observed(raw.after), done)


def check_rewards(case: Case, ours: Rows, raw: Replay) -> None:
    """Rewards are the simulator's."""
    assert_equal(ours.rewards, raw.rewards, np.ones_like(raw.ends["done"]))


def check_ends(case: Case, ours: Rows, raw: Replay) -> None:
    """Terminations and truncations are apart, three at least of each that the task has."""
    assert_equal(ours.ends, raw.ends, np.ones_like(raw.ends["done"]))
    counts = {name: int(ours.ends[name].sum()) for name in case.ends}
    assert min(counts.values()) >= 3, counts
    assert (ours.ends["done"] == ours.ends["terminated"] | ours.ends["truncated"]).all()


def check_bounds(case: Case, ours: Rows, raw: Replay) -> None:
    """Observations are in hydrl's bounds, actions in the simulator's; continuous ones come near both."""
    for key, (low, high) in ours.bounds.items():
        assert (low <= ours.before[key]).all()
        assert (ours.before[key] <= high).all()
    assert raw.in_space.all()
    if raw.low is not None:
        actions = ours.actions["action"].reshape(-1, *raw.low.shape)
        margin = 0.1 * (raw.high - raw.low)
        assert (actions.min(0) < raw.low + margin).all()
        assert (actions.max(0) > raw.high - margin).all()


def check_masks(case: Case, ours: Rows, raw: Replay) -> None:
    """Masks are the simulator's, and no invalid action is taken."""
    masks = {key: array for key, array in raw.before.items() if key not in observed(raw.before)}
    assert masks.keys() == ours.before.keys() - observed(ours.before).keys()
    assert bool(masks) == (case.mask is not None)
    for key, mask in masks.items():
        assert not mask.all()
        assert not first_difference(ours.before[key], mask, np.ones_like(raw.ends["done"]))
        assert not first_difference(ours.after[key], raw.after[key], ~raw.ends["done"])
    assert raw.valid.all()


def check_seeds(case: Case, ours: Rows, raw: Replay) -> None:
    """A seed repeats a run; episodes of another seed, and of other environments, begin differently."""
    num_envs, steps = ours.ends["done"].shape[0], 128
    again, other = (collect(case, num_envs, seed, steps) for seed in (SEED, SEED + 100))
    for name in ("before", "actions", "after", "rewards", "ends"):
        first = {key: array[:, :steps] for key, array in getattr(ours, name).items()}
        assert_equal(getattr(again, name), first, np.ones((num_envs, steps), bool))
    if not case.random_starts:
        assert any((other.actions[key] != again.actions[key]).any() for key in again.actions)
        return
    first_env, *others = [first_observations(again, env) for env in range(num_envs)]
    for observations in (first_observations(other, 0), *others):
        episodes = min(len(first_env), len(observations))
        assert (first_env[:episodes] != observations[:episodes]).any()


def first_observations(rows: Rows, env: int) -> np.ndarray:
    """The first observations of an environment's episodes, ``[episodes, numbers]``."""
    begins = np.flatnonzero(np.append(True, rows.ends["done"][env, :-1]))
    entries = observed(rows.before).values()
    return np.concatenate([array[env, begins].reshape(len(begins), -1) for array in entries], 1)


CHECKS = {
    name.removeprefix("check_"): check for name, check in [*globals().items()] if name.startswith("check_")
}


def both_sides(name: str, num_envs: int, steps: int | None = None) -> tuple[Case, Rows, Replay]:
    """A case, its rows by hydrl, see :func:`collect`, and the raw simulator's by the same actions."""
    case = CASES[name]
    if importlib.util.find_spec(case.package) is None:
        is_complete = os.environ.get("HYDRL_FAMILIES") == "all"  # as make test-families says
        (pytest.fail if is_complete else pytest.skip)(f"{case.package} is not installed")
    ours = collect(case, num_envs, SEED, steps)
    return case, ours, replay(case, ours, SEED)


@pytest.mark.parametrize(("name", "num_envs"), RUNS)
def test_a_family_is_its_simulator(name, num_envs):
    both, failures = both_sides(name, num_envs), dict[str, str]()
    for check_name, check in CHECKS.items():
        try:
            check(*both)
        except AssertionError as error:
            failures[check_name] = str(error)
    assert not failures


@pytest.mark.slow
@pytest.mark.parametrize("guard", GUARDS, ids=lambda guard: guard.what)
def test_without_a_guard_its_check_fails(guard, monkeypatch):
    monkeypatch.setattr(guard.target.replace(":", "."), guard.without)
    both = both_sides(guard.case, guard.num_envs, CASES[guard.case].steps)
    with pytest.raises(AssertionError):
        CHECKS[guard.check](*both)


@pytest.mark.parametrize("file", REFERENCES, ids=lambda file: file.stem)
def test_a_reference_imports_nothing_of_hydrl(file):
    imports = [
        node
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
    ]
    modules = {getattr(node, "module", None) or name.name for node in imports for name in node.names}
    ours = {module for module in modules if module.partition(".")[0] in ("hydrl", "train")}
    assert not ours
    helpers = {module for module in modules if module.startswith("tests.")} - {"tests.envs.families.case"}
    assert all("hydrl" not in (ROOT / f"{helper.replace('.', '/')}.py").read_text() for helper in helpers)
