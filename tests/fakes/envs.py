"""TorchRL environments of one or several agents whose observations and returns are known."""

import os
import random

import gymnasium
import numpy as np
import torch
from gymnasium.envs.classic_control import PendulumEnv
from tensordict import TensorDict, TensorDictBase
from torchrl.data import (
    Binary,
    Bounded,
    Categorical,
    Composite,
    MultiCategorical,
    MultiOneHot,
    OneHot,
    TensorSpec,
    Unbounded,
)
from torchrl.envs import EnvBase, GymWrapper

ACTIONS = {
    "continuous": lambda: Bounded(-2.0, 3.0, shape=(1,)),
    "one_hot": lambda: OneHot(3, dtype=torch.int64),
    "integer": lambda: Categorical(3),
    "half_bounded": lambda: Bounded(0.0, float("inf"), shape=(1,)),
    "binary": lambda: Binary(4),
    "several": lambda: MultiCategorical([2, 3]),
    "stacked": lambda: Categorical(3, shape=(2,)),
    "one_hot_several": lambda: MultiOneHot([2, 3]),
    "one_hot_stacked": lambda: OneHot(3, shape=(2, 3)),
}


class Corridor(gymnasium.Env):
    """Unregistered Gymnasium environment."""


class GlobalRandomEnv(gymnasium.Env):
    """Environment whose first observation is drawn from the three global generators."""

    observation_space = gymnasium.spaces.Box(0, 1, (3,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.drawn = np.array([random.random(), np.random.rand(), torch.rand((), dtype=torch.float64)])
        return self.drawn, {}

    def step(self, action):
        return self.drawn, 1.0, False, True, {}


def make_global_random_env(device: str = "cpu") -> GymWrapper:
    return GymWrapper(GlobalRandomEnv(), device=device)


class CountingEnv(EnvBase):
    """Environment that observes (steps so far, length of the episode, the last action); spec step pays 1.

    An episode is short or long by chance, and terminates after its length.

    Args:
        short: steps of one episode in two.
        long: steps of the others.
        actions: a key of ``ACTIONS``.
        resettable: ``False`` fails at any reset.
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


class NaNEnv(CountingEnv):
    """Environment that returns NaN from one of its steps on, while the variable ``SPOILT`` is set.

    Args:
        what: ``observation``, ``reward`` or ``reset``, the first observation of an episode.
        at: the step, counted over episodes.
        value: ``nan`` or ``inf``.
        spared: the seed of an environment without NaN.
    """

    def __init__(
        self, what: str, at: int, value: str = "nan", spared: int | None = None, **toy: object
    ) -> None:
        super().__init__(**toy)
        self.what, self.at, self.value, self.spared = what, at, float(value), spared
        self.taken, self.seed = 0, None

    def write_nan(self, result: TensorDictBase, key: str) -> TensorDictBase:
        now = self.taken >= self.at and self.seed != self.spared and "SPOILT" in os.environ
        return result.set(key, result[key] * self.value) if now else result

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        result = super()._reset(tensordict, **kwargs)
        return self.write_nan(result, "observation") if self.what == "reset" else result

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.taken += 1
        result = super()._step(tensordict)
        return result if self.what == "reset" else self.write_nan(result, self.what)

    def _set_seed(self, seed: int | None) -> None:
        super()._set_seed(seed)
        self.seed = seed


class CountingTeam(EnvBase):
    """Environment of several agents; in spec step the first gets the reward 1, the second 2, ...

    Each observes (steps so far, length of the episode, its own last action). Episodes terminate.

    Args:
        num_envs: environments stepped together.
        agents: in spec environment.
        short: steps of one episode in two.
        long: steps of the others.
        actions: ``continuous``, ``one_hot`` or ``integer``.
        device: where the tensors live.
    """

    def __init__(
        self,
        num_envs: int,
        agents: int = 2,
        short: int = 3,
        long: int = 5,
        actions: str = "continuous",
        device: str = "cpu",
    ) -> None:
        super().__init__(device=device, batch_size=[num_envs])
        self.lengths, self.whole = torch.tensor([short, long]), (num_envs, agents)
        self.steps = self.length = torch.zeros(num_envs, dtype=torch.int64)
        self.observation_spec = self.of_agents(observation=Unbounded((*self.whole, 3)))
        spec = ACTIONS[actions]()
        self.action_spec = self.of_agents(action=spec.expand(*self.whole, *spec.shape))
        self.reward_spec = self.of_agents(reward=Unbounded((*self.whole, 1)))
        self.generator = torch.Generator()

    def of_agents(self, **entries: TensorSpec) -> Composite:
        return Composite(agents=Composite(entries, shape=self.whole), shape=self.batch_size)

    def make_result(self, action: torch.Tensor | float, **entries: torch.Tensor) -> TensorDict:
        now = torch.stack([self.steps, self.length], -1).float()[:, None].expand(*self.whole, 2)
        action = torch.as_tensor(action).float().expand(*self.whole)[..., None]
        agents = TensorDict({"observation": torch.cat([now, action], -1)}, self.whole)
        return TensorDict({"agents": agents}, self.batch_size).update(entries)

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: object) -> TensorDictBase:
        everywhere = torch.ones(self.batch_size, dtype=torch.bool)
        begins = everywhere if tensordict is None else tensordict.get("_reset", everywhere[:, None])[:, 0]
        drawn = self.lengths[torch.randint(2, self.batch_size, generator=self.generator)]
        self.steps, self.length = self.steps.where(~begins, 0), torch.where(begins, drawn, self.length)
        return self.make_result(0.0)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        self.steps = self.steps + 1
        ended = (self.steps == self.length)[:, None]
        action = tensordict["agents", "action"].float().reshape(*self.whole, -1)[..., 0]
        result = self.make_result(action, terminated=ended, done=ended.clone())
        paid = torch.arange(1.0, 1 + self.whole[1]).expand(self.whole)[..., None]
        return result.set(("agents", "reward"), paid.clone())

    def _set_seed(self, seed: int | None) -> None:
        self.generator.manual_seed(seed)


class MatchSidesEnv(CountingTeam):
    """Environment of two agents that observe -1 or 1; the reward is the share that choose their side.

    An episode is one step. A discrete action is a side, the sign of a continuous one is a side.

    Args:
        num_envs: environments stepped together.
        actions: ``continuous``, within -1 and 1, ``one_hot`` or ``integer``.
        device: where the tensors live.
    """

    def __init__(self, num_envs: int, actions: str = "continuous", device: str = "cpu") -> None:
        super().__init__(num_envs, actions=actions, device=device)
        kinds = {"continuous": Bounded(-1.0, 1.0, shape=(1,)), "integer": Categorical(2)}
        spec, self.kind = (kinds | {"one_hot": OneHot(2)})[actions], actions
        self.observation_spec = self.of_agents(observation=Unbounded((*self.whole, 1)))
        self.action_spec = self.of_agents(action=spec.expand(*self.whole, *spec.shape))

    def make_result(self, action: torch.Tensor | float, **entries: torch.Tensor) -> TensorDict:
        self.sides = torch.randint(2, self.whole, generator=self.generator)[..., None] * 2.0 - 1
        agents = TensorDict({"observation": self.sides}, self.whole)
        return TensorDict({"agents": agents}, self.batch_size).update(entries)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = tensordict["agents", "action"]
        chosen = {"integer": action[..., None], "one_hot": action[..., 1:]}.get(self.kind)
        side = action.sign() if chosen is None else 2 * chosen - 1
        paid = (side == self.sides).float().mean(-2, keepdim=True).expand(*self.whole, 1)
        ended = torch.ones(*self.batch_size, 1, dtype=torch.bool)
        return self.make_result(0.0, terminated=ended, done=ended.clone()).set(
            ("agents", "reward"), paid.clone()
        )


class RescaledPendulum(gymnasium.ActionWrapper):
    """Gymnasium's pendulum, whose greatest force is the action ``unit`` instead of 2."""

    def __init__(self, unit: float) -> None:
        super().__init__(PendulumEnv())
        self.unit, self.action_space = unit, gymnasium.spaces.Box(-unit, unit, (1,), np.float32)

    def action(self, action: np.ndarray) -> np.ndarray:
        return action * (2 / self.unit)


gymnasium.register("PendulumIn-v0", RescaledPendulum, max_episode_steps=200)
