"""PettingZoo's turn-based games against opponents who play at random, by the same seed."""

from functools import partial
from importlib import import_module

import numpy as np
from gymnasium.utils.seeding import np_random

from tests.envs.families.case import Case


class Table:
    """A game with Gymnasium's methods, for one player.

    One generator draws, in this order, each game's player, its seed and the others' moves.
    """

    def __init__(self, name):
        self.game = import_module(f"pettingzoo.classic.{name}").raw_env()

    def reset(self, seed=None):
        if seed is not None:
            self.rng, _ = np_random(seed)
        players = self.game.possible_agents
        self.player = players[self.rng.integers(len(players))]
        self.game.reset(seed=int(self.rng.integers(2**31)))
        self.play_others()
        return self.observe(), {}

    def step(self, action):
        valid = self.observe()["action_mask"]
        self.game.step(action if valid[action] else valid.argmax())  # invalid ones are seen by check_masks
        reward = self.game.rewards[self.player] + self.play_others()
        ends = [flags[self.player] for flags in (self.game.terminations, self.game.truncations)]
        return self.observe(), reward, *ends, {}

    def play_others(self):
        """Random moves until the player's turn; returns what they paid the player."""
        game, reward = self.game, 0
        while game.agent_selection != self.player and not game.terminations[self.player]:
            valid = np.flatnonzero(game.observe(game.agent_selection)["action_mask"])
            game.step(self.rng.choice(valid))
            reward += game.rewards[self.player]
        return reward

    def observe(self):
        return self.game.observe(self.player)

    def close(self):
        self.game.close()


def game_case(name, module, read, fast_num_envs):
    return Case(
        name,
        ["env=self_play", f"env.id=classic/{module}"],
        partial(Table, module),
        read=read,
        ends={"terminated"},
        mask=lambda table: table.observe()["action_mask"].astype(bool),
        action_space=lambda table: table.game.action_space(table.player),
        package="pettingzoo",
        fast_num_envs=fast_num_envs,
    )


CASES = [
    game_case("tictactoe", "tictactoe_v3", lambda board: {"observation": board["observation"]}, (1,)),
    game_case(
        "connect-four",
        "connect_four_v3",
        lambda board: {"observation": np.moveaxis(board["observation"], -1, 0)},
        (),
    ),
]
