"""Small environments with what real ones seldom have: masks of each kind, arrays of their own, TorchRL's."""

from functools import partial

import numpy as np
import torch
from torchrl.envs import PendulumEnv

from tests.envs.families.case import Case, SeparateEnvs
from tests.fakes.array_sharing_envs import ArraySharingEnv, TensorSharingEnv
from tests.fakes.masked_envs import MaskedEnv, MaskedMultiDiscreteEnv


class OfTorchRL:
    """A TorchRL environment with Gymnasium's methods."""

    action_space = None

    def __init__(self, make, limit=None):
        self.env, self.limit = make(), limit

    def reset(self, seed=None):
        self.tensordict, self.steps = self.env.reset(), 0
        return self.tensordict.clone(), {}

    def step(self, action):
        stepped = self.env.step(self.tensordict.clone().set("action", torch.from_numpy(action)))[
            "next"
        ].clone()
        self.tensordict, self.steps = stepped.exclude("reward"), self.steps + 1
        return (
            stepped,
            stepped["reward"],
            bool(stepped.get("terminated", stepped["done"])),
            self.steps == self.limit,
            {},
        )

    def close(self):
        self.env.close()


class SeededInTurn(SeparateEnvs):
    """TorchRL's environments, of which each says the seed of the next."""

    def begin(self, seed):
        for raw in self.envs:
            seed = raw.env.set_seed(seed)
        return [raw.reset()[0] for raw in self.envs]


def read_pendulum(tensordict):
    angle, speed = tensordict["th"].numpy(), tensordict["thdot"].numpy()
    constants = {("params", name): value.numpy() for name, value in tensordict["params"].items()}
    return {"th": angle, "thdot": speed, "observation": np.stack([angle, speed]), **constants}


def read_vector(observation):
    return {"observation": observation["observation"] if isinstance(observation, dict) else observation}


MASKED, BOTH = "env.id=tests.fakes.masked_envs:Allows-v0", "env.id=tests.fakes.masked_envs:Both-v0"
CASES = [
    *(
        Case(
            f"mask-{says}",
            ["env=gym", MASKED, "+env.start=5", f"+env.says={says}"],
            partial(MaskedEnv, says, start=5),
            read=read_vector,
            ends={"terminated"},
            action=lambda index: index + 5,
            mask=lambda env: env.mask.astype(bool),
            is_valid=lambda mask, action: bool(mask[action - 5]),
            fast_num_envs=fast,
        )
        for says, fast in (("info", (3,)), ("entry", (1,)), ("method", (3,)))
    ),
    Case(
        "mask-multi-discrete",
        ["env=gym", BOTH],
        MaskedMultiDiscreteEnv,
        ends={"terminated"},
        action=lambda indices: indices + np.array([0, 5]),
        mask=lambda env: np.concatenate(env.masks).astype(bool),
        is_valid=lambda mask, action: bool(mask[action[0]] and mask[action[1] - 2]),
        fast_num_envs=(3,),
    ),
    Case(
        "sharing-arrays",
        ["env=gym", "env.id=tests.fakes.array_sharing_envs:Own-v0"],
        ArraySharingEnv,
        ends={"terminated"},
        random_starts=False,
        fast_num_envs=(1,),
    ),
    Case(
        "sharing-tensors",
        ["env=custom", "env._target_=tests.fakes.array_sharing_envs.TensorSharingEnv"],
        partial(OfTorchRL, TensorSharingEnv),
        read=lambda tensordict: {"observation": tensordict["observation"].numpy()},
        ends={"terminated"},
        make_vector=SeededInTurn,
        random_starts=False,
        fast_num_envs=(1,),
    ),
    Case(
        "torchrl",
        ["env=torchrl_pendulum", "transforms.step_counter.max_steps=50"],
        partial(OfTorchRL, PendulumEnv, 50),
        read=read_pendulum,
        ends={"truncated"},
        make_vector=SeededInTurn,
        fast_num_envs=(3,),
    ),
]
