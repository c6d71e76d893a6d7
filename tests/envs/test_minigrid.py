"""MiniGrid and BabyAI: what a policy observes is MiniGrid's own, stepped by hand."""

import io
import json
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from threading import Thread

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Dict, Discrete

import hydrl
from hydrl.envs import gymnasium_env, make_env, minigrid
from hydrl.envs.gymnasium import make_wrapped_env
from hydrl.envs.spaces import adapt_spaces
from hydrl.envs.time_limits import episode_limit
from hydrl.errors import UserError
from hydrl.networks.encoders import encoder
from hydrl.run.checkpoint.env_state.capture import capture, restore
from tests.conftest import SMALL_PPO, settings

needs_minigrid = pytest.mark.skipif(not find_spec("minigrid"), reason="needs pip install 'hydrl[minigrid]'")
pytestmark = needs_minigrid
DOOR_KEY, EMPTY, BABY = "MiniGrid-DoorKey-5x5-v0", "MiniGrid-Empty-Random-5x5-v0", "BabyAI-GoToLocal-v0"


def keywords(id: str, *overrides: str) -> dict:
    """The keywords by which ``env=minigrid env.id=ID`` makes its environment."""
    return settings("algo=ppo", "env=minigrid", f"env.id={id}", *overrides).build("env").keywords


def raw_env(id: str, **kwargs) -> gymnasium.Env:
    """MiniGrid's own environment."""
    import minigrid  # noqa: F401 - registers it

    return gymnasium.make(id, disable_env_checker=True, **kwargs)


def cells_by_hand(image: np.ndarray) -> np.ndarray:
    """MiniGrid's codes ``[width, height, 3]`` as channels ``[20, width, height]``, cell by cell."""
    cells = np.zeros((20, *image.shape[:2]), np.uint8)
    for column in range(image.shape[0]):
        for row in range(image.shape[1]):
            kind, colour, state = image[column, row]
            cells[kind, column, row] = cells[11 + colour, column, row] = cells[17 + state, column, row] = 1
    return cells


def test_environments_differ_and_repeat_by_seed():
    def first_cells(seed: int) -> torch.Tensor:
        env = gymnasium_env(**keywords("MiniGrid-FourRooms-v0"), num_envs=3)
        env.set_seed(seed)
        return torch.stack([env.reset()["pixels"] for _ in range(3)])

    first, again, other = first_cells(0), first_cells(0), first_cells(7)
    assert torch.equal(first, again)
    assert not torch.equal(first[:, 0], first[:, 1])
    assert not torch.equal(first, other)


def pick_up_key(env: gymnasium.Env) -> dict:
    """Random actions until the agent carries the key; returns the observation."""
    actions = np.random.default_rng(0)
    observation, _ = env.reset(seed=3)
    while env.unwrapped.carrying is None:
        observation, *_ = env.step(int(actions.integers(0, 5)))
    return observation


def test_the_whole_grid_shows_the_agent_and_what_it_carries():
    env = make_wrapped_env(**keywords("MiniGrid-DoorKey-6x6-v0", "env.full=true", "env.max_steps=5000"))
    observation = pick_up_key(env)
    pixels, grid = observation["pixels"], env.unwrapped
    column, row = grid.agent_pos
    assert pixels.shape == (20, 6, 6) == env.observation_space["pixels"].shape
    assert observation["direction"] == grid.agent_dir
    assert np.flatnonzero(pixels[:, column, row]).tolist() == [5, 10, 11 + 4, 17]  # a yellow key, the agent
    others = cells_by_hand(grid.grid.encode())
    others[:, column, row] = pixels[:, column, row]
    np.testing.assert_array_equal(pixels, others)
    env.step(4)  # puts it down where there is room
    for _ in range(4):
        observation, *_ = env.step(1)  # every direction, which MiniGrid writes as a state
        assert observation["pixels"][17:, column, row].tolist() == [1, 0, 0]
        assert observation["pixels"][10].sum() == 1


def test_what_is_carried_is_shown_in_the_agent_s_view():
    pixels = pick_up_key(make_wrapped_env(**keywords(DOOR_KEY)))["pixels"]
    assert np.flatnonzero(pixels[:, 3, 6]).tolist() == [5, 11 + 4, 17]


@pytest.mark.parametrize(("id", "view", "shape"), [(DOOR_KEY, 3, (20, 3, 3)), (DOOR_KEY, 9, (20, 9, 9))])
def test_an_encoder_reads_cells_as_channels_of_0_and_1(id, view, shape):
    env = make_env(settings("algo=ppo", "env=minigrid", f"env.id={id}", f"env.view={view}").build("env"), [])
    spec = env.observation_spec["pixels"]
    assert (spec.shape, spec.dtype) == (shape, torch.uint8)
    assert (spec.space.low.max(), spec.space.high.min(), spec.space.high.max()) == (0, 1, 1)
    network = encoder(env, ["pixels", "direction"], channels=4, features=8)
    reader = network.module.readers["pixels"]
    assert (reader.low, reader.span) == (None, 1.0)
    features = network(env.reset())["features"]
    convolution = next(module for module in reader.modules() if isinstance(module, torch.nn.Conv2d))
    assert convolution.weight.shape == (4, 20, 3, 3)
    assert features.shape == (8 + 4,)


