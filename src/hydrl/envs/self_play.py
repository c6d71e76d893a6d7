"""Self-play in PettingZoo's turn-based games: earlier policies are the opponents."""

from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from typing import Any, Literal, NamedTuple, Self

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Dict
from tensordict import TensorDict
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModuleBase, TensorDictSequential
from torchrl.envs import DoubleToFloat, Transform, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type
from torchrl.modules import QValueModule

from hydrl.envs.optional import require_package
from hydrl.envs.pettingzoo import call_maker, find_mask, import_env_module, import_own_env
from hydrl.envs.spaces import (
    adapt_entry,
    get_path,
    is_image,
    leaf_spaces,
    name_channels,
)
from hydrl.envs.transforms import detach_transform, transforms_read_by
from hydrl.errors import RunError, UserError
from hydrl.limits import Fraction, PositiveInt
from hydrl.specs import MASK


class OpponentPool:
    """Pool of the run's earlier policies, which play the opponents; from an empty pool, moves are random.

    All environments of a run share the pool, and checkpoints contain it.

    Args:
        every_frames: frames of training after which the current policy is added.
        pool_size: number of policies, the newest.
        latest_prob: probability that an opponent is the newest policy; otherwise it is drawn uniformly.
        random_prob: probability that an opponent's move is a random valid one, for more varied games.

    Attributes:
        batched: whether the opponents of all environments move by one network call; older runs continue with
            one call for each move, which draws other random numbers.
    """

    def __init__(
        self,
        every_frames: PositiveInt,
        pool_size: PositiveInt,
        latest_prob: Fraction,
        random_prob: Fraction = 0.0,
    ) -> None:
        self.every_frames, self.latest_prob, self.random_prob = every_frames, latest_prob, random_prob
        self.batched = True
        self.policies: deque[TensorDictModuleBase] = deque(maxlen=pool_size)
        self.joined = 0  # multiples of every_frames
        self.stack: PolicyStack | None = None  # of the policies as they are now

    def __deepcopy__(self, memo: dict) -> Self:
        """Returns the pool itself: environments are made from copied keywords and share it."""
        return self

    def check(self, policy: TensorDictModuleBase, env: TransformedEnv) -> None:
        """Checks before a run that its policy can play as an opponent.

        Raises:
            UserError: see :func:`opponent_transforms`.
        """
        opponent_transforms(policy, env)

    def maybe_add(self, policy: TensorDictModuleBase, frames: int, env: TransformedEnv) -> None:
        """Adds a copy of the policy after each ``every_frames`` frames of training.

        Args:
            policy: the current policy.
            frames: frames of training so far.
            env: its environment, whose transforms opponents use.
        """
        if frames // self.every_frames > self.joined:
            self.joined, self.stack = frames // self.every_frames, None
            self.policies.append(frozen_copy(policy, env))

    def sample(self, rng: np.random.Generator) -> int | None:
        """Draws the index of an opponent for a game; ``None`` plays at random."""
        if not self.policies:
            return None
        last = len(self.policies) - 1
        return last if rng.random() < self.latest_prob else int(rng.integers(last + 1))

    @torch.no_grad()
    def act(self, index: int, observation: dict[str, np.ndarray], mask: np.ndarray) -> int:
        """An opponent's action, sampled from its policy.

        Args:
            index: of the policy.
            observation: the entries it observes, as the run's networks read them.
            mask: the action mask, ``[actions]``.
        """
        entries = {name: torch.as_tensor(value).float() for name, value in observation.items()}
        with set_exploration_type(ExplorationType.RANDOM):
            output = self.policies[index](TensorDict({**entries, MASK: torch.from_numpy(mask)}))
        action = output["action"]
        return int(action.argmax(-1) if action.ndim else action)

    @torch.no_grad()
    def act_together(self, requests: "Sequence[MoveRequest]") -> list[int]:
        """The actions of several opponents, see :class:`PolicyStack`."""
        if len(requests) == 1:
            return [self.act(*requests[0])]
        if self.stack is None:
            self.stack = PolicyStack([*self.policies])
        indices = torch.tensor([request.policy_index for request in requests])
        names = {
            name: [request.observation[name] for request in requests] for name in requests[0].observation
        }
        entries = {name: torch.from_numpy(np.stack(values)).float() for name, values in names.items()}
        masks = torch.from_numpy(np.stack([request.mask for request in requests]))
        with set_exploration_type(ExplorationType.RANDOM):
            actions = self.stack(indices, TensorDict({**entries, MASK: masks}, len(requests)))
        return (actions.argmax(-1) if actions.ndim > 1 else actions).tolist()

    def state_dict(self) -> dict[str, Any]:
        """The opponents' weights."""
        policies = [dict(policy.state_dict()) for policy in self.policies]
        return {"joined": self.joined, "policies": policies, "batched": self.batched}

    def load_state_dict(
        self, state: dict[str, Any], policy: TensorDictModuleBase, env: TransformedEnv
    ) -> None:
        """Loads :meth:`state_dict`; all opponents have the architecture of ``policy`` in ``env``."""
        self.joined, self.stack, self.batched = state["joined"], None, state.get("batched", False)
        self.policies.clear()
        for weights in state["policies"]:
            self.policies.append(frozen_copy(policy, env))
            self.policies[-1].load_state_dict(weights)

    @contextmanager
    def restored(self, state: Mapping[str, Any]) -> Iterator[None]:
        """Context manager that replaces the pool by an earlier :meth:`state_dict`, with at most as many."""
        current, earlier = self.policies, deque[TensorDictModuleBase](maxlen=self.policies.maxlen)
        for weights in state["policies"]:
            earlier.append(deepcopy(current[-1]))
            earlier[-1].load_state_dict(weights)
        batched = self.batched
        self.policies, self.stack, self.batched = earlier, None, state.get("batched", False)
        try:
            yield
        finally:
            self.policies, self.stack, self.batched = current, None, batched


