"""NashConv: how much best responses gain against a policy, in OpenSpiel's games (Lanctot et al. 2017).

It is 0 in a Nash equilibrium, and summed over both players. OpenSpiel computes it exactly, from the policy's
probabilities in every information state.
"""

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from math import nan
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModuleBase
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl.envs.open_spiel import OpenSpielEnv
from hydrl.envs.self_play import frozen_copy
from hydrl.envs.spaces import adapt_entry, get_path
from hydrl.errors import UserError
from hydrl.specs import MASK, first_gym_env, opponent_pool

MAX_INFORMATION_STATES = 100_000
BATCH = 4_096  # information states that a network reads at once
Table = dict[str, dict[int, float]]  # probabilities of valid actions by information state


class NashConvMeter:
    """Measures the NashConv of a run's policies in its game.

    Args:
        env: the run's environment, whose transforms policies need.
        policy: the current policy.
        key: of the setting that asks for it, in messages.

    Raises:
        UserError: unless it is a game of OpenSpiel for two players with information states, at most
            :data:`MAX_INFORMATION_STATES`, and the policy has action probabilities.
    """

    def __init__(self, env: TransformedEnv, policy: TensorDictModuleBase, key: str) -> None:
        self.env, self.policy, self.key, self.spiel_env = env, policy, key, find_game(env, key)
        if len(find_heads(policy)) != 1:
            raise UserError(
                f"{key}=true: this policy has no action probabilities. Use an algorithm with "
                "actor=stochastic, such as algo=ppo, or leave it out."
            )
        self.game = self.spiel_env.game.game
        self.states = self.find_information_states()

    def find_information_states(self) -> dict[str, Any]:
        """A state of each information state in which a player moves, by its name.

        Raises:
            UserError: for too many, as soon as they are found, or names without the player.
        """
        states, waiting = dict[str, Any](), [self.game.new_initial_state()]
        label = f"{self.key}=true: env.id={self.spiel_env.id}"
        while waiting:
            state = waiting.pop()
            if state.is_terminal():
                continue
            if not state.is_chance_node():
                known = states.setdefault(state.information_state_string(), state)
                if known.current_player() != state.current_player():
                    raise UserError(f"{label} has information states without the player. Leave it out.")
                if len(states) > MAX_INFORMATION_STATES:
                    limit = f"{MAX_INFORMATION_STATES:,} information states"
                    raise UserError(f"{label} has more than {limit}. Leave it out.")
            waiting += [state.child(action) for action in state.legal_actions()]
        return states

    def measure(self, pool_weights: Sequence[Mapping[str, Any]] = ()) -> dict[str, float]:
        """The NashConv of the policy, and of the average of the opponent pool.

        The average is the strategy of drawing a policy before each game: probabilities weighted by how
        likely each policy comes to an information state.

        Args:
            pool_weights: state dictionaries of the pool's policies, see
                :meth:`hydrl.envs.self_play.OpponentPool.state_dict`.

        Returns:
            ``nash_conv``, ``nash_conv_average``, NaN with an empty pool, and ``nash_policies``, the number
            of policies in that average.
        """
        network = frozen_copy(self.policy, self.env).cpu()
        current, pool = self.tabulate(network), list[Table]()
        for weights in pool_weights:
            network.load_state_dict(weights)
            pool.append(self.tabulate(network))
        average = self.nash_conv(self.average(pool)) if pool else nan
        return {
            "nash_conv": self.nash_conv(current),
            "nash_conv_average": average,
            "nash_policies": float(len(pool)),
        }

    @torch.no_grad()
    def tabulate(self, policy: TensorDictModuleBase) -> Table:
        """A policy's probabilities of valid actions in every information state."""
        (head,) = find_heads(policy)
        table, states = Table(), [*self.states.items()]
        for first in range(0, len(states), BATCH):
            names, batch = zip(*states[first : first + BATCH], strict=True)
            with set_exploration_type(ExplorationType.DETERMINISTIC):  # draws no random numbers
                output = policy(self.observe(batch))
            rows = head.get_dist(output).probs.double().numpy(force=True)
            for name, state, row in zip(names, batch, rows, strict=True):
                valid = state.legal_actions()
                table[name] = dict(zip(valid, (row[valid] / row[valid].sum()).tolist(), strict=True))
        return table

    def observe(self, states: Sequence[Any]) -> TensorDict:
        """What the players to move observe in some states, with action masks, ``[states, ...]``."""
        game, columns = self.spiel_env.game, dict[str, list[np.ndarray]]()
        for state in states:
            tensor = game.tensor_of(state, state.current_player())
            for name, (path, space) in self.spiel_env.entries.items():
                columns.setdefault(name, []).append(adapt_entry(get_path(tensor, path), space))
            columns.setdefault(MASK, []).append(game.mask_of(state))
        entries = {name: torch.from_numpy(np.stack(values)) for name, values in columns.items()}
        return TensorDict(entries, len(states))

    def average(self, tables: Sequence[Table]) -> Table:
        """The average of policies by OpenSpiel's ``PolicyAggregator``, all with the same weight."""
        aggregator = import_module("open_spiel.python.algorithms.policy_aggregator")
        key, players = StateKey(), range(self.game.num_players())
        policies = [[TabularPolicy(table, key) for table in tables] for _ in players]
        weights = [[1 / len(tables)] * len(tables) for _ in players]
        averages = aggregator.PolicyAggregator(self.game).aggregate([*players], policies, weights).policy
        return {name: row for table in averages for name, row in table.items()}

    def nash_conv(self, table: Table) -> float:
        """The NashConv of both players acting by a table."""
        pyspiel = import_module("pyspiel")
        return float(pyspiel.nash_conv(self.game, {name: [*row.items()] for name, row in table.items()}))


