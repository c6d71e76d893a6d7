"""OpenSpiel's games against opponents who play at random, by the same seed."""

from functools import partial

import numpy as np
from gymnasium.spaces import Discrete
from gymnasium.utils.seeding import np_random

from tests.envs.families.case import Case


class SpielTable:
    """A game of OpenSpiel with Gymnasium's methods, for one player.

    One generator draws, in this order, each game's player, the seed of its chance moves and the moves of
    the others.
    """

    def __init__(self, name):
        import pyspiel

        self.game = pyspiel.load_game(name)
        self.observes_all = self.game.get_type().provides_information_state_tensor
        self.action_space = Discrete(self.game.num_distinct_actions())

    def reset(self, seed=None):
        if seed is not None:
            self.rng, _ = np_random(seed)
        while True:
            self.player = int(self.rng.integers(self.game.num_players()))
            self.chance = np.random.default_rng(int(self.rng.integers(2**31)))
            self.state, self.total = self.game.new_initial_state(), 0.0
            self.play_others()
            if not self.state.is_terminal():
                return self.observe(), {}

    def step(self, action):
        valid = self.state.legal_actions()
        self.state.apply_action(int(action) if action in valid else valid[0])  # check_masks sees invalid ones
        self.play_others()
        before, self.total = self.total, self.state.returns()[self.player]  # of all of the game so far
        return self.observe(), self.total - before, self.state.is_terminal(), False, {}

    def play_others(self):
        while not self.state.is_terminal() and self.state.current_player() != self.player:
            if self.state.is_chance_node():
                moves, odds = zip(*self.state.chance_outcomes(), strict=True)
                self.state.apply_action(int(self.chance.choice(moves, p=odds)))
            else:
                self.state.apply_action(int(self.rng.choice(self.state.legal_actions())))

    def observe(self):
        if self.observes_all:
            return np.array(self.state.information_state_tensor(self.player))
        return np.array(self.state.observation_tensor(self.player))

    def mask(self):
        legal = set(range(self.action_space.n) if self.state.is_terminal() else self.state.legal_actions())
        return np.array([action in legal for action in range(self.action_space.n)])

    def close(self):
        pass


def game_case(name, game, fast_num_envs, read=lambda tensor: {"observation": tensor}, steps=512):
    return Case(
        name,
        ["env=open_spiel", f'env.id="{game}"'],
        partial(SpielTable, game),
        read=read,
        ends={"terminated"},
        mask=SpielTable.mask,
        package="pyspiel",
        fast_num_envs=fast_num_envs,
        steps=steps,
    )


CASES = [
    game_case("leduc", "leduc_poker", (1, 3)),
    game_case("hanabi", "hanabi(players=2,colors=2,ranks=3)", (1,)),  # pays in the middle of a game
    game_case("goofspiel", "turn_based_simultaneous_game(game=goofspiel(num_cards=4))", ()),
    game_case(
        "connect-four-of-openspiel",
        "connect_four",
        (),
        lambda tensor: {"pixels": tensor.reshape(3, 6, 7)},
    ),
]