class PolicyStack:
    """Policies of one architecture with their weights stacked, so that one call acts by several of them.

    Args:
        policies: deterministic modules, then one that makes a distribution; others act one after the other.
    """

    def __init__(self, policies: Sequence[TensorDictModuleBase]) -> None:
        self.policies = policies
        *parts, self.head = leaf_modules(policies[0])
        self.can_stack = isinstance(self.head, ProbabilisticTensorDictModule) and not any(
            isinstance(part, ProbabilisticTensorDictModule | QValueModule | Transform) for part in parts
        )
        if self.can_stack:
            networks = [TensorDictSequential(*[*leaf_modules(policy)][:-1]) for policy in policies]
            self.network = networks[0]
            self.weights = TensorDict.from_modules(*networks)

    def __call__(self, indices: torch.Tensor, observations: TensorDict) -> torch.Tensor:
        """Actions, sampled.

        Args:
            indices: of the policies, ``[moves]``.
            observations: with action masks, ``[moves, ...]``.
        """
        if not self.can_stack:
            actions = dict[int, torch.Tensor]()
            for index in indices.unique().tolist():
                rows = (indices == index).nonzero().flatten()
                output = self.policies[index](observations[rows])["action"]
                actions |= dict(zip(rows.tolist(), output, strict=True))
            return torch.stack([actions[row] for row in range(len(indices))])
        outputs = torch.vmap(self.call_network)(self.weights[indices], observations)
        return self.head(outputs)["action"]

    def call_network(self, weights: TensorDict, observation: TensorDict) -> TensorDict:
        """The network's outputs with other weights."""
        with weights.to_module(self.network):
            return self.network(observation)


def leaf_modules(policy: TensorDictModuleBase) -> Iterator[TensorDictModuleBase]:
    """The modules of a policy in the order they are called, sequences taken apart."""
    if isinstance(policy, TensorDictSequential):
        for module in policy.module:
            yield from leaf_modules(module)
    else:
        yield policy


def frozen_copy(policy: TensorDictModuleBase, env: TransformedEnv) -> TensorDictModuleBase:
    """A frozen copy of a policy, preceded by the transforms of ``env`` that it needs."""
    transforms = list(map(detach_transform, opponent_transforms(policy, env)))
    network = TensorDictSequential(*transforms, policy) if transforms else policy
    return deepcopy(network).eval().requires_grad_(False)


