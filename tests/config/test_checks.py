import tomllib

import pytest
from conftest import ROOT, settings
from omegaconf import OmegaConf

from hydrl.config import CONFIGS
from hydrl.config.checks import ACTS_IN, EXTRAS, LIMITS, RANGES, named_targets, names_of
from hydrl.config.mistakes import choices, paths
from hydrl.config.settings import algorithms
from hydrl.errors import UserError


def test_every_range_is_that_of_a_key_somebody_can_set():
    known: set[str] = set()
    for file in CONFIGS.rglob("*.yaml"):
        content = OmegaConf.to_container(OmegaConf.load(file))
        group = file.relative_to(CONFIGS).parts[0]
        known |= set(paths(content)) | set(paths({group: content}))
    for name in choices(CONFIGS / "encoder"):  # mounted in each network
        content = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"encoder/{name}.yaml"))
        known |= {f"{network}.{key}" for network in ("actor", "critic") for key in content}
    ranges = {f"{part}.{key}" for part, kinds in RANGES.items() for key in kinds}
    assert {*ranges, *(key for pair in LIMITS for key in pair[:2])} <= known
    assert len(ranges) >= 30


@pytest.mark.parametrize("algo", algorithms())
def test_what_fits_an_algorithm_exists_and_holds_its_own_defaults(algo: str):
    task = "cartpole" if "discrete" in algorithms()[algo] else "hopper"
    chosen = settings(f"algo={algo}", f"env={task}").model_dump()
    assert {"loss", "actor", "critic", "buffer"} <= chosen["fits"].keys()
    for group, fitting in chosen["fits"].items():
        able = {each or "null" for each in fitting}
        assert able <= {*choices(CONFIGS / group), "null"}
        assert set(names_of(group, chosen[group])) & able, group


def test_a_choice_is_told_from_another_built_alike():
    for name in ("tanh_normal", "state_independent"):
        assert names_of("actor", settings("env=hopper", f"actor={name}").actor)[0] == name
    assert names_of("actor", {"_target_": "my.actor"}) == []
    assert names_of("critic", None) == ["null"]


def test_actors_and_extras_named_in_the_tables_exist():
    targets = {each for name in choices(CONFIGS / "actor") for each in named_targets("actor", name)}
    assert ACTS_IN.keys() <= targets
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(EXTRAS.values()) <= extras.keys()
    for target, package in EXTRAS.items():  # a choice, an extra and a package have one name
        assert named_targets("logger", package) == {target}


def test_a_run_never_writes_over_another(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".hydra").mkdir()
    settings("env=cartpole", run_dir=tmp_path)  # a run that never came to save anything
    (tmp_path / "checkpoints" / "checkpoint-000000000010").mkdir()
    with pytest.raises(UserError, match=f"holds a run already; go on with it by resume={tmp_path}"):
        settings("env=cartpole", run_dir=tmp_path)
