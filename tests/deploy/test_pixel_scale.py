"""A run scales pictures as it records, and one that records nothing of it as runs did then."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

import hydrl
from hydrl.config.tree import find
from hydrl.deploy.load import read_settings
from hydrl.run.checkpoint import archive as checkpoint
from tests.conftest import SMALL_PPO, logged, settings, typed
from tests.fakes.any_space_env import KINDS

WORDS = [*SMALL_PPO, "transforms=plain", "encoder.features=8", "critic.encoder=own"]
WORDS += ["env=gym", "env.id=tests.fakes.any_space_env:Any-v0"]


def scales(settings: dict[str, Any]) -> set[str]:
    """How each of three encoders scales."""
    return {find(settings, f"{part}.scale") for part in ("encoder", "actor.encoder", "critic.encoder")}


def without_scale(values: Any) -> Any:
    """Nested settings as they were written before there was the key."""
    if isinstance(values, dict):
        return {
            key: without_scale(value) for key, value in values.items() if (key, value) != ("scale", "bytes")
        }
    return values


def as_before(folder: Path) -> None:
    """Writes a run folder over as one from before there was the key."""
    for name in ("config_resolved.yaml", ".hydra/config.yaml"):
        values = OmegaConf.to_container(OmegaConf.load(folder / name))
        OmegaConf.save(OmegaConf.create(without_scale(values)), folder / name)
    overrides = folder / ".hydra" / "overrides.yaml"
    overrides.write_text(overrides.read_text().replace("- encoder.scale=bytes\n", ""))
    for archive in checkpoint.archives(folder):
        with zipfile.ZipFile(archive) as file:
            members = {name: file.read(name) for name in file.namelist()}
        manifest = json.loads(members["manifest.json"])
        manifest["metadata"]["settings"] = without_scale(manifest["metadata"]["settings"])
        with zipfile.ZipFile(archive, "w") as file:
            for name, content in (members | {"manifest.json": json.dumps(manifest).encode()}).items():
                file.writestr(name, content)


def test_a_run_from_before_predicts_and_goes_on_by_the_same_numbers(tmp_path):
    words = ["algo=ppo", *WORDS, "+env.kind=floats", "encoder.scale=bytes", "anneal_frames=256"]
    for frames, name in ((256, "unbroken"), (128, "half")):
        done = typed(*words, f"total_frames={frames}", f"hydra.run.dir='{tmp_path / name}'")
        assert done.returncode == 0, done.stderr
    half = tmp_path / "half"
    observations = np.stack([KINDS["floats"][0].sample() for _ in range(8)])
    expected = hydrl.load(half, checkpoint="last", trust=True).predict(observations)
    before = shutil.copytree(half, tmp_path / "before")
    as_before(before)
    assert "scale: b" not in (before / "config_resolved.yaml").read_text()
    assert np.array_equal(hydrl.load(before, checkpoint="last", trust=True).predict(observations), expected)
    done = typed(f"resume={before}", "encoder.scale=bounds", "trust=true")
    assert done.returncode == 2
    assert "encoder.scale=bounds: the run was started with actor" in done.stderr
    for frames in (192, 256):  # resumed, and what was resumed resumed
        done = typed(f"resume={before}", f"total_frames={frames}", "trust=true")
        assert done.returncode == 0, done.stderr
        assert "everything continues exactly" in done.stdout.replace("\n", " ")
    assert scales(read_settings(before, trust=True).shown) == {"bytes"}
    assert logged(before)[-1] == logged(tmp_path / "unbroken")[-1]


@pytest.mark.parametrize("kind", ["floats", "picture"])
def test_weights_that_were_learned_from_another_scale_are_told(kind, run, capsys):
    words = ["algo=ppo", *WORDS, "total_frames=64", f"+env.kind={kind}"]
    first = run(*words, "encoder.scale=bytes", folder="first")
    capsys.readouterr()
    line = "the actor was trained on images of another scale; encoder.scale=bytes restores it"
    for scale, other in (("bounds", kind == "floats"), ("bytes", False)):
        run(
            *words,
            f"init_from.run={first}",
            "init_from.checkpoint=last",
            f"encoder.scale={scale}",
            folder=scale,
        )
        assert (line in " ".join(capsys.readouterr().out.split())) is other


def test_a_new_run_records_that_it_scales_by_bounds_and_a_wrong_word_is_told():
    assert scales(settings("algo=ppo", *WORDS, "+env.kind=floats").shown) == {"bounds"}
    with pytest.raises(hydrl.errors.UserError, match=r"encoder.scale=255: .*bounds.*bytes"):
        settings("algo=ppo", *WORDS, "+env.kind=floats", "encoder.scale=255")
