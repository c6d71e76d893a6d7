"""Probe environments with known values, such as `Probe-v0`, and settings of every algorithm for them."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from hydra.utils import get_object
from tensordict import TensorDictBase
from torch import Tensor
from torchrl.objectives import LossModule

import hydrl.training.learner
from hydrl.config.settings import read_action_spaces
from hydrl.config.tree import find, read_option
from hydrl.experience.minibatches import Epochs
from tests.conftest import data_of, settings

SPACES = {"discrete": lambda: Discrete(2), "continuous": lambda: Box(-1, 1, (1,), np.float32)}


class ProbeEnv(gymnasium.Env):
    """Smallest environments, each of which needs one more ability of an algorithm (after Andy Jones).

    Args:
        kind: ``discounting`` has two steps, observed as 0 and 1, of which the second pays 1. The others have
            one, observed as -1 or 1 by chance. ``constant`` pays 1, ``observation`` what is observed,
            ``action`` 1 for the right side and -1 for the left, ``both`` 1 for the side observed, else -1.
        actions: a key of ``SPACES``; a discrete action is a side, a continuous one has it as its sign.
    """

    def __init__(self, kind: str, actions: str, **_: Any) -> None:
        self.kind, self.action_space = kind, SPACES[actions]()
        self.observation_space = Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.observed = 0.0 if self.kind == "discounting" else self.np_random.choice([-1.0, 1.0])
        return np.float32([self.observed]), {}

    def step(self, action: Any) -> Any:
        observed, side = (
            self.observed,
            (2 * action - 1 if self.action_space.shape == () else np.sign(action[0])),
        )
        pays = {
            "constant": 1,
            "observation": observed,
            "discounting": observed,
            "action": side,
            "both": side * observed,
        }
        ended = self.kind != "discounting" or bool(observed)
        self.observed = 1.0 if self.kind == "discounting" else observed
        return np.float32([self.observed]), float(pays[self.kind]), ended, False, {}


def worth(kind: str, observation: Tensor, gamma: float) -> Tensor:
    """The value of a probe's state if actions have no effect, ``[..., 1]``."""
    return {
        "constant": torch.ones_like(observation),
        "observation": observation,
        "discounting": gamma ** (1 - observation),  # observed is 0, then 1
    }[kind]


class ClockworkEnv(gymnasium.Env):
    """Environment that observes a random number of the episode and the step, which determine all else.

    An episode of a number below 1/3 terminates at step 3. The others are truncated at step 5, and those above
    2/3 terminate then, too.
    """

    LIMIT = 5

    def __init__(self, actions: str, **_: Any) -> None:
        self.action_space = SPACES[actions]()
        self.observation_space = Box(0, self.LIMIT, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.now = np.float32([self.np_random.random(), 0])
        return self.now, {}

    def step(self, action: Any) -> Any:
        self.now, reward, terminated, _ = (entry.numpy() for entry in following(torch.tensor(self.now)))
        return self.now, float(reward), bool(terminated), False, {}


def following(observation: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The transition from observations ``[..., 2]`` of :class:`ClockworkEnv`.

    Returns:
        The next observation ``[..., 2]``; reward, terminated and truncated, ``[...]``.
    """
    lot, step = observation[..., 0], observation[..., 1] + 1
    time_is_up = step == ClockworkEnv.LIMIT
    ended = ((lot < 1 / 3) & (step == 3)) | ((lot > 2 / 3) & time_is_up)
    return torch.stack([lot, step], -1), lot + step, ended, time_is_up


gymnasium.register("Probe-v0", entry_point=ProbeEnv)
gymnasium.register("Clockwork-v0", entry_point=ClockworkEnv, max_episode_steps=ClockworkEnv.LIMIT)


def cases() -> Iterator[tuple[str, str]]:
    """Every algorithm in ``configs/algo`` with each kind of action that it declares."""
    for algo, spaces in read_action_spaces().items():
        yield from ((algo, actions) for actions in SPACES if actions in spaces)


def overrides_of(algo: str, actions: str, task: str) -> list[str]:
    """The overrides of an algorithm on an environment here, such as ``"Probe-v0 kind=both"``."""
    id, *arguments = task.split()
    words = [f"algo={algo}", "env=gym", f"env.id={__name__}:{id}", f"+env.actions={actions}"]
    words += ["transforms=plain"]
    return [
        *words,
        *(f"+env.{argument}" for argument in arguments),
        *data_of(algo, "later"),
    ]


def offline(algo: str) -> bool:
    """Whether an algorithm learns from an offline dataset."""
    return bool(data_of(algo))


def imitates(algo: str) -> bool:
    """Whether an algorithm imitates and ignores rewards."""
    return algo in ("bc", "decision_transformer", "gail")


def fresh(algo: str) -> bool:
    """Whether an algorithm is on-policy, by its declaration."""
    return read_option(f"/algo/{algo}")["compatible_with"].get("minibatches") == ["epochs"]


def learns_from(keys: Mapping[str, Any]) -> str:
    """The source of minibatches: ``fresh`` batches, a ``replay`` buffer or an offline dataset, ``data``."""
    if keys["collector"]["_target_"].endswith(".DatasetCollector"):
        return "data"
    return "fresh" if issubclass(get_object(keys["minibatches"]["_target_"]), Epochs) else "replay"


def small(overrides: list[str], **numbers: Mapping[str, Any]) -> list[str]:
    """Overrides with hyperparameters for a run of seconds.

    Args:
        overrides: of :func:`overrides_of`.
        **numbers: for ``all`` algorithms, and by :func:`learns_from`. Keys that an algorithm lacks are left
            out.
    """
    keys = settings(*overrides).model_dump()
    wanted = {**numbers["all"], **numbers.get(learns_from(keys), {})}
    return [*overrides, *(f"{key}={value}" for key, value in wanted.items() if find(keys, key) is not None)]


def supplied(overrides: list[str], run: Callable[..., Path]) -> list[str]:
    """Overrides with a dataset of random actions in the same environment, for offline algorithms."""
    if (keys := settings(*overrides).model_dump())["data"] is None:
        return overrides
    task = [override for override in overrides if override.startswith(("env", "+env", "transforms"))]
    able = [algo for algo, actions in cases() if actions == keys["env"]["actions"]]
    online = ((algo, settings(f"algo={algo}", *task)) for algo in able if not offline(algo))
    player = next(algo for algo, chosen in online if learns_from(chosen.model_dump()) == "replay")
    at_random = ["total_frames=256", "collector.init_random_frames=256", "minibatches.warmup_frames=1_000"]
    data = run(f"algo={player}", *task, *at_random, "eval.episodes=1", "eval.final_episodes=1", folder="data")
    return [*overrides, f"data.path={data}"]  # after the first of them


def judges(networks: Mapping[str, str]) -> list[str]:
    """A loss's arguments that are critics, or else the actor."""
    apart = [argument for argument, part in networks.items() if part != "actor"]
    return apart or list(networks)


def watch(monkeypatch: pytest.MonkeyPatch, before: Callable[..., Callable[..., None] | None]) -> None:
    """Calls ``before(loss, minibatch)`` at each update of a run; it may return a callback for the losses."""

    class Watched(hydrl.training.Update):
        def __init__(self, loss: LossModule, *args: Any, **kwargs: Any) -> None:
            super().__init__(loss, *args, **kwargs)
            self.loss = loss

        def __call__(self, minibatch: TensorDictBase) -> TensorDictBase:
            after = before(self.loss, minibatch)
            losses = super().__call__(minibatch)
            if after:
                after(losses)
            return losses

    monkeypatch.setattr(hydrl.training.learner, "Update", Watched)
