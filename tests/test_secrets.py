"""Canaries stand for secrets: they arrive where they are used, and no byte of them anywhere else."""

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import hydra
import pytest
import yaml
from conftest import ROOT, settings
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import train
from hydrl import cli, secrets
from hydrl.config import CONFIGS, load
from hydrl.errors import UserError
from hydrl.finished import read_settings

CANARIES = ["canary-one-5f1c", "canary-two-83be", "canary-nested-d09a"]
VARIABLE = "canary-variable-77e2"
PLACE = f"wss://me:{VARIABLE}@example.org"


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


DIGESTS = [*map(digest, [*CANARIES, CANARIES[2] + PLACE])]

# It is built only from the real values.
VAULT = f"""
import hashlib

from toys import Toy


class Vault(Toy):
    def __init__(self, api_key, login, again, place, device="cpu"):
        for each in (api_key, again, login["token"] + place):
            assert hashlib.sha256(each.encode()).hexdigest() in {DIGESTS}
        super().__init__(device=device)
"""


@dataclass
class Ran:
    folder: Path
    code: int
    output: str


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", {})


def composed(*overrides: str) -> DictConfig:
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return compose("train", overrides=["run_dir=unused", *overrides])


def typed_in_a_shell(folder: Path, *words: str, timeout: int = 100) -> Ran:
    """``train.py``, where the environment has the variable."""
    (folder.parent / "vault.py").write_text(VAULT)
    environ = {**os.environ, "MY_TOKEN_VAR": VARIABLE, "OMP_NUM_THREADS": "1"}
    environ["PYTHONPATH"] = f"{folder.parent}{os.pathsep}{ROOT / 'tests'}"
    command = [sys.executable, "train.py", *words, f"hydra.run.dir={folder}", f"hydra.sweep.dir={folder}"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env=environ, timeout=timeout, check=False
    )
    return Ran(folder, done.returncode, done.stdout + done.stderr)


def vault(api_key: str) -> list[str]:
    return [
        "env=custom",
        "env._target_=vault.Vault",
        f"+env.api_key={api_key}",
        f"+env.login={{token: {CANARIES[2]}}}",
        "+env.place='wss://me:${oc.env:MY_TOKEN_VAR}@example.org'",
        f"+env.again={CANARIES[2]}",  # the same text under another key
        "debug=fast",
        "logger=wandb",
        "logger.mode=offline",
    ]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    words = [*vault(CANARIES[0]), "hydra.verbose=true", "hydra/job_logging=default"]
    return typed_in_a_shell(tmp_path_factory.mktemp("alone") / "run", *words)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    words = ["-m", *vault(f"{CANARIES[0]},{CANARIES[1]}"), "hydra/hydra_logging=default"]
    return typed_in_a_shell(tmp_path_factory.mktemp("sweep") / "runs", *words)


def assert_kept(ran: Ran) -> None:
    """No canary on the screen, in a file, or in a file's name."""
    for canary in [*CANARIES, VARIABLE]:
        assert canary not in ran.output
        holders = [
            path
            for path in ran.folder.rglob("*")
            if canary in str(path) or (path.is_file() and canary.encode() in path.read_bytes())
        ]
        assert not holders


def test_a_run_uses_its_secrets_and_keeps_them(alone: Ran):
    assert alone.code == 0, alone.output
    assert list(alone.folder.glob("wandb/offline-run-*/*.wandb"))
    assert any(alone.folder.glob("checkpoints/*"))
    assert_kept(alone)


def test_a_sweep_uses_its_secrets_and_keeps_them(sweep: Ran):
    assert sweep.code == 0, sweep.output
    assert len(list(sweep.folder.glob("*/wandb/offline-run-*/*.wandb"))) == 2
    assert (sweep.folder / "multirun.yaml").exists()
    assert "env.api_key=***" in next(line for line in sweep.output.splitlines() if line.startswith("#0: "))
    assert_kept(sweep)


