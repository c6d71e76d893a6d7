"""Tasks whose right answer is known, as `Probe-v0`, and how every algorithm is set to them."""

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


class Probe(gymnasium.Env):
    """The smallest tasks, each of which needs one thing more of an algorithm (after Andy Jones).

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
        self.seen = 0.0 if self.kind == "discounting" else self.np_random.choice([-1.0, 1.0])
        return np.float32([self.seen]), {}

    def step(self, action: Any) -> Any:
        seen, side = self.seen, (2 * action - 1 if self.action_space.shape == () else np.sign(action[0]))
        pays = {"constant": 1, "observation": seen, "discounting": seen, "action": side, "both": side * seen}
        ended = self.kind != "discounting" or bool(seen)
        self.seen = 1.0 if self.kind == "discounting" else seen
        return np.float32([self.seen]), float(pays[self.kind]), ended, False, {}


def worth(kind: str, observation: Tensor, gamma: float) -> Tensor:
    """What a state of a probe that no action changes is worth, ``[..., 1]``."""
    return {
        "constant": torch.ones_like(observation),
        "observation": observation,
        "discounting": gamma ** (1 - observation),  # observed is 0, then 1
    }[kind]


class Clockwork(gymnasium.Env):
    """Observes a lot drawn for the episode, and the step; all else follows from these, whatever is done.

    A lot below 1/3 ends at step 3. The others run into the time limit at step 5, at which a lot above 2/3
    ends by itself, too.
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
        self.now, reward, terminated, _ = (each.numpy() for each in following(torch.tensor(self.now)))
        return self.now, float(reward), bool(terminated), False, {}


def following(observation: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What comes after observations ``[..., 2]`` of :class:`Clockwork`.

    Returns:
        The next observation ``[..., 2]``; ``[...]`` reward, whether it ended and whether its time was up.
    """
    lot, step = observation[..., 0], observation[..., 1] + 1
    time_is_up = step == Clockwork.LIMIT
    ended = ((lot < 1 / 3) & (step == 3)) | ((lot > 2 / 3) & time_is_up)
    return torch.stack([lot, step], -1), lot + step, ended, time_is_up


gymnasium.register("Probe-v0", entry_point=Probe)
gymnasium.register("Clockwork-v0", entry_point=Clockwork, max_episode_steps=Clockwork.LIMIT)


def cases() -> Iterator[tuple[str, str]]:
    """Every algorithm in ``configs/algo`` with each kind of actions that it declares."""
    for algo, spaces in read_action_spaces().items():
        yield from ((algo, actions) for actions in SPACES if actions in spaces)


def overrides_of(algo: str, actions: str, task: str) -> list[str]:
    """A run of a case on a task, which is an id here and its arguments, as ``"Probe-v0 kind=both"``."""
    id, *arguments = task.split()
    words = [f"algo={algo}", "env=gym", f"env.id={__name__}:{id}", f"+env.actions={actions}"]
    words += ["transforms=plain"]
    return [
        *words,
        *(f"+env.{each}" for each in arguments),
        *data_of(algo, "later"),
    ]


def offline(algo: str) -> bool:
    """Whether it declares that it learns from a data set."""
    return bool(data_of(algo))


def imitates(algo: str) -> bool:
    """Whether it does what data did, and judges nothing by rewards."""
    return algo in ("bc", "decision_transformer", "gail")


def fresh(algo: str) -> bool:
    """Whether it declares that it learns from fresh batches alone; to compose it takes longer."""
    return read_option(f"/algo/{algo}")["compatible_with"].get("minibatches") == ["epochs"]


def learns_from(keys: Mapping[str, Any]) -> str:
    """``fresh`` batches, a ``replay`` memory or the ``data`` of another run, as the settings of a run say."""
    if keys["collector"]["_target_"].endswith(".DatasetCollector"):
        return "data"
    return "fresh" if issubclass(get_object(keys["minibatches"]["_target_"]), Epochs) else "replay"


def small(overrides: list[str], **numbers: Mapping[str, Any]) -> list[str]:
    """The overrides with numbers for a run of seconds.

    Args:
        overrides: of :func:`overrides_of`.
        **numbers: for ``all`` algorithms and for those that learn from ``fresh``, ``replay`` or ``data``.
            What an algorithm has no key for is left out.
    """
    keys = settings(*overrides).model_dump()
    wanted = {**numbers["all"], **numbers.get(learns_from(keys), {})}
    return [*overrides, *(f"{key}={value}" for key, value in wanted.items() if find(keys, key) is not None)]


def supplied(overrides: list[str], run: Callable[..., Path]) -> list[str]:
    """The overrides with a data set, played at random on the same task, for what learns from one."""
    if (keys := settings(*overrides).model_dump())["data"] is None:
        return overrides
    task = [each for each in overrides if each.startswith(("env", "+env", "transforms"))]
    able = [algo for algo, actions in cases() if actions == keys["env"]["actions"]]
    online = ((algo, settings(f"algo={algo}", *task)) for algo in able if not offline(algo))
    player = next(algo for algo, chosen in online if learns_from(chosen.model_dump()) == "replay")
    at_random = ["total_frames=256", "collector.init_random_frames=256", "minibatches.warmup_frames=1_000"]
    data = run(f"algo={player}", *task, *at_random, "eval.episodes=1", "eval.final_episodes=1", folder="data")
    return [*overrides, f"data.path={data}"]  # after the first of them


def judges(networks: Mapping[str, str]) -> list[str]:
    """The arguments of a loss that judge states or actions; an actor does where there is nothing else."""
    apart = [argument for argument, part in networks.items() if part != "actor"]
    return apart or list(networks)


def watch(monkeypatch: pytest.MonkeyPatch, before: Callable[..., Callable[..., None] | None]) -> None:
    """Shows a test every update of a run: ``before(loss, minibatch)`` may return what is given its losses."""

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
