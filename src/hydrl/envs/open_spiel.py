"""OpenSpiel's games in turns for self-play (Lanctot et al. 2019): information states, masks, chance moves."""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete

from hydrl.envs.optional import check_id, require_package
from hydrl.envs.self_play import MaskedSelfPlayEnv, Moves, OpponentPool
from hydrl.envs.spaces import MIN_IMAGE_SIDE
from hydrl.errors import UserError
from hydrl.specs import MASK

TENSORS = ("information_state", "observation")
EXAMPLES = ("kuhn_poker", "leduc_poker", "connect_four")


def make(
    id: str,
    seat: str | None = None,
    opponents: OpponentPool | None = None,
    tensor: Literal["information_state", "observation"] | None = None,
    render_mode: str | None = None,
    **kwargs: Any,
) -> gymnasium.Env:
    """Makes a game of OpenSpiel with opponents by its name, such as ``kuhn_poker`` or ``hex(board_size=5)``.

    Args:
        id: a game as OpenSpiel writes it.
        seat: the agent's player, ``player_0`` or later; ``None`` draws one for each game.
        opponents: the pool that plays the others; ``None``: random moves. A game of one player has none.
        tensor: what players observe; ``None``: the information state, all that a player knows of the game so
            far, or the observation in games without one.
        render_mode: refused: OpenSpiel's games have no images.
        **kwargs: the game's parameters, as ``board_size``.

    Raises:
        UserError: for an unknown game, parameter, player or tensor, and for games that cannot be played here.
    """
    pyspiel = require_package("pyspiel", "pettingzoo", "open_spiel")
    if render_mode is not None:
        raise UserError(f"env.id={id}: OpenSpiel's games have no images. Leave video and render out.")
    game = load_game(pyspiel, id, kwargs)
    check_game(pyspiel, game, id, kwargs)
    match = SpielGame(game, find_tensor(game.get_type(), id, tensor))
    return OpenSpielEnv(match, id, seat, opponents if len(match.possible_agents) > 1 else None)


def load_game(pyspiel: Any, id: str, parameters: Mapping[str, Any]) -> Any:
    """Loads a ``pyspiel.Game``, and keeps OpenSpiel from printing its errors.

    Raises:
        UserError: for an unknown game, or parameters that it does not take.
    """
    name = id.partition("(")[0]
    check_id(name, pyspiel.registered_names(), examples=EXAMPLES)
    try:
        with silence_stderr():
            typed = pyspiel.game_parameters_from_string(id)
            return pyspiel.load_game(
                name, {**{key: typed[key] for key in typed if key != "name"}, **parameters}
            )
    except (pyspiel.SpielError, IndexError, TypeError, RuntimeError) as error:
        reason = re.sub(r"^\S+\.(cc|h):\d+ ", "", " ".join(str(error).split()))
        reason = reason.partition(" Available games")[0].rstrip(".")
        (kind,) = (kind for kind in pyspiel.registered_games() if kind.short_name == name)
        known = ",".join(f"{key}={value}" for key, value in sorted(kind.parameter_specification.items()))
        advice = f"Write {name}({known[:200]})" if known else f"Write {name}, which takes no parameters"
        raise UserError(f"env.id={id}: OpenSpiel cannot load it: {reason}. {advice}.") from error


@contextmanager
def silence_stderr() -> Iterator[None]:
    """Drops what C++ writes to standard error in the block; OpenSpiel prints errors that it also raises."""
    try:
        stderr_copy = os.dup(2)
    except OSError:  # standard error is closed
        yield
        return
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)


def check_game(pyspiel: Any, game: Any, id: str, parameters: Mapping[str, Any]) -> None:
    """Refuses games that cannot be played in turns by tensors, or whose chance moves no seed decides.

    Raises:
        UserError: naming the reason, and for simultaneous games the name of the game in turns.
    """
    kind, dynamics = game.get_type(), pyspiel.GameType.Dynamics
    reason, advice = "", f"Choose another game, such as {EXAMPLES[0]}"
    if kind.dynamics == dynamics.SIMULTANEOUS:
        whole = str(game) if parameters else id if "(" in id else f"{id}()"
        reason = "its players act at once"
        advice = f"""Write 'env.id="turn_based_simultaneous_game(game={whole})"'"""
    elif kind.dynamics == dynamics.MEAN_FIELD:
        reason = "it is a mean-field game, which has no single opponents"
    elif kind.action_structs_only:
        reason = "its actions are no numbers"
    elif not (kind.provides_information_state_tensor or kind.provides_observation_tensor):
        reason = "it has no tensor that a network could read"
    elif kind.chance_mode == pyspiel.GameType.ChanceMode.SAMPLED_STOCHASTIC:
        reason = "it draws chance moves itself, so that no seed repeats a game"
    elif game.num_distinct_actions() < 2:
        reason = "it has fewer than two actions"
    if reason:
        raise UserError(f"env.id={id}: {reason}. {advice}.")


def find_tensor(kind: Any, id: str, tensor: str | None) -> str:
    """What players observe in a game.

    Args:
        kind: the game's type.
        id: its name in messages.
        tensor: see :func:`make`.

    Raises:
        UserError: for a tensor that it does not have.
    """
    known = [name for name in TENSORS if getattr(kind, f"provides_{name}_tensor")]
    if tensor is None:
        return known[0]
    if tensor not in known:
        raise UserError(f"env.tensor={tensor}: env.id={id} has none. Write env.tensor={known[0]}.")
    return tensor