def test_what_was_typed_and_resolved_can_still_be_read(alone: Ran):
    hydra = alone.folder / ".hydra"
    typed = yaml.safe_load((hydra / "overrides.yaml").read_text())
    assert "+env.api_key=***" in typed
    assert "+env.place='wss://me:${oc.env:MY_TOKEN_VAR}@example.org'" in typed
    assert "env._target_=vault.Vault" in typed
    for file in (hydra / "config.yaml", alone.folder / "config_resolved.yaml"):
        config = yaml.safe_load(file.read_text())
        assert config["env"]["api_key"] == "***"
        assert config["env"]["login"] == {"token": "***"}
        assert config["env"]["place"] == "wss://me:${oc.env:MY_TOKEN_VAR}@example.org"
        assert config["actor"]["in_keys"] == ["observation"]  # entries, not secrets
    assert yaml.safe_load((hydra / "hydra.yaml").read_text())["hydra"]["job"]["name"] == "train"


@pytest.mark.parametrize(
    "words",
    [
        ["env=cartpole", f"+env.api_key={CANARIES[0]}"],  # gymnasium quotes what it refuses
        ["env=cartpole", "+env.place=${oc.env:MY_TOKEN_VAR}"],
        ["total_frames=${oc.env:MY_TOKEN_VAR}"],
        [f"optim.api_key={CANARIES[0]}"],
        [f"+optim.api_key={CANARIES[0]}"],
        [f"+optim={{api_key: {CANARIES[0]}}}"],
        [f"env.api_key={CANARIES[0]} {CANARIES[1]}=(", "seed=["],
        [f"+env.api_key={CANARIES[0]},{CANARIES[1]}"],
        [f"+env.api_key={CANARIES[0]}", f"env.api_key=[{CANARIES[1]}"],
        ["--cfg", "job", f"+env.api_key={CANARIES[0]}", "+env.place=${oc.env:MY_TOKEN_VAR}"],
        ["--cfg", "job", "--resolve", f"+env.api_key={CANARIES[0]}", "+env.place=${oc.env:MY_TOKEN_VAR}"],
    ],
)
def test_no_answer_holds_a_secret(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    job = hydra.main(version_base="1.3", config_path=str(CONFIGS), config_name="train")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # put back what cli.run sets
    monkeypatch.setenv("MY_TOKEN_VAR", VARIABLE)
    monkeypatch.setattr(sys, "argv", ["train.py", *words, f"hydra.run.dir={tmp_path / 'run'}"])
    code = cli.run(job(train.main.__wrapped__), CONFIGS)
    printed = capsys.readouterr()
    ran = Ran(tmp_path, code, printed.out + printed.err)
    assert ran.code == (0 if "--cfg" in words else 2)
    assert "Traceback" not in ran.output
    assert "***" in ran.output or "${oc.env:MY_TOKEN_VAR}" in ran.output
    assert_kept(ran)


def test_a_traceback_holds_no_secret(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def fail(cfg: DictConfig) -> None:
        raise RuntimeError(f"{load(cfg).env['api_key']} was refused")

    cli.job(fail)(composed("env=cartpole", f"+env.api_key={CANARIES[0]}"))
    assert "RuntimeError: *** was refused" in (answer := capsys.readouterr().err)
    assert CANARIES[0] not in answer


def test_a_variable_that_is_not_set_is_named():
    with pytest.raises(UserError, match=r"^env\.place: the environment variable NOT_SET is not set$"):
        settings("env=cartpole", "+env.place=${oc.env:NOT_SET}")


def test_settings_hold_the_real_values_and_show_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN_VAR", VARIABLE)
    monkeypatch.setenv("MY_SEED", "31")
    chosen = settings(
        "env=cartpole",
        f"+env.api_key={CANARIES[0]}",
        "+env.password=271828",
        "+env.copy=x-${env.api_key}",
        "+env.place=${oc.env:MY_TOKEN_VAR}",
        "+env.again='at ${env.place}'",
        "+env.token=${oc.env:MY_TOKEN_VAR}",
        "seed='${oc.decode:${oc.env:MY_SEED}}'",
    )
    assert chosen.env["copy"] == f"x-{CANARIES[0]}"
    assert chosen.env["again"] == f"at {VARIABLE}"
    assert {**chosen.shown["env"]} == {
        "_target_": "hydrl.envs.gymnasium_env",
        "id": "CartPole-v1",
        "api_key": "***",
        "password": "***",
        "copy": "x-***",
        "place": "${oc.env:MY_TOKEN_VAR}",
        "again": "at ${oc.env:MY_TOKEN_VAR}",
        "token": "${oc.env:MY_TOKEN_VAR}",
    }
    assert chosen.shown["seed"] == 31  # a run is repeated from it


@pytest.mark.parametrize(
    ("key", "part", "secret"),
    [
        ("api_key", {"_target_": "hydrl.envs.gymnasium_env"}, True),
        ("PassWord", {}, True),
        ("action_value_key", {"_target_": "torchrl.modules.QValueModule"}, False),  # in its signature
        ("secret_key", {"_target_": "torchrl.modules.QValueModule"}, True),
        ("action_key", {"_target_": "mine.Env"}, True),
        ("in_keys", {"_target_": "mine.Env"}, False),
        ("advantage_key", {"gamma": 0.99}, False),  # a value estimator's
        ("id", {"_target_": "hydrl.envs.gymnasium_env"}, False),
    ],
)
def test_which_keys_name_secrets(key: str, part: dict[str, str], secret: bool):
    assert secrets.is_secret(key, part) is secret


def test_a_part_may_have_any_name():
    part = {"rename_keys": {"_target_": "torchrl.envs.RenameTransform", "in_keys": ["a"], "out_keys": ["b"]}}
    assert secrets.masked(part, part) == part


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("+env.api_key=abc", "+env.api_key=***"),
        ("+env.api_key=a,b", "+env.api_key=***"),
        ("+env.api_key=${oc.env:KEY}", "+env.api_key=${oc.env:KEY}"),
        ("+env.api_key=${oc.env:KEY,abc}", "+env.api_key=***"),
        ("+env.tokens.mine=abc", "+env.tokens.mine=***"),
        ("+env.login={name: me, token: 'a, b'}", "+env.login={name: me, token: ***}"),
        ("hydra.job.env_set.MINE=abc", "hydra.job.env_set.MINE=***"),
        ("actor.in_keys=[a,b]", "actor.in_keys=[a,b]"),
        ("seed=0,1", "seed=0,1"),
    ],
)
def test_an_override_is_shown_without_its_secret(words: str, shown: str):
    assert secrets.typed(words) == shown


