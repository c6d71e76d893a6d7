"""Turn-based PettingZoo game."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import AECEnv


class NimEnv(AECEnv):
    """Nim: players take one to three stones in turn; who takes the last one wins.

    Args:
        stones: at the start.
        says: source of the action mask, ``observation`` or ``info``.
        start: the number of the action that takes one stone.
    """

    metadata = {"name": "nim"}  # noqa: RUF012 - as PettingZoo has it

    def __init__(self, stones: int = 5, says: str = "observation", start: int = 0) -> None:
        super().__init__()
        self.stones, self.says, self.start = stones, says, start
        self.possible_agents = ["one", "two"]
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        inner = Box(0, self.stones, (1,), np.float32)
        if self.says == "info":
            return inner
        return Dict({"observation": inner, "action_mask": Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return Discrete(3, start=self.start)

    def allowed(self) -> np.ndarray:
        return (np.arange(3) < max(self.left, 1)).astype(np.int8)

    def observe(self, agent: str) -> Any:
        row = np.array([self.left], np.float32)
        return row if self.says == "info" else {"observation": row, "action_mask": self.allowed()}

    def reset(self, seed: int | None = None, options: dict | None = None) -> None:
        self.agents, self.left, self.agent_selection = [*self.possible_agents], self.stones, "one"
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.write_infos()

    def write_infos(self) -> None:
        info = {"action_mask": self.allowed()} if self.says == "info" else {}
        self.infos = {agent: dict(info) for agent in self.agents}

    def step(self, action: int | None) -> None:
        mover = self.agent_selection
        if self.terminations[mover]:
            return self._was_dead_step(action)
        assert action is not None
        assert self.action_space(mover).contains(action), action
        taken = int(action) - self.start + 1
        assert taken <= self.left
        self.left -= taken
        other = "two" if mover == "one" else "one"
        if self.left == 0:
            self.rewards = {mover: 1.0, other: -1.0}
            self.terminations = dict.fromkeys(self.agents, True)
        self.agent_selection = other
        self.write_infos()
