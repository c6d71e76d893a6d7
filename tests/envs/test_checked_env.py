"""What a task keeps and what a run keeps are never the same memory."""

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv
from torchrl.collectors import Collector
from torchrl.data import Binary

import hydrl
import hydrl.training.metrics
from hydrl import envs
from hydrl.config import CONFIGS
from hydrl.config.tree import option_names
from hydrl.envs import gymnasium_env, make_env
from hydrl.envs.checked_env import CheckedEnv
from hydrl.errors import UserError
from tests.conftest import logged, saved, settings
from tests.fakes import array_sharing_envs
from tests.fakes.array_sharing_envs import KINDS, LONG

OWN, ODD = (
    partial(gymnasium_env, "tests.fakes.array_sharing_envs:Own-v0"),
    partial(gymnasium_env, "tests.fakes.array_sharing_envs:Odd-v0"),
)


def check(batch, *, wide: float = 1.0, following: bool = True) -> None:
    """Every row holds what the task gave and was given at that step, number by number.

    Args:
        batch: ``[..., time]`` rows.
        wide: the actions' bound.
        following: whether rows follow each other in time; drawn ones do not.
    """
    now, after, action = seen_in(batch), seen_in(batch["next"]), batch["action"].float()
    taken = action.argmax(-1) if action.shape[-1] == 3 else action[..., 0]
    assert action.abs().max() <= wide
    assert torch.equal(after[..., 0], now[..., 0] + 1)
    assert torch.allclose(after[..., 1], taken.to(after.dtype), rtol=1e-6)
    assert torch.equal(batch["next", "reward"][..., 0].double(), after[..., 0].double())
    ended = batch["next", "terminated"][..., 0]
    assert torch.equal(ended, after[..., 0] == LONG)
    assert ended.any()
    assert len(set(now[..., 0].flatten().tolist())) == LONG
    if following:
        start = torch.where(ended.unsqueeze(-1), torch.zeros_like(after), after)
        assert torch.equal(now[..., 1:, :], start[..., :-1, :])


def seen_in(rows):
    """Steps so far and the last action, ``[..., 2]``; of a dictionary entry by entry."""
    return rows["observation"] if "observation" in rows else torch.cat([rows["steps"], rows["taken"]], -1)


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("task", [*KINDS, "choice", "TorchRL's kind"])
def test_no_row_shares_memory_with_a_task_that_writes_to_its_arrays(task, num_envs):
    choice = task in ("choice", "uint8")  # a byte holds no other action
    make = partial(OWN, kind="float32" if task == "choice" else task, bound=None if choice else 1.0)
    make = array_sharing_envs.TensorSharingEnv if task == "TorchRL's kind" else make
    env = make_env(make, [], num_envs=num_envs, seed=0)
    torch.manual_seed(0)
    check(env.rollout(12, break_when_any_done=False))
    collector = Collector(env, None, frames_per_batch=12 * num_envs, total_frames=24 * num_envs)
    first, second = (
        each.clone() if copy else each for each, copy in zip(collector, (False, True), strict=True)
    )
    for batch in (first, second):
        check(batch)
    collector.shutdown()


TASK = [
    "env=gym",
    "env.id=tests.fakes.array_sharing_envs:Own-v0",
    "total_frames=192",
    "collector.frames_per_batch=48",
]
TASK += ["actor.num_cells=[8]", "critic.num_cells=[8]"]
TASK += ["eval.every_frames=96", "eval.episodes=2", "eval.final_episodes=2"]
PPO = ["algo=ppo", "transforms=plain", *TASK, "minibatches.size=24", "minibatches.epochs=1"]
SAC = ["algo=sac", *TASK, "minibatches.updates=1", "minibatches.size=8", "minibatches.warmup_frames=32"]


@pytest.fixture
def collected(monkeypatch):
    """The batches that runs of this process learn from."""
    seen = []
    learned = hydrl.training.metrics.Metrics.learned

    def spy(self, batch, losses):
        seen.append(batch.clone())
        return learned(self, batch, losses)

    monkeypatch.setattr(hydrl.training.metrics.Metrics, "learned", spy)
    return seen


def slow_if(each: str) -> Any:
    """Those whose workers collect as others' do, and that tests/experience runs too."""
    return pytest.param(each, marks=pytest.mark.slow) if each in ("multi_async", "pipelined", "ray") else each