class SpielGame:
    """A game of OpenSpiel with those methods of ``pettingzoo.AECEnv`` that self-play uses.

    Chance moves are drawn by a generator that ``reset`` seeds. A reward is the change of ``returns()``.

    Args:
        game: a ``pyspiel.Game`` in turns.
        tensor: ``information_state`` or ``observation``.

    Attributes:
        state: the running game's ``pyspiel.State``.
        channels: ``first`` if the tensor is an image, ``[C, H, W]``.
    """

    def __init__(self, game: Any, tensor: str) -> None:
        self.metadata: dict[str, Any] = {"render_modes": []}
        self.game, self.tensor = game, tensor
        self.possible_agents = [f"player_{index}" for index in range(game.num_players())]
        self.agents = self.possible_agents
        self.shape = tuple(getattr(game, f"{tensor}_tensor_shape")())
        self.actions = Discrete(game.num_distinct_actions())
        is_image = len(self.shape) == 3 and min(self.shape[1:]) >= MIN_IMAGE_SIDE
        self.channels: Literal["first"] | None = "first" if is_image else None
        self.reset(0)
        start = self.observe(self.possible_agents[0])
        # Boards are planes of 0 and 1, and say so at the start; vectors need no bounds.
        is_binary = is_image and bool(((start >= 0) & (start <= 1)).all())
        low, high = (0, 1) if is_binary else (-np.inf, np.inf)
        self.observations = Box(low, high, self.shape, np.float32)

    @property
    def unwrapped(self) -> "SpielGame":
        """The game itself, as PettingZoo has it."""
        return self

    def observation_space(self, player: str) -> Box:
        """The space of the tensor, the same for all players."""
        return self.observations

    def action_space(self, player: str) -> Discrete:
        """The actions, the same for all players."""
        return self.actions

    def reset(self, seed: int | None = None) -> None:
        """Begins a game, up to the first player's turn."""
        self.rng = np.random.default_rng(seed)
        self.state, self.returns = self.game.new_initial_state(), np.zeros(len(self.possible_agents))
        self.advance()

    def step(self, action: Any) -> None:
        """Plays the move of the player whose turn it is, and chance moves after it."""
        self.state.apply_action(int(action))
        self.advance()

    def advance(self) -> None:
        """Plays chance moves until a player's turn or the end, and reads rewards, turn and mask."""
        state, players = self.state, self.possible_agents
        while state.is_chance_node():
            actions, probabilities = zip(*state.chance_outcomes(), strict=True)
            state.apply_action(int(self.rng.choice(actions, p=probabilities)))
        returns = np.array(state.returns())
        self.rewards = dict(zip(players, (returns - self.returns).tolist(), strict=True))
        self.returns = returns
        self.read_turn()

    def read_turn(self) -> None:
        """Reads from the state whose turn it is, the mask, and whether the game is over."""
        state, players = self.state, self.possible_agents
        is_over = state.is_terminal()
        self.agent_selection = players[0 if is_over else state.current_player()]
        self.infos = {self.agent_selection: {MASK: self.mask_of(state)}}
        self.terminations, self.truncations = dict.fromkeys(players, is_over), dict.fromkeys(players, False)

    def observe(self, player: str) -> np.ndarray:
        """The tensor of a player."""
        return self.tensor_of(self.state, self.possible_agents.index(player))

    def tensor_of(self, state: Any, player: int) -> np.ndarray:
        """The tensor of a player, by number, in a state of the game."""
        values = getattr(state, f"{self.tensor}_tensor")(player)
        return np.array(values, np.float32).reshape(self.shape)

    def mask_of(self, state: Any) -> np.ndarray:
        """The action mask of the player to move in a state of the game; none is valid at its end."""
        mask = np.zeros(self.actions.n, bool)
        mask[[] if state.is_terminal() else state.legal_actions()] = True
        return mask

    def close(self) -> None:
        """Frees nothing: a game has no resources."""

    def state_dict(self) -> dict[str, Any]:
        """The running game as OpenSpiel serializes it, the generator of chance moves, and the returns."""
        return {"state": self.state.serialize(), "rng": self.rng, "returns": self.returns}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continues from :meth:`state_dict`."""
        self.state = self.game.deserialize_state(state["state"])
        self.rng, self.returns = state["rng"], state["returns"]
        self.rewards = dict.fromkeys(self.possible_agents, 0.0)
        self.read_turn()


class OpenSpielEnv(MaskedSelfPlayEnv):
    """Self-play in a game of OpenSpiel; rewards before the player's first move come with that move.

    Args:
        game: the game.
        id: its name.
        seat: see :func:`make`, as ``opponents``.
        opponents: the pool that plays the others.
    """

    def __init__(self, game: SpielGame, id: str, seat: str | None, opponents: OpponentPool | None) -> None:
        super().__init__(game, id, seat, opponents, game.channels)
        self._max_episode_steps = game.game.max_game_length()  # as Gymnasium's TimeLimit names it
        self.early_reward = 0.0

    def reset_moves(self) -> Moves:
        """Begins a game and plays until the player's first turn; yields the moves of policies."""
        self.early_reward = 0.0
        yield from super().reset_moves()
        self.early_reward = self.reward

    def apply_move(self, action: Any) -> None:
        """Plays one move and adds the player's reward."""
        super().apply_move(action)
        self.reward, self.early_reward = self.reward + self.early_reward, 0.0
