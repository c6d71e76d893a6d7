"""Games of a run against OpenSpiel's Monte Carlo tree search: python scripts/benchmark/mcts.py run=outputs/…

Keys: run (a run of env=open_spiel), checkpoint (last, best or a number of frames), games (their number, half
of them from each seat, 200), simulations (of each search, 10,100,1000), seed (of the searches, 0).

The policy plays its likeliest moves. A search evaluates a position by one game of random moves.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from omegaconf import MISSING

import hydrl
from hydrl.config.command_line import exit_process, read_arguments, script
from hydrl.deploy.policy import Policy
from hydrl.envs import open_spiel
from hydrl.envs.self_play import OpponentPool
from hydrl.run.logging.console import print_table

EXPLORATION, MEMORY_MB = 2.0, 1_000  # the weight of the upper confidence bound; OpenSpiel's examples have it


@dataclass
class Arguments:
    """What the command line can set."""

    run: str = MISSING
    checkpoint: str = "last"
    games: int = 200
    simulations: str = "10,100,1000"
    seed: int = 0


class SearchOpponent(OpponentPool):
    """Opponent that chooses its moves by Monte Carlo tree search.

    Args:
        simulations: games of random moves in each search.
        seed: of the search.
    """

    def __init__(self, simulations: int, seed: int) -> None:
        super().__init__(every_frames=1, pool_size=1, latest_prob=1.0)
        self.simulations, self.seed = simulations, seed

    def follow(self, env: open_spiel.OpenSpielEnv) -> None:
        """Searches in the games of an environment."""
        import pyspiel

        self.game = env.game
        evaluator = pyspiel.RandomRolloutEvaluator(1, self.seed)
        self.bot = pyspiel.MCTSBot(
            self.game.game, evaluator, EXPLORATION, self.simulations, MEMORY_MB, True, self.seed, False
        )

    def sample(self, rng: np.random.Generator) -> int:
        """The only opponent."""
        return 0

    def act(self, index: int, observation: Any, mask: np.ndarray) -> int:
        """The move that the search prefers in the running game."""
        return self.bot.step(self.game.state)


def play(policy: Policy, id: str, seat: str, opponent: SearchOpponent, games: int) -> np.ndarray:
    """The policy's return in each game from one seat, ``[games]``."""
    env = open_spiel.make(id, seat, opponent)
    opponent.follow(env.unwrapped)
    returns = np.zeros(games)
    for number in range(games):
        observation, _ = env.reset(seed=number)
        is_over = False
        while not is_over:
            action = policy.predict(observation, mask=env.unwrapped.action_masks())
            observation, reward, terminated, truncated, _ = env.step(action)
            returns[number] += reward
            is_over = terminated or truncated
    return returns


def main(arguments: Arguments) -> None:
    """Prints the shares of games that were won and not lost, by the number of simulations.

    Raises:
        UserError: for no run folder, or a run of another environment.
    """
    policy = hydrl.load(arguments.run, checkpoint=arguments.checkpoint)
    id = policy.run.task
    rows = dict[str, str]()
    for simulations in map(int, arguments.simulations.split(",")):
        for seat in ("player_0", "player_1"):
            opponent = SearchOpponent(simulations, arguments.seed)
            returns = play(policy, id, seat, opponent, arguments.games // 2)
            won, not_lost = (returns > 0).mean(), (returns >= 0).mean()
            rows[f"{simulations:,} simulations, {seat}"] = f"won {won:.0%}, not lost {not_lost:.0%}"
    print_table(f"{id} against MCTSBot, {arguments.games} games", rows)


if __name__ == "__main__":
    exit_process(
        script(lambda words: main(read_arguments(Arguments, words, "run=outputs/… games=200")), __doc__)
    )
