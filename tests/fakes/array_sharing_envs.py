"""Environments that share arrays with their caller, and one that violates Gymnasium's API.

The first two observe (steps so far, the last action), pay the steps so far and end after five: a row's next
observation contains its action, so that each row shows whether it was copied in time.
"""

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from tensordict import TensorDict
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase

LONG = 5
KINDS = ["float32", "float64", "uint8", "dictionary", "tuple", "read-only view"]


class ArraySharingEnv(gymnasium.Env):
    """Environment that returns its own arrays and later writes to them and to the action.

    Args:
        kind: of its observation, one of ``KINDS``.
        bound: of its actions; ``None``: three discrete actions.
        stock: a list that it changes.
    """

    def __init__(self, kind: str = "float32", bound: float | None = 1.0, stock: list | None = None) -> None:
        self.kind, self.stock = kind, stock
        dtype = {"float64": np.float64, "uint8": np.uint8}.get(kind, np.float32)
        self.state = np.zeros(2, dtype)
        inner = Box(0 if dtype is np.uint8 else -100, 100, (2,), dtype)
        one = {"steps": Box(-100, 100, (1,)), "taken": Box(-100, 100, (1,))}
        self.observation_space = {"dictionary": Dict(one), "tuple": Tuple((*one.values(),))}.get(kind, inner)
        self.action_space = Discrete(3) if bound is None else Box(-bound, bound, (1,))
        self.reward, self.ended, self.cut = np.zeros(()), np.zeros((), bool), np.zeros(1, bool)
        self.info = {"steps": self.state}

    def observe(self):
        if self.kind == "dictionary":
            return {"steps": self.state[:1], "taken": self.state[1:]}
        if self.kind == "read-only view":
            view = self.state.view()
            view.flags.writeable = False
            return view
        return (self.state[:1], self.state[1:]) if self.kind == "tuple" else self.state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        assert options is None
        self.state[:] = 0
        self.ended[...] = False
        if self.stock is not None:
            self.stock[0] -= 1
        return self.observe(), self.info

    def step(self, action):
        self.state[0] += 1
        self.state[1] = np.asarray(action).reshape(-1)[0]
        self.reward[...] = self.state[0]
        self.ended[...] = self.state[0] == LONG
        if isinstance(action, np.ndarray) and action.ndim:
            action *= 100
            np.clip(action, -50, 50, out=action)
        return self.observe(), self.reward, self.ended, self.cut, self.info


class TensorSharingEnv(EnvBase):
    """TorchRL environment that returns its own tensors and later writes to them."""

    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device=device)
        self.observation_spec = Composite(observation=Unbounded(2))
        self.action_spec, self.reward_spec = Bounded(-1.0, 1.0, shape=(1,)), Unbounded(1)
        self.state, self.reward = torch.zeros(2), torch.zeros(1)
        self.ended = torch.zeros(1, dtype=torch.bool)

    def _reset(self, tensordict=None, **kwargs):
        self.state.zero_()
        self.ended.fill_(False)
        return TensorDict({"observation": self.state})

    def _step(self, tensordict):
        action = tensordict["action"]
        self.state[0] += 1
        self.state[1:] = action
        self.reward.copy_(self.state[:1])
        self.ended.copy_(self.state[:1] == LONG)
        action.mul_(100)
        step_entries = {
            "observation": self.state,
            "reward": self.reward,
            "terminated": self.ended,
            "done": self.ended,
        }
        return TensorDict(step_entries)

    def _set_seed(self, seed):
        pass


class FaultyEnv(gymnasium.Env):
    """Environment that follows Gymnasium's API except for one fault.

    Args:
        what: the fault.
    """

    observation_space, action_space = Box(-1, 1, (2,)), Discrete(2)

    def __init__(self, what: str = "") -> None:
        self.what = what
        self.observation_space, self.action_space = Box(-1, 1, (2,)), Discrete(2)
        self.steps = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        if self.what == "reset without info":
            return np.zeros(2, np.float32)
        if self.what == "needs a start":
            assert options is None or options["start"]
        return self.observe(), {}

    def observe(self):
        if self.what == "draws by its spaces":
            return self.observation_space.sample() * self.action_space.sample()
        if self.steps == 3:
            odd = {
                "shape": np.zeros(3, np.float32),
                "words": "three",
                "nothing": None,
                "outside": np.ones(2) * 7,
            }
            if self.what in odd:
                return odd[self.what]
        return np.zeros(2, np.float32)

    def step(self, action):
        self.steps += 1
        info = {
            "huge": 2**70,
            "text": "a" if self.steps % 2 else 3,
            "nested": {"deep": [np.ones(self.steps)]},
        }
        if self.what == "four answers":
            return self.observe(), 1.0, False, {}
        reward = 1e9 if self.what == "huge reward" else 1.0
        return self.observe(), reward, self.steps == LONG, False, info if self.what == "odd infos" else {}


gymnasium.register("Own-v0", ArraySharingEnv)
gymnasium.register("Odd-v0", FaultyEnv)