def test_a_grid_that_is_not_square_keeps_its_channels():
    env = make_env(
        settings("env=minigrid", "algo=ppo", "env.id=MiniGrid-BlockedUnlockPickup-v0", "env.full=true").build(
            "env"
        ),
        [],
    )
    assert env.observation_spec["pixels"].shape == (20, 11, 6)


@pytest.mark.parametrize(
    ("id", "overrides", "limit"),
    [
        (DOOR_KEY, [], 250),  # 10 times the 25 cells
        (DOOR_KEY, ["env.max_steps=40"], 40),
        (BABY, ["env.max_steps=40"], 40),
        (BABY, [], 8 * 64),  # 64 steps for each place that its mission names, at most eight
    ],
)
def test_an_evaluation_knows_the_time_limit(id, overrides, limit):
    env = make_env(settings("algo=ppo", "env=minigrid", f"env.id={id}", *overrides).build("env"), [], seed=0)
    env.reset()
    assert episode_limit(env) == limit


@pytest.mark.parametrize(
    ("id", "overrides", "is_warned"),
    [
        ("MiniGrid-GoToDoor-5x5-v0", [], True),
        ("BabyAI-GoToLocal-v0", [], True),
        ("MiniGrid-GoToDoor-5x5-v0", ["env.mission=words"], False),
        (DOOR_KEY, [], False),
    ],
)
def test_a_mission_that_differs_and_is_not_observed_is_warned_of_once(id, overrides, is_warned, capsys):
    env = make_wrapped_env(**keywords(id, *overrides))
    for seed in range(8):
        env.reset(seed=seed)
    warning = (
        f"warning: env.id={id}: its mission differs between episodes, and the policy does not observe it. "
        "Write env.mission=words.\n"
    )
    assert capsys.readouterr().err == warning * is_warned


def test_missions_are_words_of_one_list():
    assert len(minigrid.WORDS) == len(set(minigrid.WORDS)) == 60
    indices = minigrid.encode_mission("go to the red ball, then open a door on your left", "it")
    assert indices.shape == (50,)
    assert [minigrid.WORDS[index - 1] for index in indices if index] == [
        *("go", "to", "the", "red", "ball", ",", "then", "open", "a", "door", "on", "your", "left"),
    ]
    from minigrid.wrappers import DictObservationSpaceWrapper

    assert set(DictObservationSpaceWrapper.get_minigrid_words()) < set(minigrid.WORDS)


@pytest.mark.parametrize("id", ["BabyAI-BossLevel-v0", "BabyAI-SynthSeq-v0", "MiniGrid-Fetch-5x5-N2-v0"])
def test_every_word_of_missions_is_in_the_list(id):
    env = make_wrapped_env(**keywords(id, "env.mission=words"))
    missions = {tuple(env.reset(seed=seed)[0]["mission"]) for seed in range(10)}
    assert len(missions) > 2


def test_a_word_that_nobody_knows_and_a_long_mission_are_one_line(capsys):
    with pytest.raises(
        UserError, match=r"^env.mission=words: env.id=My-v0: the word frobnicate of its mission"
    ):
        minigrid.encode_mission("frobnicate the ball", "env.id=My-v0")
    assert (minigrid.encode_mission("go to " * 30, "env.id=My-v0") > 0).all()
    expected = "warning: env.id=My-v0: a mission of 60 words is cut to its first 50.\n"
    assert capsys.readouterr().err == expected


def test_babyai_prints_nothing_and_other_threads_still_print(capsys):
    id, raw_prints = "BabyAI-PutNextLocal-v0", io.StringIO()
    with redirect_stdout(raw_prints):
        reference = raw_env(id)
        for seed in range(40):
            reference.reset(seed=seed)
    assert "Sampling rejected" in raw_prints.getvalue()
    env = make_wrapped_env(**keywords(id))
    for seed in range(40):
        env.reset(seed=seed)
    assert capsys.readouterr().out == ""
    with minigrid.drop_prints():
        other = Thread(target=print, args=("progress",))
        other.start()
        other.join()
        print("rejected")
    assert capsys.readouterr().out == "progress\n"


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize(
    ("id", "overrides"),
    [(DOOR_KEY, []), (BABY, ["env.mission=words"]), ("BabyAI-UnlockPickup-v0", ["env.full=true"])],
)
def test_an_episode_goes_on_with_the_key_in_hand(id, overrides, num_envs):
    make = settings("algo=ppo", "env=minigrid", f"env.id={id}", *overrides).build("env")
    first, second = (make_env(make, [], num_envs=num_envs) for _ in range(2))
    first.set_seed(0)
    second.set_seed(9)
    torch.manual_seed(0)
    now, elsewhere = first.reset(), second.reset()
    grids = [first.base_env._env] if num_envs == 1 else first.base_env._env.envs
    for _ in range(3):
        elsewhere = second.step_and_maybe_reset(second.rand_action(elsewhere))[1]
    while not any(grid.unwrapped.carrying for grid in grids):
        now = first.step_and_maybe_reset(first.rand_action(now))[1]
    file = io.BytesIO()
    torch.save(capture(first), file)
    file.seek(0)
    restore(second, torch.load(file, weights_only=True))
    rollouts = []
    for env in (first, second):
        torch.manual_seed(1)
        rollouts.append(env.rollout(300, auto_reset=False, tensordict=now.clone(), break_when_any_done=False))
    for key in rollouts[0].keys(True, True):
        assert torch.equal(rollouts[0][key], rollouts[1][key]), key
    assert rollouts[0]["next", "done"].any()