@pytest.mark.parametrize("collector", map(slow_if, option_names(CONFIGS / "collector")))
def test_every_collector_hands_over_what_the_task_gave(collector, collected, run, tmp_path):
    drawn = collector == "dataset"
    if drawn:
        run(*SAC, "collector.num_envs=2", folder="data")
        collected.clear()
        words = [
            "algo=iql",
            f"data.path={tmp_path / 'data'}",
            "value.num_cells=[8]",
            "minibatches.size=48",
        ]
        folder = run(*words, *TASK)
    else:
        folder = run(*PPO, f"collector={collector}", "collector.num_envs=2")
    assert len(collected) == 4
    for batch in collected:
        check(batch, following=not drawn)
    scores = [row["eval/return_mean"] for row in logged(folder) if row["eval/return_mean"]]
    assert set(scores) == {"15.0"}  # 1 + 2 + 3 + 4 + 5, whatever is done


@pytest.mark.parametrize("n_steps", [1, 3])
@pytest.mark.parametrize(
    "buffer", [each for each in option_names(CONFIGS / "buffer") if each not in ("bootstrap", "hindsight")]
)
def test_every_buffer_keeps_what_the_task_gave(buffer, n_steps, run, collected):
    rollout = buffer == "rollout"
    if rollout and n_steps > 1:
        pytest.skip("what is learned from once sums no rewards")
    words = PPO if rollout else [*SAC, f"minibatches.n_steps={n_steps}"]
    folder = run(*words, f"buffer={buffer}", "collector.num_envs=2")
    if rollout:
        return check(torch.cat(collected, -1))
    rows = saved(folder, "buffer")
    now, after = rows["observation"], rows["next"]["observation"]
    far = after[:, 0] - now[:, 0]
    assert torch.equal(far, torch.minimum(torch.full_like(far, n_steps), LONG - now[:, 0]))
    if n_steps == 1:
        assert torch.allclose(after[:, 1], rows["action"][:, 0])
        assert torch.equal(rows["next"]["reward"][:, 0], after[:, 0])
    assert rows["action"].abs().max() <= 1
    assert len(set(now[:, 0].tolist())) == LONG


def test_evaluations_and_a_loaded_policy_share_nothing_either(run):
    folder = run(*SAC, "+env.kind=float64", "collector.num_envs=1")
    policy = hydrl.load(folder, "last", trust=True)
    observation = np.array([2.0, 0.5])
    given = policy.predict(observation)
    kept = given.copy()
    observation += 3
    again = policy.predict(np.array([2.0, 0.5]))
    again *= 100
    assert np.array_equal(given, kept)
    assert np.array_equal(policy.predict(np.array([2.0, 0.5])), kept)


def test_each_environment_changes_a_configuration_of_its_own():
    stock = [1_000]
    for num_envs in (1, 3):
        env = make_env(partial(OWN, stock=stock), [], num_envs=num_envs, seed=0)
        env.reset()
        tasks = getattr(env.base_env._env, "envs", [env.base_env._env])
        left = [each.unwrapped.stock[0] for each in tasks]
        assert len(set(left)) == 1
        assert left[0] < 1_000
        env.close()
    assert stock == [1_000]


def test_a_nested_part_of_ones_own_kind_is_each_environment_s_own():
    def make(table, device):
        table["left"] -= 1
        return array_sharing_envs.TensorSharingEnv(device)

    table = {"left": 9}
    make_env(partial(make, table), [], num_envs=1)
    make_env(partial(make, table=table), [], num_envs=2)
    assert table == {"left": 8}  # an argument by position is the caller's


