"""PettingZoo's turn-based games against opponents who play at random: any valid reply may be theirs."""

from copy import copy, deepcopy
from functools import partial
from importlib import import_module

import numpy as np

from tests.envs.families.case import Case, RawStep


def copy_game(game):
    """A copy; PettingZoo's own copies begin anew."""
    copied = copy(game)
    copied.__dict__.update(deepcopy(game.__dict__))
    return copied


def replies(game, player):
    """The game at the player's next turn, dead or alive, for all valid moves of the others."""
    if game.agent_selection == player:
        yield game
        return
    observation, _, terminated, truncated, _ = game.last()
    moves = [None] if terminated or truncated else np.flatnonzero(observation["action_mask"])
    for move in moves:
        after = copy_game(game)
        after.step(move)
        yield from replies(after, player)


class Table:
    """A game and the player whose moves are the agent's."""

    def __init__(self, game, player):
        self.game, self.player = game, player

    def observe(self):
        return self.game.observe(self.player)


class SearchedGames:
    """Games in which the others' moves are looked for that lead to what hydrl observed, if any does."""

    def __init__(self, case, rows):
        self.case, self.rows = case, rows
        self.envs, self.times = (
            [Table(case.make_raw(), None) for _ in rows.ends["done"]],
            [0] * len(rows.ends["done"]),
        )

    def begin(self, seed):
        return self.reset(range(len(self.envs)))

    def reset(self, indices):
        return [self.find(index, self.starts(), self.rows.before, self.times[index]) for index in indices]

    def starts(self):
        game = self.case.make_raw()
        game.reset()
        for player in game.possible_agents:
            yield from ((after, player) for after in replies(game, player))

    def step(self, actions):
        results = []
        for index, action in enumerate(actions):
            table = self.envs[index]
            game, player = copy_game(table.game), table.player
            game.step(action)
            games = ((after, player) for after in replies(game, player))
            observation = self.find(index, games, self.rows.after, self.times[index])
            self.times[index] += 1
            _, reward, terminated, truncated, _ = self.envs[index].game.last()
            results.append(RawStep(observation, reward, terminated, truncated))
        return results

    def find(self, index, games, entries, time):
        """Takes the first of some games whose observation is that of a row, else the last of them."""
        for game, player in games:
            self.envs[index] = Table(game, player)
            observation = self.envs[index].observe()
            rows = entries["observation"][index]
            if time == len(rows) or np.array_equal(
                np.ravel(self.case.read(observation)["observation"]), np.ravel(rows[time])
            ):
                break
        return observation

    def close(self):
        for table in self.envs:
            table.game.close()


def make_game(name):
    return import_module(f"pettingzoo.classic.{name}").raw_env()


def game_case(name, module, read, fast_num_envs):
    return Case(
        name,
        ["env=self_play", f"env.id=classic/{module}"],
        partial(make_game, module),
        read=read,
        ends={"terminated"},
        mask=lambda table: table.observe()["action_mask"].astype(bool),
        action_space=lambda table: table.game.action_space(table.player),
        make_vector=SearchedGames,
        package="pettingzoo",
        random_starts=False,
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