def opponent_transforms(policy: TensorDictModuleBase, env: TransformedEnv) -> list[Transform]:
    """The transforms of ``env`` that an opponent needs.

    Raises:
        UserError: for a transform that needs earlier steps, such as frame stacking.
    """
    transforms = [
        transform for transform in transforms_read_by(policy, env) if not isinstance(transform, DoubleToFloat)
    ]  # observations are floats already
    for transform in transforms:
        needs_steps = type(transform)._apply_transform is Transform._apply_transform
        if needs_steps and not hasattr(transform, "to_observation_norm"):
            raise UserError(
                f"env.opponents: opponents cannot use {type(transform).__name__}, which needs earlier steps. "
                "Leave it out of transforms, or write env.opponents=null for random opponents."
            )
    return transforms


def make(
    id: str,
    seat: str | None = None,
    opponents: OpponentPool | None = None,
    render_mode: str | None = None,
    channels: Literal["first", "last"] | None = None,
    **kwargs: Any,
) -> gymnasium.Env:
    """Makes a turn-based game with opponents by its name, such as ``classic/tictactoe_v3``.

    Args:
        id: ``FAMILY/NAME_vN``, the name of PettingZoo's module, or ``MODULE:CLASS`` for your own
            ``pettingzoo.AECEnv``.
        seat: the agent's player; ``None`` draws one for each game.
        opponents: the pool that plays the others; ``None``: random moves.
        render_mode: ``rgb_array`` for videos.
        channels: where images have them, ``last`` in PettingZoo's games; ``None``: the shorter side.
        **kwargs: passed to the game.

    Raises:
        UserError: for an unknown game or player, or one whose agents act at once.
    """
    pettingzoo = require_package("pettingzoo", "pettingzoo", "self_play")
    simultaneous_error = UserError(f"env.id={id}: its agents act at once. Write env=pettingzoo env.id={id}.")
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    if ":" in id:
        game = call_maker(import_own_env(id), id, kwargs)
    elif hasattr(module := import_env_module(id), "parallel_env"):
        raise simultaneous_error
    else:
        game = call_maker(module.env, id, kwargs)
    if not isinstance(game, pettingzoo.AECEnv):
        raise simultaneous_error
    game.reset(seed=0)
    mask_in_info = MASK in game.infos[game.agent_selection]
    make_env = MaskedSelfPlayEnv if mask_in_info else SelfPlayEnv
    return make_env(game, id, seat, opponents, channels)


class MoveRequest(NamedTuple):
    """A move that a policy of the pool has to choose: the arguments of :meth:`OpponentPool.act`."""

    policy_index: int
    observation: dict[str, np.ndarray]
    mask: np.ndarray


Moves = Generator[MoveRequest, int, None]  # gets the action of each move