def test_a_secret_is_hidden_however_it_is_quoted():
    secret = 'multi\nline "quoted"\\'
    secrets.remember(secret)
    for quoted in (secret, repr(secret), json.dumps(secret), " ".join(secret.split())):
        assert "quoted" not in secrets.hide(quoted)


def test_references_are_looked_up_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN_VAR", VARIABLE)
    kept = {"seed": 3, "env": {"place": "at ${oc.env:MY_TOKEN_VAR}", "sizes": [1, None, "a"]}}
    assert secrets.restore(kept) == {"seed": 3, "env": {"place": f"at {VARIABLE}", "sizes": [1, None, "a"]}}


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        ("***", "env.place was a secret and was not kept; write env.place=${oc.env:NAME}"),
        ("${oc.env:NOT_SET}", "the environment variable NOT_SET is not set"),
        ("${oc.env:NOT_SET,x}", "should hold no reference other than"),
        ("${oc.decode:'1'}", "should hold no reference other than"),
        ("${seed}", "should hold no reference other than"),
        ("${oc.env:${seed}}", "should hold no reference other than"),
        ("\\${seed}", "should hold no reference other than"),
    ],
)
def test_nothing_else_in_a_run_folder_is_resolved(value: str, answer: str):
    with pytest.raises(UserError) as raised:
        secrets.restore({"env": {"place": value}})
    assert answer in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_finished_run_looks_its_references_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MY_TOKEN_VAR", VARIABLE)
    shown = settings("env=cartpole", "+env.place=${oc.env:MY_TOKEN_VAR}").shown
    (tmp_path / "config_resolved.yaml").write_text(yaml.safe_dump(shown))
    found = read_settings(tmp_path, trust=False)
    assert found.env["place"] == VARIABLE
    assert found.shown == shown
    monkeypatch.delenv("MY_TOKEN_VAR")
    with pytest.raises(UserError, match=r"^run=.*MY_TOKEN_VAR is not set"):
        read_settings(tmp_path, trust=False)