@pytest.mark.parametrize(
    ("id", "overrides", "message"),
    [
        ("MiniGrid-DorKey-5x5-v0", [], "DorKey-5x5-v0: no such environment. Write MiniGrid-DoorKey-5x5-v0"),
        ("DoorKey-5x5", [], "env.id=DoorKey-5x5: no such environment. Write MiniGrid-DoorKey-5x5-v0"),
        ("Tetris", [], r"env.id=Tetris: no such environment. Write .*MiniGrid-.*$"),
        ("CartPole-v1", [], "it is not a MiniGrid environment. Write env=gym env.id=CartPole-v1.$"),
        (DOOR_KEY, ["env.view=4"], "env.view=4: should be an odd number of cells, 3 or more.$"),
        (DOOR_KEY, ["env.view=1"], "env.view=1: should be an odd number of cells, 3 or more.$"),
        (DOOR_KEY, ["env.view=9", "env.full=true"], "env.view=9: env.full=true observes the whole grid."),
        (DOOR_KEY, ["env.max_steps=0"], "env.max_steps=0: should be an integer, 1 or more.$"),
        (DOOR_KEY, ["env.mission=word"], "env.mission=word: should be"),
        (DOOR_KEY, ["+env.agent_view_size=5"], "another key sets this. Write env.view=5.$"),
        (DOOR_KEY, ["+env.colour=5"], f"^env.colour: {DOOR_KEY} takes no colour. Leave it out.$"),
        ("MiniGrid-WFC-MazeSimple-v0", [], "env.id=MiniGrid-WFC-MazeSimple-v0: "),
    ],
)
def test_a_mistake_is_one_line_with_what_to_write(id, overrides, message):
    with pytest.raises(UserError, match=message) as raised:
        make_env(settings("algo=ppo", "env=minigrid", f"env.id={id}", *overrides).build("env"), []).reset()
    assert "\n" not in str(raised.value)


def test_a_missing_package_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "minigrid", None)
    with pytest.raises(
        UserError, match=r"^env=minigrid: minigrid is not installed\. Run pip install 'hydrl\[minigrid\]'\.$"
    ):
        minigrid.make(DOOR_KEY)


def test_env_gym_names_the_option_for_it():
    line = "cannot be created: its observation mission is text. Write env=minigrid"
    with pytest.raises(UserError, match=rf"^env.id=minigrid:{DOOR_KEY}: {line} env.id={DOOR_KEY}\.$"):
        gymnasium_env(f"minigrid:{DOOR_KEY}")


@pytest.mark.parametrize("inside", [True, False])
def test_a_space_of_minigrid_s_own_is_refused_by_its_entry(inside):
    env = raw_env(DOOR_KEY)
    mission = env.observation_space["mission"]
    env.observation_space = Dict(direction=Discrete(4), mission=mission) if inside else mission
    entry = " mission" if inside else ""
    with pytest.raises(TypeError, match=rf"^its observation{entry} is a MissionSpace, a space of no"):
        adapt_spaces(env)


def test_a_run_trains_evaluates_predicts_exports_and_records(run, tmp_path):
    folder = run(
        *SMALL_PPO, "algo=ppo", "env=minigrid", f"env.id={EMPTY}", "env.mission=words", "eval.video=true"
    )
    assert [*folder.glob("**/*.mp4")]
    assert json.loads((folder / "summary.json").read_text())["eval/episodes"] == 2
    policy = hydrl.load(folder)
    env = minigrid.make(EMPTY, mission="words")
    env.action_space.seed(0)
    observation, _ = env.reset(seed=0)
    actions = []
    for _ in range(20):
        actions.append(policy.predict(observation))
        observation, *_ = env.step(env.action_space.sample())
    assert {type(action) for action in actions} == {int}
    assert {*actions} <= set(range(7))
    with pytest.raises(UserError, match=r"^observation\['(pixels|mission)'\]"):
        policy.predict(raw_env(EMPTY).reset(seed=0)[0])
    exported = policy.export(tmp_path / "policy.pt2")
    program = torch.export.load(exported or tmp_path / "policy.pt2").module()
    batch = [torch.as_tensor(np.asarray(observation[name]))[None] for name in env.observation_space]
    assert int(program(*batch)[0].item()) == policy.predict(observation)