class StateKey:
    """Function of a state to the name of its information state, which remembers the last one."""

    def __init__(self) -> None:
        self.state: Any = None
        self.name = ""

    def __call__(self, state: Any) -> str:
        """The name; many policies are asked about the same state in a row."""
        if state is not self.state:
            self.state, self.name = state, state.information_state_string()
        return self.name


class TabularPolicy:
    """Policy with OpenSpiel's method ``action_probabilities``, from a table.

    Args:
        table: probabilities by information state.
        key: names the information state of a state.
    """

    def __init__(self, table: Table, key: StateKey) -> None:
        self.table, self.key = table, key

    def action_probabilities(self, state: Any, player_id: int | None = None) -> dict[int, float]:
        """The probabilities of the player to move."""
        return self.table[self.key(state)]


def find_heads(policy: TensorDictModuleBase) -> list[ProbabilisticTensorDictModule]:
    """The modules of a policy that make a distribution of its actions."""
    return [module for module in policy.modules() if isinstance(module, ProbabilisticTensorDictModule)]


def find_game(env: EnvBase, key: str) -> OpenSpielEnv:
    """The first environment of a vector, which has to be a game of OpenSpiel with information states.

    Args:
        env: the run's environment.
        key: of the setting, in messages.

    Raises:
        UserError: if it is not, or has other than two players.
    """
    gym_env = first_gym_env(env)
    spiel_env = getattr(gym_env, "unwrapped", None)
    if not isinstance(spiel_env, OpenSpielEnv):
        raise UserError(f"{key}=true: it needs a game of OpenSpiel. Write env=open_spiel, or leave it out.")
    game, label = spiel_env.game.game, f"{key}=true: env.id={spiel_env.id}"
    if game.num_players() != 2:
        raise UserError(f"{label} has {game.num_players()} players, not two. Leave it out.")
    if not game.get_type().provides_information_state_string:
        raise UserError(f"{label} does not name its information states. Leave it out.")
    if spiel_env.seat is not None:
        raise UserError(f"{key}=true: env.seat={spiel_env.seat} learns one player only. Write env.seat=null.")
    return spiel_env


def make_measure(
    env: TransformedEnv, policy: TensorDictModuleBase, *, wanted: bool
) -> Callable[[], dict[str, float]]:
    """The function by which ``eval.nash=true`` measures the run's policy and its opponent pool.

    Args:
        env: the training environment.
        policy: the current policy.
        wanted: ``eval.nash``; without it the function measures nothing.

    Raises:
        UserError: see :class:`NashConvMeter`.
    """
    if not wanted:
        return dict
    meter, pool = NashConvMeter(env, policy, "eval.nash"), opponent_pool(env)
    return lambda: meter.measure([] if pool is None else pool.state_dict()["policies"])
