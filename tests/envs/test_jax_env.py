"""Functional simulators of JAX: stepped together, with copied arrays and separate keys."""

import importlib.util
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from hydrl import envs
from hydrl.envs import jumanji
from hydrl.envs.jax_env import COMPILED, announce_compilation, load_jax
from hydrl.envs.time_limits import episode_limit
from hydrl.errors import UserError
from hydrl.run.checkpoint.env_state import capture, restore
from tests.conftest import SMALL_PPO, logged, settings

pytest.importorskip("jax")
load_jax("jax", "jumanji")
from tests.fakes.functional_simulator import LIMIT, make_pushed  # noqa: E402 - after JAX is set up

ENTRIES = ["place_now", "elapsed_steps", "board", "action_mask"]


def needs_package(name: str) -> None:
    """Skips a test without a package."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")


def pushed(num_envs: int = 3, seed: int = 3):
    return envs.make_env(make_pushed, [], num_envs=num_envs, seed=seed)


def rollout(env, steps: int = 60):
    torch.manual_seed(0)
    return env.rollout(steps, break_when_any_done=False)


def test_entries_are_named_and_shaped_as_networks_read_them():
    env = pushed()
    spec = env.observation_spec_unbatched
    assert {name: tuple(spec[name].shape) for name in ENTRIES} == {
        "place_now": (1,),
        "elapsed_steps": (1,),
        "board": (2, 6, 5),
        "action_mask": (2,),
    }
    assert env.batch_size == (3,)
    assert pushed(1).batch_size == ()
    assert episode_limit(env) == LIMIT


def test_rewards_and_ends_are_the_simulator_s():
    rows = rollout(pushed())["next"]
    place, steps = rows["place_now"], rows["elapsed_steps"]
    torch.testing.assert_close(rows["reward"], 2 * place)
    assert torch.equal(rows["terminated"], place.abs() >= 2)
    assert torch.equal(rows["truncated"], (steps >= LIMIT) & ~rows["terminated"])
    assert rows["terminated"].sum() >= 3
    assert rows["truncated"].sum() >= 3
    assert torch.equal(rows["done"], rows["terminated"] | rows["truncated"])


def test_only_ended_environments_begin_anew():
    rows = rollout(pushed())
    done, following = rows["next", "done"][:, :-1, 0], rows["elapsed_steps"][:, 1:, 0]
    before = rows["elapsed_steps"][:, :-1, 0]
    assert torch.equal(following, torch.where(done, 0, before + 1))
    assert done.any(0).sum() > done.all(0).sum()


def test_an_environment_s_episodes_do_not_depend_on_the_others():
    together, second = pushed(3, seed=3), pushed(1, seed=4)
    starts = [env.reset()["place_now"] for env in (together, second)]
    assert torch.equal(starts[0][1], starts[1])
    assert len({*together.reset()["place_now"].flatten().tolist(), *starts[0].flatten().tolist()}) == 6


def test_what_was_observed_does_not_change_with_the_next_step():
    env = pushed()
    first = env.reset()
    kept = first["board"].clone()
    first["board"].add_(100)  # nor does what is written to it reach the simulator
    following = env.rand_step(first.clone())["next"]
    assert (following["board"] < 50).all()
    assert torch.equal(first["board"], kept + 100)


def test_a_captured_state_repeats_what_follows():
    env, other = pushed(seed=3), pushed(seed=8)
    rollout(env, 13)
    state = capture(env)
    expected = rollout(env)
    rollout(other, 5)
    restore(other, state)
    rows = rollout(other)
    for name in ("place_now", "reward", "done"):  # the first reset of a rollout begins all episodes
        assert torch.equal(expected["next", name], rows["next", name])


def test_a_state_of_another_number_of_environments_is_refused():
    with pytest.raises(ValueError, match="another environment"):
        pushed(2).base_env.state.load_state_dict(pushed(3).base_env.state.state_dict())


@pytest.mark.slow
def test_processes_that_collect_and_evaluate_return_what_this_one_does(run, recwarn):
    """JAX must not be forked once it is used, as it is here; a fork warns."""
    words = [*SMALL_PPO, "algo=ppo", "env=custom", "collector=pipelined", "collector.num_envs=4"]
    words += ["env._target_=tests.fakes.functional_simulator.make_pushed"]
    inline, process = (
        run(*words, f"eval.backend={backend}", folder=backend) for backend in ("inline", "process")
    )
    assert len(logged(inline)) == 4
    assert logged(process) == logged(inline)
    assert not [warning for warning in recwarn if "fork" in str(warning.message)]


def test_compilation_is_announced_once(capsys):
    COMPILED.discard("pushed")
    for num_envs in (3, 2):
        announce_compilation("pushed", num_envs)
    lines = capsys.readouterr().err
    assert lines == "env.id=pushed: JAX compiles it, once for each number of environments (now 3).\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["env=brax", "env.id=antt"], "env.id=antt: no such environment of Brax. Write ant."),
        (["env=brax", "env.id=ant", "+env.legs=3"], "env.id=ant: cannot be created: .*'legs'"),
        (
            ["env=brax", "env.id=ant", "env.max_episode_steps=0"],
            "env.max_episode_steps=0: should be 1 or more",
        ),
        (["env=jumanji", "env.id=Snakes-v1"], "no such environment of Jumanji. Write Snake-v1."),
        (["env=jumanji", "env.id=Snake-v1", "+env.rows=3"], "env.id=Snake-v1: cannot be created: .*'rows'"),
        (["env=jumanji", "env.id=LevelBasedForaging-v0"], "its .* are several numbers. Choose another"),
    ],
)
def test_mistakes_are_a_line(words, message):
    needs_package(words[0].partition("=")[2])
    with pytest.raises(UserError, match=message):
        settings("algo=ppo", *words).build("env")()


@pytest.mark.parametrize(
    ("id", "kind", "sizes"),
    [
        ("Snake-v1", "discrete", (4,)),
        ("BinPack-v2", "discrete", (40 * 20,)),  # a joint mask
        ("RubiksCube-v0", "multi-discrete", (3,)),  # no mask
        ("JobShop-v0", "multi-discrete", (10,)),  # a mask of each choice
    ],
)
def test_actions_of_jumanji(id, kind, sizes):
    needs_package("jumanji")
    simulator = jumanji.load_simulator(id)
    spec = simulator.action_spec
    assert tuple(spec.shape) == sizes
    assert (type(spec).__name__ == "OneHot") == (kind == "discrete")


def test_a_joint_action_is_unravelled():
    needs_package("jumanji")
    simulator = jumanji.load_simulator("BinPack-v2")
    converted = simulator.convert_action(torch.tensor([0, 21, 799]).numpy())
    assert converted.tolist() == [[0, 0], [1, 1], [39, 19]]


def test_where_no_action_is_valid_all_are():
    needs_package("jumanji")
    simulator = jumanji.load_simulator("Snake-v1")
    masks = np.array([[False, True, False, False], [False] * 4])
    step = SimpleNamespace(observation=SimpleNamespace(grid=None, action_mask=masks))
    _, mask = simulator.observe((None, step))
    assert mask.tolist() == [[False, True, False, False], [True] * 4]
