"""An environment with several agents, with PettingZoo's API, for `env.id=my_teams:Meeting`."""

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv


class Meeting(ParallelEnv):
    """Two walkers on a line get minus their distance as reward; the second one ends after 15 steps."""

    metadata = {"name": "meeting"}  # noqa: RUF012 - PettingZoo's way

    def __init__(self, length: int = 10) -> None:
        self.length, self.possible_agents = length, ["walker_0", "walker_1"]
        self.rng = np.random.default_rng()

    def observation_space(self, agent):
        return Box(-1.0, 1.0, (2,), np.float32)

    def action_space(self, agent):
        return Discrete(3)  # left, stay, right

    def reset(self, seed=None, options=None):
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.steps = [*self.possible_agents], 0
        self.places = self.rng.integers(self.length, size=2)
        return self.observation(), {agent: {} for agent in self.agents}

    def step(self, actions):
        acting, self.steps = self.agents, self.steps + 1
        for agent, action in actions.items():
            place = self.possible_agents.index(agent)
            self.places[place] = np.clip(self.places[place] + action - 1, 0, self.length)
        reward = -abs(self.places[0] - self.places[1]) / self.length
        tired = {agent: agent == "walker_1" and self.steps >= 15 for agent in acting}
        late = dict.fromkeys(acting, self.steps >= 20)
        observations = self.observation()
        self.agents = [agent for agent in acting if not (tired[agent] or late[agent])]
        return observations, dict.fromkeys(acting, reward), tired, late, {agent: {} for agent in acting}

    def observation(self):
        both = self.places / self.length
        rows = {"walker_0": both, "walker_1": both[::-1]}
        return {agent: rows[agent].astype(np.float32) for agent in self.agents}
