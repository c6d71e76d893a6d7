"""A task by PettingZoo's API as people write one, in which agents end before their episode does."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv


class Hunt(ParallelEnv):
    """Hunter k is paid k + 1 a step, the prey -1; agent k ends by itself after ``lives[k]`` steps.

    Each observes (the steps so far, k), the prey one zero more. A hunter that takes action 2 in an odd
    step ends a test.

    Args:
        lives: steps of the two hunters and the prey.
        limit: steps after which the others are truncated.
        says: where it is told which actions are allowed, ``observation`` or ``info``; ``None`` tells nothing.
        first: the first action's number.
    """

    metadata = {"name": "hunt", "render_fps": 5}  # noqa: RUF012 - as PettingZoo has it

    def __init__(
        self,
        lives: tuple[int, ...] = (2, 4, 3),
        limit: int = 9,
        says: str | None = None,
        first: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self.possible_agents = ["hunter_0", "hunter_1", "prey_0"]
        self.lives, self.limit, self.says, self.first = lives, limit, says, first
        self.render_mode = render_mode
        self.rng = np.random.default_rng()

    def observation_space(self, agent: str) -> Any:
        inner = Box(-100, 100, (2 + (agent == "prey_0"),), np.float32)
        if self.says != "observation" or agent == "prey_0":
            return inner
        return Dict({"observation": inner, "action_mask": Box(0, 1, (3,), np.int8)})

    def action_space(self, agent: str) -> Any:
        return Discrete(3, start=self.first)

    def masks(self, agent: str) -> np.ndarray:
        return np.array([1, 1, agent == "prey_0" or self.steps % 2 == 0], np.int8)

    def seen(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for k, agent in enumerate(self.possible_agents):
            if agent in self.acting:
                row = np.array([self.steps, k, 0][: 2 + (agent == "prey_0")], np.float32)
                told = self.says == "observation" and agent != "prey_0"
                found[agent] = {"observation": row, "action_mask": self.masks(agent)} if told else row
        return found

    def infos(self) -> dict[str, Any]:
        told = self.says == "info"
        return {agent: {"action_mask": self.masks(agent)} if told else {} for agent in self.acting}

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps, self.drawn = 0, self.rng.random()
        self.agents = self.acting = [*self.possible_agents]
        return self.seen(), self.infos()

    def step(self, actions: dict[str, int]) -> tuple[dict, dict, dict, dict, dict]:
        assert set(actions) == set(self.agents)
        for agent, action in actions.items():
            assert self.says is None or self.masks(agent)[action - self.first], (agent, action)
        self.steps += 1
        self.acting = [*self.agents]
        lives = dict(zip(self.possible_agents, self.lives, strict=True))
        terminated = {agent: self.steps >= lives[agent] for agent in self.acting}
        truncated = dict.fromkeys(self.acting, self.steps >= self.limit)
        paid = {agent: -1.0 if agent == "prey_0" else k + 1.0 for k, agent in enumerate(self.possible_agents)}
        self.agents = [each for each in self.acting if not (terminated[each] or truncated[each])]
        return self.seen(), {each: paid[each] for each in self.acting}, terminated, truncated, self.infos()

    def render(self) -> np.ndarray:
        return np.full((20, 30, 3), 10 * self.steps, np.uint8)