class SelfPlayEnv(gymnasium.Env):
    """Gymnasium environment of one player in a turn-based game; a step includes the opponents' replies.

    Rewards during the replies belong to the player's last move: games give the loser's -1 in the winner's
    turn. At the end ``info`` has ``not_lost``, and the same as ``not_lost_first`` or ``not_lost_later`` by
    who moved first.

    A step and a reset are generators that yield each move of the pool's policies, so that those of several
    environments can be chosen together.

    Args:
        game: a ``pettingzoo.AECEnv``.
        id: its name.
        seat: see :func:`make`, as ``opponents``.
        opponents: the pool that plays the others.
        channels: see :func:`make`.

    Attributes:
        prepared: the step or reset that was played together with others, and not asked for yet.
    """

    prepared: tuple[Any, ...] | None = None  # checkpoints of older runs lack it

    def __init__(
        self,
        game: Any,
        id: str,
        seat: str | None,
        opponents: OpponentPool | None,
        channels: Literal["first", "last"] | None = None,
    ) -> None:
        self.game, self.id, self.seat, self.opponents = game, id, seat, opponents
        players = game.possible_agents
        if seat not in (None, *players):
            raise UserError(
                f"env.seat={seat}: no such player. Write {' or '.join(players)}, or null to draw one a game."
            )
        self.metadata = getattr(game, "metadata", {})
        self.render_mode = getattr(game.unwrapped, "render_mode", None)
        self.player = seat or players[0]
        self.opponent_index: int | None = None
        self.reward = self.episode_return = 0.0
        self.observation_space = name_channels(game.observation_space(self.player), channels)
        self.action_space = game.action_space(self.player)
        space = self.observation_space
        if isinstance(space, Dict):
            space = Dict({key: subspace for key, subspace in space.items() if key != MASK})
        default_name = "pixels" if is_image(space) else "observation"
        self.entries = {name or default_name: path_and_space for name, path_and_space in leaf_spaces(space)}

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        """Begins a game, in which opponents may move first."""
        if not self.take_prepared("reset", seed):
            super().reset(seed=seed)
            self.play(self.reset_moves())
        return self.game.observe(self.player), {}

    def reset_moves(self) -> "Moves":
        """Begins a game and plays until the player's first turn; yields the moves of policies."""
        players, rng = self.game.possible_agents, self.np_random
        while True:
            self.player = self.seat or players[rng.integers(len(players))]
            self.opponent_index = self.opponents.sample(rng) if self.opponents else None
            self.game.reset(seed=int(rng.integers(2**31)))
            self.moves_first, self.reward, self.episode_return = (
                self.game.agent_selection == self.player,
                0.0,
                0.0,
            )
            yield from self.play_opponents()
            if not self.is_over(self.player):
                return

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """The player's move and the replies, until the player's next turn."""
        if not self.take_prepared("step", action):
            self.play(self.step_moves(action))
        truncated = bool(self.game.truncations.get(self.player, False))
        terminated = self.is_over(self.player) and not truncated
        info = {}
        if terminated or truncated:
            not_lost = float(self.episode_return >= 0)
            info = {"not_lost": not_lost, f"not_lost_{'first' if self.moves_first else 'later'}": not_lost}
        return self.game.observe(self.player), self.reward, terminated, truncated, info

    def step_moves(self, action: Any) -> "Moves":
        """Plays the player's move and the replies; yields the moves of policies."""
        self.reward = 0.0
        self.apply_move(action)
        yield from self.play_opponents()
        self.episode_return += self.reward

    def play_opponents(self) -> "Moves":
        """Plays the other players until it is the player's turn or its game is over."""
        game = self.game
        while not self.is_over(self.player) and (mover := game.agent_selection) != self.player:
            self.apply_move(None if self.is_over(mover) else (yield from self.opponent_action(mover)))

    def play(self, moves: "Moves") -> None:
        """Plays to the end of ``moves``, with one call for each move of a policy."""
        with suppress(StopIteration):
            request = next(moves)
            while self.opponents is not None:  # no move is yielded without them
                request = moves.send(self.opponents.act(*request))

    def take_prepared(self, *call: Any) -> bool:
        """Whether this ``step`` or ``reset`` has been played already, with those of other environments.

        Raises:
            RunError: if it has played another one, as a wrapper that steps several times would cause.
        """
        prepared, self.prepared = self.prepared, None
        if prepared not in (None, call):
            raise RunError(f"env.id={self.id}: a wrapper made {call} of {prepared}. Leave it out.")
        return prepared is not None

    def apply_move(self, action: Any) -> None:
        """Plays one move and adds the player's reward."""
        self.game.step(action)
        self.reward += float(self.game.rewards.get(self.player, 0.0))

    def is_over(self, player: str) -> bool:
        """Whether the game is over for a player."""
        game = self.game
        return player not in game.agents or game.terminations[player] or game.truncations[player]

    def opponent_action(self, player: str) -> Generator["MoveRequest", int, int]:
        """An opponent's action in the game's action space; yields the move of a policy."""
        observation, mask = self.game.observe(player), None
        mask = find_mask(observation, self.game.infos[player])
        actions = self.game.action_space(player)
        valid = np.ones(actions.n, bool) if mask is None else np.asarray(mask, bool)
        pool, index, rng = self.opponents, self.opponent_index, self.np_random
        if pool is None or index is None or rng.random() < pool.random_prob:
            return int(actions.start + rng.choice(np.flatnonzero(valid)))
        entries = {
            name: adapt_entry(get_path(observation, path), space)
            for name, (path, space) in self.entries.items()
        }
        return int(actions.start) + (yield MoveRequest(index, entries, valid))

    def render(self) -> Any:
        """An image of the board."""
        return self.game.render()

    def close(self) -> None:
        """Closes the game."""
        self.game.close()


