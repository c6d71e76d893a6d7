"""OpenSpiel's games: rewards, tensors, one player, state, and what cannot be played."""

import sys
from contextlib import closing

import numpy as np
import pytest

from hydrl import envs
from hydrl.envs import open_spiel
from hydrl.envs.time_limits import episode_limit
from hydrl.errors import UserError
from hydrl.specs import opponent_pool
from tests.conftest import settings

pyspiel = pytest.importorskip("pyspiel")


def make_env(id, *overrides, num_envs=1):
    chosen = settings("algo=ppo", "env=open_spiel", f'env.id="{id}"', "transforms=plain", *overrides)
    return envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=num_envs, seed=0)


def play(env, rng, steps):
    """Random valid moves; rewards, masks and observations of so many steps."""
    rows = []
    for _ in range(steps):
        action = int(rng.choice(np.flatnonzero(env.action_masks())))
        observation, reward, terminated, _, _ = env.step(action)
        rows.append((reward, env.action_masks(), observation))
        if terminated:
            observation, _ = env.reset()
            rows.append((0.0, env.action_masks(), observation))
    return rows


GAMES = ["hanabi(colors=2,ranks=3)", "leduc_poker", "2048", "cliff_walking", "backgammon"]


@pytest.mark.parametrize("id", GAMES)
def test_rewards_of_a_game_sum_to_its_returns(id):
    env, rng = open_spiel.make(id), np.random.default_rng(0)
    env.reset(seed=3)
    for _ in range(4):
        total, ended, steps = 0.0, False, 0
        while not ended and steps < 60:
            action = int(rng.choice(np.flatnonzero(env.action_masks())))
            _, reward, ended, _, _ = env.step(action)
            total, steps = total + reward, steps + 1
        player = env.game.possible_agents.index(env.player)
        assert total == pytest.approx(env.game.state.returns()[player])
        env.reset()


def test_2048_pays_what_a_move_adds():
    """TorchRL's wrapper pays the score so far at every step."""
    env, rng, scores, rewards = open_spiel.make("2048"), np.random.default_rng(1), [0.0], []
    env.reset(seed=0)
    for _ in range(30):
        rewards.append(env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))[1])
        scores.append(env.game.state.returns()[0])
    assert rewards == np.diff(scores).tolist()
    assert 0 < np.count_nonzero(rewards) < 30


def test_a_game_of_one_player_has_no_opponents():
    with closing(make_env("catch")) as env:
        assert opponent_pool(env) is None
        rollout = env.rollout(27, break_when_any_done=False)
        rewards = rollout["next", "reward"].reshape(-1, 9)[:3]
        assert rewards[:, :8].count_nonzero() == 0  # the ball falls ten rows
        assert set(rewards[:, 8].abs().tolist()) == {1.0}


@pytest.mark.parametrize(
    ("id", "overrides", "name", "shape"),
    [
        ("kuhn_poker", [], "observation", (11,)),
        ("kuhn_poker", ["env.tensor=observation"], "observation", (7,)),
        ("tic_tac_toe", [], "observation", (27,)),  # too small for a CNN
        ("connect_four", [], "pixels", (3, 6, 7)),
        ("hex(board_size=5)", [], "pixels", (9, 5, 5)),
        ("hex", ["+env.board_size=5"], "pixels", (9, 5, 5)),
        ("turn_based_simultaneous_game(game=goofspiel(num_cards=3))", [], "observation", (33,)),
    ],
)
def test_what_players_observe(id, overrides, name, shape):
    with closing(make_env(id, *overrides)) as env:
        spec = env.observation_spec[name]
        assert spec.shape == shape
        if name == "pixels":
            assert (spec.space.low.min(), spec.space.high.max()) == (0, 1)


def test_an_evaluation_ends_no_game_early():
    with closing(make_env("backgammon")) as env:
        assert episode_limit(env) == 1_500


def test_a_restored_game_continues_with_the_same_chance_moves():
    env, other = (open_spiel.make("leduc_poker") for _ in range(2))
    env.reset(seed=0)
    play(env, np.random.default_rng(0), 7)
    other.reset(seed=9)
    game = env.game.state_dict() | {"rng": np.random.default_rng()}
    game["rng"].bit_generator.state = env.game.rng.bit_generator.state
    other.game.load_state_dict(game)
    assert str(other.game.state) == str(env.game.state)
    assert other.game.infos.keys() == env.game.infos.keys()
    while not env.game.state.is_terminal():
        action = int(np.flatnonzero(env.game.infos[env.game.agent_selection]["action_mask"])[-1])
        env.game.step(action)
        other.game.step(action)
        assert (str(other.game.state), other.game.rewards) == (str(env.game.state), env.game.rewards)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env.id=khun_poker"], r"^env\.id=khun_poker: no such game\. Write kuhn_poker"),
        (["env.id=xyzzy"], r"no such game\. Write kuhn_poker or leduc_poker or connect_four\.$"),
        (
            ['env.id="hex(board_siz=5)"'],
            r"^env\.id=hex\(board_siz=5\): OpenSpiel cannot load it: Unknown parameter 'board_siz'.* "
            r"Write hex\(board_size=11,",
        ),
        (
            ["env.id=kuhn_poker", "+env.players=1"],
            r"load it: num_players_ >= .* Write kuhn_poker\(players=2\)",
        ),
        (
            ["env.id=goofspiel"],
            r"""at once\. Write 'env\.id="turn_based_simultaneous_game\(game=goofspiel\(\)\)"'\.$""",
        ),
        (["env.id=goofspiel", "+env.num_cards=4"], r"\(game=goofspiel\(num_cards=4\)\)\"'\.$"),
        (["env.id=mfg_garnet"], "it is a mean-field game"),
        (["env.id=coordinated_mp"], "it has no tensor that a network could read"),
        (["env.id=negotiation"], "it draws chance moves itself"),
        (
            ["env.id=backgammon", "env.tensor=information_state"],
            "^env.tensor=information_state: env.id=backgammon has none. Write env.tensor=observation.$",
        ),
        (
            ["env.id=kuhn_poker", "env.seat=player_2"],
            "no such player. Write player_0 or player_1",
        ),
    ],
)
def test_a_game_that_cannot_be_played_is_an_error_in_one_line(words, message, capfd):
    chosen = settings("algo=ppo", "env=open_spiel", *words)
    with pytest.raises(UserError, match=message):
        envs.make_env(chosen.build("env"), chosen.transform_builders)
    assert capfd.readouterr().err == ""  # OpenSpiel prints errors itself, and all 126 names


def test_a_video_is_refused():
    chosen = settings("algo=ppo", "env=open_spiel", "env.id=kuhn_poker")
    with pytest.raises(UserError, match=r"OpenSpiel's games have no images\. Leave video and render out\.$"):
        envs.make_env(chosen.build("env"), chosen.transform_builders, render="rgb_array")


def test_a_missing_package_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspiel", None)
    with pytest.raises(
        UserError, match=r"^env=open_spiel: pyspiel is not installed\. Run pip install 'hydrl\[pett"
    ):
        open_spiel.make("kuhn_poker")
