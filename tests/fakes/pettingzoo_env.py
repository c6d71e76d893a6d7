"""PettingZoo environment in which agents end before their episode does."""

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete
from pettingzoo import ParallelEnv


class HuntEnv(ParallelEnv):
    """Environment of two hunters and a prey; agent k terminates after ``lives[k]`` steps.

    Hunter k gets the reward k + 1 in each step, the prey -1. Each observes (steps so far, k), the prey one
    zero more. Action 2 of a hunter is invalid in odd steps.

    Args:
        lives: steps of the two hunters and the prey.
        limit: steps after which the others are truncated.
        says: source of the action mask, ``observation`` or ``info``; ``None``: no mask.
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

    def observe_all(self) -> dict[str, Any]:
        observations: dict[str, Any] = {}
        for k, agent in enumerate(self.possible_agents):
            if agent in self.acting:
                row = np.array([self.steps, k, 0][: 2 + (agent == "prey_0")], np.float32)
                has_mask = self.says == "observation" and agent != "prey_0"
                observations[agent] = (
                    {"observation": row, "action_mask": self.masks(agent)} if has_mask else row
                )
        return observations

    def infos(self) -> dict[str, Any]:
        has_mask = self.says == "info"
        return {agent: {"action_mask": self.masks(agent)} if has_mask else {} for agent in self.acting}

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.steps, self.drawn = 0, self.rng.random()
        self.agents = self.acting = [*self.possible_agents]
        return self.observe_all(), self.infos()

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
        self.agents = [agent for agent in self.acting if not (terminated[agent] or truncated[agent])]
        return (
            self.observe_all(),
            {agent: paid[agent] for agent in self.acting},
            terminated,
            truncated,
            self.infos(),
        )

    def render(self) -> np.ndarray:
        return np.full((20, 30, 3), 10 * self.steps, np.uint8)
