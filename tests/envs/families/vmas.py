"""VMAS, whose simulator steps all environments together."""

import numpy as np
import torch

from tests.envs.families.case import Case, RawStep

LIMIT = 50


def row_of(observed, infos, index):
    """What one environment's agents observe, and their information."""
    rows = [part[index].numpy() for part in observed]
    return rows, [{name: column[index].numpy() for name, column in info.items()} for info in infos]


class TogetherEnvs:
    """One simulator of all environments, truncated after ``LIMIT`` steps."""

    def __init__(self, case, rows):
        self.case, self.num_envs = case, len(rows.ends["done"])
        self.env = case.make_raw(self.num_envs)
        self.envs, self.steps = [self.env] * self.num_envs, np.zeros(self.num_envs, int)

    def begin(self, seed):
        self.env.seed(seed)
        self.env.reset()
        return self.observations()

    def observations(self):
        observed, infos = self.env.get_from_scenario(
            get_observations=True, get_infos=True, get_rewards=False, get_dones=False
        )
        return [row_of(observed, infos, index) for index in range(self.num_envs)]

    def reset(self, indices):
        self.steps[indices] = 0
        if len(indices) == self.num_envs:
            self.env.reset()
        else:
            for index in indices:
                self.env.reset_at(index)
        observations = self.observations()
        return [observations[index] for index in indices]

    def step(self, actions):
        by_agent = [torch.from_numpy(np.stack(parts)) for parts in zip(*actions, strict=True)]
        observed, rewards, dones, infos = self.env.step(by_agent)
        self.steps += 1
        return [
            RawStep(
                row_of(observed, infos, index),
                np.array([float(reward[index]) for reward in rewards], np.float32),
                bool(dones[index]),
                self.steps[index] >= LIMIT,
            )
            for index in range(self.num_envs)
        ]

    def close(self):
        pass


def make_balance(num_envs):
    from vmas import make_env

    return make_env("balance", num_envs=num_envs)


def read_agents(row):
    observed, infos = row
    entries = {("agents", "info", name): np.stack([info[name] for info in infos]) for name in infos[0]}
    return {("agents", "observation"): np.stack(observed), **entries}


class Spaces:
    """The action spaces of all agents."""

    def __init__(self, env):
        self.spaces = env.action_space

    def contains(self, actions):
        return all(
            (abs(action) <= space.high).all() for space, action in zip(self.spaces, actions, strict=True)
        )


CASES = [
    Case(
        "vmas",
        ["algo=mappo", "env=vmas", "env.scenario=balance", f"transforms.step_counter.max_steps={LIMIT}"],
        make_balance,
        read=read_agents,
        action=lambda rows: [*rows["agents", "action"]],
        reward=lambda rewards: {("agents", "reward"): rewards},
        action_space=Spaces,
        make_vector=TogetherEnvs,
        package="vmas",
        num_envs=(1, 3, 64),
        fast_num_envs=(3,),
    )
]
