"""What an environment gives and is no number ends a run before it is learned from."""

import json
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from torchrl.envs import StepCounter

from hydrl import envs
from hydrl.errors import DivergedError
from hydrl.experience import collectors
from hydrl.networks import actors
from tests.fakes.envs import NaNEnv

NETWORK = {"num_cells": [8], "activation": "Tanh", "in_keys": ["observation"]}
POLICIES = {
    "values": (actors.q_value, "one_hot"),
    "choice": (actors.categorical, "one_hot"),
    "numbers": (actors.tanh_normal, "continuous"),
}


@pytest.fixture(autouse=True)
def _spoilt(monkeypatch):
    monkeypatch.setenv("SPOILT", "yes")


def collect(kind: str, num_envs: int, **spoilt: object) -> None:
    """Three batches of 20 frames; the last of several environments is spoilt."""
    torch.manual_seed(0)
    build, actions = POLICIES[kind]
    make = partial(NaNEnv, actions=actions, spared=5 if num_envs > 1 else None, short=10, long=10, **spoilt)
    make_env = partial(envs.make_env, make, [StepCounter], num_envs=num_envs)
    env = make_env(seed=5)
    policy = build(env, **NETWORK)
    collector = collectors.make_collector(
        env,
        make_env,
        policy,
        frames_per_batch=20,
        init_random_frames=0,
        num_envs=num_envs,
        seed=0,
        device="cpu",
    )
    for _ in islice(collector, 3):
        pass


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize(
    ("kind", "num_envs", "what", "at", "entry", "env", "frames"),
    [
        ("values", 1, "observation", 33, "observation", 0, 32),
        ("values", 2, "reward", 13, "reward", 1, 24),
        ("numbers", 2, "reward", 13, "reward", 1, 24),
        ("numbers", 1, "observation", 40, "observation", 0, 39),
        ("values", 1, "reset", 40, "observation", 0, 40),  # where the next batch begins
        (
            "choice",
            1,
            "observation",
            33,
            "observation",
            0,
            20,
        ),  # which cannot act on it: the batch's first frame
        ("choice", 2, "reset", 0, "observation", 1, 0),  # before the first batch
    ],
)
def test_what_is_no_number_is_named_by_entry_environment_and_frame(
    kind, num_envs, what, at, entry, env, frames, value
):
    with pytest.raises(DivergedError) as caught:
        collect(kind, num_envs, what=what, at=at, value=value)
    assert caught.value.terms == f"{entry} of environment {env} is NaN or infinite"
    assert caught.value.frames == frames


@pytest.mark.parametrize(
    ("algo", "actions", "what"),
    [("ppo", "continuous", "reward"), ("ppo", "one_hot", "observation"), ("dqn", "one_hot", "observation")],
)
def test_the_run_ends_with_3_and_goes_on_from_before_it(algo, actions, what, run, tmp_path, monkeypatch):
    overrides = [
        f"algo={algo}", "env=custom", "env._target_=tests.fakes.envs.NaNEnv",
        f"+env.what={what}", "+env.at=300",
        f"+env.actions={actions}", "transforms=plain", "debug=fast", "total_frames=512",
        "eval.every_frames=512", "collector.num_envs=1", "collector.frames_per_batch=128",
        "checkpoint_every_frames=128", "resume=auto",
    ]  # fmt: skip
    overrides += ["minibatches.warmup_frames=64"] if algo == "dqn" else []
    with pytest.raises(
        DivergedError, match=f"{what} of environment 0 is NaN or infinite; .*saved at 256"
    ) as caught:
        run(*overrides)
    assert caught.value.exit_code == 3
    assert 256 <= caught.value.frames <= 300  # check_env_specs took some of the steps
    assert summary(tmp_path / "run")["status"] == "diverged"

    monkeypatch.delenv("SPOILT")
    again = summary(run(*overrides))
    assert (again["status"], again["frames"], again["resumed_at_frames"]) == ("finished", 512, [256])


def summary(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "summary.json").read_text())