ODDITIES = {
    "shape": r"Odd-v0: its observation is an array of shape \[3\] of float32, but .* has shape \[2\]",
    "words": r"^env\.id=\S+:Odd-v0: its observation is a str, but .* shape \[2\] and dtype float32\.",
    "nothing": r"^env\.id=\S+:Odd-v0: its observation is a NoneType, but .* shape \[2\] and dtype float32\.",
    "four answers": r"^env\.id=\S+:Odd-v0: it does not follow Gymnasium.*expected 5, got 4.*check_env",
    "reset without info": r"^env\.id=\S+:Odd-v0: its reset returned an array of shape \[2\] .*check_env",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("what", ODDITIES)
def test_what_breaks_gymnasium_s_word_is_a_line(what, num_envs):
    with pytest.raises(UserError, match=ODDITIES[what]) as error:
        make_env(partial(ODD, what=what), [], num_envs=num_envs, seed=0).rollout(6)
    assert "\n" not in str(error.value)


def test_bytes_are_taken_from_what_is_whole_and_within_them():
    task = CheckedEnv(array_sharing_envs.FaultyEnv(), "it")
    for given in (np.array([3, 255]), np.array([3.0, 255.0]), [3, 255]):
        assert task.to_array(given, np.uint8, (2,)).tolist() == [3, 255]
    assert task.to_array(np.array([True, False]), np.uint8, (2,)).tolist() == [1, 0]
    for given, kind in ((np.array([0.5, 1.0]), "float64"), (np.array([3, 256]), "int64")):
        with pytest.raises(
            UserError, match=rf"^it: .* is an array of shape \[2\] of {kind}, .* dtype uint8\."
        ):
            task.to_array(given, np.uint8, (2,))


TOLD = {
    "outside": "returned an observation outside its observation_space",
    "huge reward": "returned a reward of 1e+09",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", TOLD)
def test_what_may_be_meant_is_told_once(what, capsys, monkeypatch):
    for num_envs in (2, 1):
        env = make_env(partial(ODD, what=what), [], num_envs=num_envs, seed=0)
        env.rollout(12, break_when_any_done=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("warning: env.id=tests.fakes.array_sharing_envs:Odd-v0 ")
    assert TOLD[what] in lines[0]


def test_a_mask_of_actions_that_are_no_choice_is_told(capsys, monkeypatch):
    class Masked(array_sharing_envs.TensorSharingEnv):
        def __init__(self, device="cpu"):
            super().__init__(device)
            self.observation_spec["action_mask"] = Binary(3, (3,))

    make_env(Masked, [])
    told = capsys.readouterr().err
    assert (
        "Masked gives an action mask, its observation's action_mask, which is ignored: its actions are not"
        in told
    )


@pytest.mark.parametrize("num_envs", [1, 3])
def test_infos_of_any_kind_are_not_joined_and_a_reset_gets_no_options_of_ours(num_envs):
    for what in ("odd infos", "needs a start"):
        rollout = make_env(partial(ODD, what=what), [], num_envs=num_envs, seed=0).rollout(
            12, break_when_any_done=False
        )
        assert rollout["next", "done"].sum() == 2 * num_envs


@pytest.mark.parametrize("num_envs", [1, 2])
def test_spaces_are_seeded_with_their_task(num_envs):
    def rows(seed):
        torch.manual_seed(0)
        env = make_env(partial(ODD, what="draws by its spaces"), [], num_envs=num_envs, seed=seed)
        return env.rollout(12, break_when_any_done=False)["observation"]

    assert torch.equal(rows(5), rows(5))
    assert not torch.equal(rows(5), rows(6))
    first = rows(5).reshape(-1, 2)
    assert len(torch.unique(first, dim=0)) > 2


@pytest.mark.parametrize("num_envs", [1, 8])
@pytest.mark.parametrize("value", [7.0, 0.1, 1000.1])
def test_what_was_constant_in_the_random_frames_is_not_multiplied_by_millions(value, num_envs):
    class Late(array_sharing_envs.FaultyEnv):
        def __init__(self):
            super().__init__()
            self.moved = 0.0

        def observe(self):
            drawn = self.np_random.normal()
            return np.array([value + self.moved, drawn], np.float32)

    gymnasium.register("Late-v0", Late)
    chosen = settings(
        "algo=a2c", "transforms=normalized", "env=gym", "env.id=CartPole-v1", "init_stats_frames=400"
    )
    env = make_env(partial(gymnasium_env, "Late-v0"), chosen.transform_builders, num_envs=num_envs, seed=0)
    envs.init_normalizers(env, 400)
    assert env.rollout(4)["observation"][..., 0].abs().max() < 1e-3
    for task in getattr(env.base_env._env, "envs", [env.base_env._env]):
        task.unwrapped.moved = 1.0
    seen = env.rollout(4)["next", "observation"]
    assert torch.allclose(seen[..., 0], torch.ones(()), atol=1e-3)
    assert seen[..., 1].abs().max() < 10


def test_gymnasium_s_checker_adds_no_warning_to_an_error(recwarn, monkeypatch):
    make = partial(gymnasium_env, "CartPole-v1")
    monkeypatch.setattr(CartPoleEnv, "reset", lambda self, **_: (np.zeros(7, np.float64), {}))
    with pytest.raises(UserError, match="observation"):
        make_env(make, [], seed=0)
    assert not [str(warning.message) for warning in recwarn if "obs" in str(warning.message)]
