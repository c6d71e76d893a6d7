"""A task as a user would write one: its episodes are short or long by chance, and each step pays 1."""

import os

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    OneHot,
    TensorSpec,
    Unbounded,
)
from torchrl.envs import EnvBase

ACTIONS = {
    "continuous": lambda: Bounded(-2.0, 3.0, shape=(1,)),
    "one_hot": lambda: OneHot(3, dtype=torch.int64),
    "integer": lambda: Categorical(3),
    "half_bounded": lambda: Bounded(0.0, float("inf"), shape=(1,)),
    "binary": lambda: Binary(4),
    "several": lambda: MultiCategorical([2, 3]),
}


class Toy(EnvBase):
    """Observes (steps so far, length of the episode, the last action); ends by itself after that length.

    Args:
        short: steps of one episode in two.
        long: steps of the others.
        actions: a key of ``ACTIONS``.
        resettable: a canary's ``False`` fails whatever resets it.
        device: where the tensors live.
    """

    def __init__(
        self,
        short: int = 2,
        long: int = 20,
        actions: str = "continuous",
        resettable: bool = True,
        device: str = "cpu",
    ) -> None:
        super().__init__(device=device)
        self.lengths, self.resettable = (short, long), resettable
        self.observation_spec = Composite(observation=Unbounded(3))
        self.action_spec: TensorSpec = ACTIONS[actions]()
        self.reward_spec = Unbounded(1)
        self.generator = torch.Generator()

    def observe(self, steps: int, action: float = 0.0) -> dict[str, torch.Tensor]:
        self.steps = steps
        return {"observation": torch.tensor([steps, self.length, action], dtype=torch.float32)}

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        assert self.resettable, "reset"
        self.length = self.lengths[int(torch.randint(2, (), generator=self.generator))]
        return TensorDict(self.observe(0), device=self.device)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        observation = self.observe(self.steps + 1, float(tensordict["action"].reshape(-1)[0]))
        ended = torch.tensor([self.steps == self.length])
        flags = {"terminated": ended, "done": ended.clone(), "reward": torch.ones(1)}
        return TensorDict(observation | flags, device=self.device)

    def _set_seed(self, seed: int | None) -> None:
        self.generator.manual_seed(seed)


class Spoilt(Toy):
    """Gives what is no number from one step of its life on, while the environment variable ``SPOILT`` is set.

    Args:
        what: ``observation``, ``reward`` or ``reset``, the observation an episode begins with.
        at: the step.
        value: given in place of a number.
        spared: the seed of an environment that is left alone.
    """

    def __init__(
        self, what: str, at: int, value: str = "nan", spared: int | None = None, **toy: object
    ) -> None:
        super().__init__(**toy)
        self.what, self.at, self.value, self.spared = what, at, float(value), spared
        self.taken, self.seed = 0, None

    def spoil(self, given: TensorDictBase, key: str) -> TensorDictBase:
        now = self.taken >= self.at and self.seed != self.spared and "SPOILT" in os.environ
        return given.set(key, given[key] * self.value) if now else given

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        given = super()._reset(tensordict, **kwargs)
        return self.spoil(given, "observation") if self.what == "reset" else given

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.taken += 1
        given = super()._step(tensordict)
        return given if self.what == "reset" else self.spoil(given, self.what)

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        self.seed = seed