class MaskedSelfPlayEnv(SelfPlayEnv):
    """Self-play in a game that gives its action mask in ``infos``, not in the observation."""

    def action_masks(self) -> np.ndarray:
        """The action mask, ``[actions]``; all actions are valid once the game is over."""
        mask = (self.game.infos.get(self.player) or {}).get(MASK)
        if mask is None or self.is_over(self.player):
            return np.ones(self.action_space.n, bool)
        return np.asarray(mask, bool)


def find_games(envs: Sequence[gymnasium.Env]) -> list[SelfPlayEnv]:
    """The self-play environments of a vector whose opponents can move together; empty if they cannot.

    Wrappers have to leave steps and actions alone, as hydrl's do, and Gymnasium's of observations.
    """
    games = [env.unwrapped for env in envs if isinstance(env.unwrapped, SelfPlayEnv)]
    can_prepare = len(games) == len(envs) and all(map(is_transparent, envs))
    return games if can_prepare and games[0].opponents is not None else []


def is_transparent(env: gymnasium.Env) -> bool:
    """Whether a step of an environment in its wrappers is one step of it, by a known action."""
    while isinstance(env, gymnasium.Wrapper):
        kind, func = type(env), getattr(env, "func", None)
        if isinstance(env, gymnasium.ActionWrapper):
            is_known = getattr(func, "__module__", "").startswith("hydrl.")
        else:
            is_ours = kind.__module__.startswith("hydrl.")
            is_known = is_ours or (kind.step in SINGLE_STEPS and kind.reset in SINGLE_RESETS)
        if not is_known:
            return False
        env = env.env
    return True


def inner_action(env: gymnasium.Env, action: Any) -> Any:
    """An action as it reaches the environment in its wrappers."""
    while isinstance(env, gymnasium.Wrapper):
        action = env.action(action) if isinstance(env, gymnasium.ActionWrapper) else action
        env = env.env
    return action


def batching_pool(games: Sequence[SelfPlayEnv]) -> OpponentPool | None:
    """The pool whose policies move together in a vector's games; ``None`` if they do not."""
    pool = games[0].opponents if games else None
    return pool if pool is not None and pool.batched else None


def prepare_steps(
    pool: OpponentPool, envs: Sequence[gymnasium.Env], games: Sequence[SelfPlayEnv], actions: Sequence[Any]
) -> None:
    """Plays a step of each environment of a vector, and the replies of all opponents together."""
    inner = [inner_action(env, action) for env, action in zip(envs, actions, strict=True)]
    play_together(pool, [game.step_moves(action) for game, action in zip(games, inner, strict=True)])
    for game, action in zip(games, inner, strict=True):
        game.prepared = ("step", action)


def prepare_resets(
    pool: OpponentPool, games: Sequence[SelfPlayEnv], seed: int | None, reset_mask: np.ndarray | None
) -> None:
    """Begins a game in each environment of ``reset_mask``, or in all; opponents move together."""
    chosen = [index for index in range(len(games)) if reset_mask is None or reset_mask[index]]
    seeds = {index: None if seed is None else seed + index for index in chosen}
    for index in chosen:
        gymnasium.Env.reset(games[index], seed=seeds[index])
    play_together(pool, [games[index].reset_moves() for index in chosen])
    for index in chosen:
        games[index].prepared = ("reset", seeds[index])


def play_together(pool: OpponentPool, games: Sequence[Moves]) -> None:
    """Plays several games on; the moves of all opponents that wait are chosen by one call."""
    answers: dict[int, int | None] = dict.fromkeys(range(len(games)))
    while answers:
        requests: dict[int, MoveRequest] = {}
        for index, answer in answers.items():
            with suppress(StopIteration):
                requests[index] = next(games[index]) if answer is None else games[index].send(answer)
        actions = pool.act_together([*requests.values()]) if requests else []
        answers = dict(zip(requests, actions, strict=True))


WRAPPERS = (gymnasium.Wrapper, gymnasium.ObservationWrapper, gymnasium.RewardWrapper)
SINGLE_STEPS = {wrapper.step for wrapper in WRAPPERS}
SINGLE_RESETS = {wrapper.reset for wrapper in WRAPPERS}
