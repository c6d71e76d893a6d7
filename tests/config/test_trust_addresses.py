"""Addresses that came with a run folder."""

import shutil
from pathlib import Path

import pytest
from omegaconf import OmegaConf

import hydrl
from hydrl.config.trust import check_addresses, check_trust
from hydrl.errors import UserError
from tests.conftest import typed


@pytest.mark.parametrize("group", ["collector", "eval"])
def test_an_address_of_a_run_folder_needs_trust_unless_typed(group: str) -> None:
    key = f"{group}.address"
    values = {group: {"address": "10.0.0.1:6379"}}
    with pytest.raises(UserError, match=rf"{key}=10\.0\.0\.1:6379 .*trust=true"):
        check_addresses(values, "resume=run", ["seed=1"])
    check_addresses(values, "resume=run", [f"{key}=10.0.0.1:6379"])
    check_addresses({group: {"address": "auto"}}, "resume=run")
    check_addresses({group: {"address": None}}, "resume=run")


@pytest.mark.parametrize(
    "place", ["http://10.0.0.1/x", "ws+unix://10.0.0.1", "postgresql://a@b/c", "S3://bucket"]
)
def test_a_url_of_a_run_folder_needs_trust_wherever_it_stands(place: str) -> None:
    for values in ({"env": {"kwargs": {"a.b": place}}}, {"logger": {"wandb": {"tags": ["a", place]}}}):
        with pytest.raises(UserError, match=r"resume=run: \S+=.*//.* reaches another machine\. .*trust=true"):
            check_addresses(values, "resume=run", ["seed=1"])
    check_addresses({"env": {"server": place}}, "resume=run", [f"env.server={place}"])
    check_addresses({"env": {"server": place}}, "resume=run", [f"env={{server:{place}}}"])
    nested = {"transforms": {"x": [{"url": place}]}}
    with pytest.raises(UserError, match=r"transforms\.x=.* reaches another machine"):
        check_addresses(nested, "resume=run", [f"resume={place}", "transforms.y=1"])


def test_names_and_paths_are_no_addresses() -> None:
    wandb = {"entity": "somebody", "project": "hydrl", "mode": "online", "tags": ["a:b"]}
    values = {"logger": {"wandb": wandb}, "data": {"path": "file:///a/b"}, "env": {"id": "ALE/Pong-v5"}}
    check_addresses(values, "resume=run")


@pytest.mark.parametrize("name", ["R3MTransform", "VC1Transform", "VIPTransform"])
def test_what_downloads_weights_or_code_is_foreign(name: str) -> None:
    with pytest.raises(UserError, match=f"names torchrl.envs.{name}, which"):
        check_trust({"transforms": {"x": {"_target_": f"torchrl.envs.{name}"}}}, "run=x")


@pytest.mark.parametrize(
    "words",
    [
        ["collector=ray", "collector.address=10.0.0.1:6379"],
        ["eval.backend=ray", "eval.address=10.0.0.1:6379"],
        ["+env.server=http://10.0.0.1:80/x"],
        ["logger=wandb", "logger.wandb.tags=[https://10.0.0.1/x]"],
        ["logger=wandb", "+logger.wandb.base_url=https://10.0.0.1/x"],
    ],
    ids=lambda words: words[-1].partition("=")[0].lstrip("+"),
)
def test_going_on_with_a_folder_reaches_no_machine_that_it_names(
    words: list[str], half: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(half, tmp_path / "run")
    file = folder / ".hydra" / "overrides.yaml"
    OmegaConf.save(OmegaConf.create([*OmegaConf.load(file), *words]), file)
    done = typed(f"resume={folder}", "total_frames=192")
    assert done.returncode == 2, done.stdout
    key = words[-1].partition("=")[0].lstrip("+")
    assert f"{key}=" in done.stderr
    assert "reaches another machine. Type it yourself, or add trust=true" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_playing_a_policy_reaches_no_machine_that_its_folder_names(half: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(half, tmp_path / "run")
    config = OmegaConf.load(folder / "config_resolved.yaml")
    config.env.server = "http://10.0.0.1:80/x"
    OmegaConf.save(config, folder / "config_resolved.yaml")
    with pytest.raises(
        UserError, match=r"^run=.*: env\.server=http://10\.0\.0\.1:80/x reaches another machine"
    ):
        hydrl.load(folder)
    config.env.pop("server")
    config.eval.address = "10.0.0.1:6379"  # which nobody joins to play a policy
    OmegaConf.save(config, folder / "config_resolved.yaml")
    assert hydrl.load(folder).frames == 128
