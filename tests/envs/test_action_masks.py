"""What a task says is forbidden is found, carried with each step, and never drawn at random."""

import re
import sys
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from tensordict import TensorDict
from torchrl.data import Binary, Composite, OneHot, Unbounded
from torchrl.envs import EnvBase, ObservationNorm
from torchrl.envs.utils import check_env_specs

from hydrl.envs import gymnasium_env, init_normalizers, make_env
from hydrl.errors import UserError
from hydrl.run.checkpoint.env_state.verify import play
from hydrl.specs import mask_key, observation_keys
from tests.fakes import masked_envs

PLACES = ["info", "entry", "method"]


def env_of(says: str = "info", num_envs: int = 1, transforms=(), **words):
    make = partial(gymnasium_env, id="tests.fakes.masked_envs:Allows-v0", says=says, **words)
    return make_env(make, transforms, num_envs=num_envs, seed=0)


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("says", PLACES)
def test_it_is_found_and_carried_and_random_actions_are_allowed_ones(says, num_envs, capsys):
    """The task raises where a forbidden one is taken."""
    env = env_of(says, num_envs, start=2)
    check_env_specs(env)
    assert (mask_key(env), observation_keys(env)) == ("action_mask", ["observation"])
    rows = env.rollout(70, break_when_any_done=False).reshape(num_envs, -1)
    now, after, ended = rows["action_mask"], rows["next", "action_mask"], rows["next", "done"].squeeze(-1)
    assert (now.sum(-1) == 3).all()
    assert ended.sum() == 3 * num_envs
    assert torch.equal(after[:, :-1][~ended[:, :-1]], now[:, 1:][~ended[:, :-1]])
    assert after[ended].all()  # what nobody acts on
    right = rows["observation"][..., :8].argmax(-1, keepdim=True)
    assert now.gather(-1, right).all()  # of the same step as what is observed
    assert (rows["action"].argmax(-1, keepdim=True) == right).float().mean() == pytest.approx(1 / 3, abs=0.2)
    assert capsys.readouterr().err == ""


def test_random_frames_of_a_normaliser_and_steps_below_the_transforms_are_allowed_ones():
    env = env_of("entry", 2, [lambda: ObservationNorm(in_keys=["observation"])])
    init_normalizers(env, 100)
    start = env.reset()
    play(env, start.to_dict())
    assert env.transform[-1].scale.isfinite().all()


@pytest.mark.parametrize("says", PLACES)
def test_false_lets_forbidden_actions_be_tried_and_says_so(says, capsys):
    env = env_of(says, action_mask=False)
    assert mask_key(env) is None
    assert observation_keys(env) == (["mask", "observation"] if says == "entry" else ["observation"])
    with pytest.raises(masked_envs.InvalidActionError):
        env.rollout(20)
    (line,) = capsys.readouterr().err.splitlines()
    where = {"entry": "its observation's action_mask", "info": "info['action_mask']"}.get(
        says, "action_masks()"
    )
    assert f"gives an action mask, {where}, which is ignored: env.action_mask=false" in line


class Says(gymnasium.Env):
    """Says what it is told to, in ``info`` or its dictionary, by whatever name."""

    def __init__(self, given, name="legal", entry=False, actions=None, late=False, **_):
        self.given, self.name, self.late = given, name, late
        self.action_space = Discrete(3) if actions is None else actions
        self.observation_space = Box(0, 1, (2,), np.float32)
        if entry:
            self.observation_space = Dict({"seen": self.observation_space, name: Box(0, 1, (3,), np.float32)})
        self.entry = entry

    def now(self):
        shown = {"seen": np.zeros(2, np.float32), self.name: self.given}
        return (shown, {}) if self.entry else (shown["seen"], {self.name: self.given})

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        seen, info = self.now()
        return seen, {} if self.late else info

    def step(self, action):
        assert not isinstance(self.action_space, Discrete) or self.given[int(action)]
        seen, info = self.now()
        return seen, 1.0, False, False, info


gymnasium.register("Says-v0", Says)


def saying(given, num_envs=1, action_mask=None, **words):
    keys = {} if action_mask is None else {"action_mask": action_mask}
    made = partial(gymnasium_env, id=f"{__name__}:Says-v0", given=given, **words, **keys)
    return make_env(made, [], num_envs=num_envs, seed=0)


@pytest.mark.parametrize("entry", [False, True])
@pytest.mark.parametrize("given", [[1, 0, 1], np.array([True, False, True]), np.array([1.0, 0.0, 1.0])])
def test_it_may_have_another_name_and_any_kind_of_truth_values(given, entry):
    env = saying(given, 2, action_mask="legal", entry=entry)
    assert env.rollout(5)["action_mask"].reshape(-1, 3).unique(dim=0).tolist() == [[True, False, True]]


WRONG = {
    "another name": ({"action_mask": "allowed"}, "=allowed: no such entry .*. Entries are legal"),
    "another size": ({"given": [1, 0]}, r"gave info\['legal'\] = \[1, 0\]\. It should be 3 booleans"),
    "other numbers": ({"given": [1, 0, 2]}, "should be 3 booleans"),
    "nothing": ({"given": None}, "gave info.* = nothing. It should be"),
    "no number": ({"given": ["a", "b", "c"]}, "should be 3 booleans"),
    "rows": ({"given": [[1, 0], [1]]}, "should be 3 booleans"),
    "nothing allowed": ({"given": [0, 0, 0]}, "Says-v0: every action is invalid, and the episode continues"),
    "no choice": (
        {"actions": Box(-1, 1, (1,), np.float32)}, r"mask=legal: .* has Box.* actions. Leave it out"
    ),
}  # fmt: skip


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_mask_is_a_line(what, num_envs):
    words, line = WRONG[what]
    with pytest.raises(UserError, match=line) as error:
        saying(**({"given": [1, 0, 1], "action_mask": "legal"} | words), num_envs=num_envs).rollout(3)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_where_nothing_is_allowed_in_the_middle_the_run_ends_there(num_envs):
    env = env_of("info", num_envs, all_forbidden_at=5)
    assert len(env.rollout(4).reshape(-1)) == 4 * num_envs
    with pytest.raises(UserError, match=r"tests\.fakes\.masked_envs:Allows-v0: every action is invalid"):
        env.rollout(5)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"actions": Box(-1, 1, (1,), np.float32)}, "its actions are not discrete"),
        ({"late": True}, "its reset gave none"),
    ],
)  # fmt: skip
def test_what_cannot_be_heeded_is_told(words, why, capsys):
    env = saying([1, 1, 1], name="action_mask", **words)
    env.rollout(3)
    assert mask_key(env) is None
    assert why in capsys.readouterr().err


def test_gymnasium_s_taxi_has_one_and_looking_for_it_draws_nothing():
    state = torch.get_rng_state(), np.random.get_state()[1].copy()
    env = make_env(partial(gymnasium_env, "Taxi-v4"), [], num_envs=2)
    assert torch.equal(torch.get_rng_state(), state[0])
    np.testing.assert_array_equal(np.random.get_state()[1], state[1])
    env.set_seed(0)
    rows = env.rollout(30)
    assert 0 < rows["action_mask"].float().mean() < 1
    assert (rows["action"].bool() & ~rows["action_mask"]).sum() == 0


@pytest.mark.parametrize("num_envs", [1, 2])
def test_of_stacked_frames_the_newest_says_it(num_envs):
    stack = partial(gymnasium.wrappers.FrameStackObservation, stack_size=3)
    env = env_of("entry", num_envs, wrappers={"stack": stack}, pixels=True)
    rows = env.rollout(50, break_when_any_done=False).reshape(-1)
    assert (rows["action_mask"].shape, rows["pixels"].shape[1:]) == ((50 * num_envs, 8), (3, 12, 12))
    assert (rows["action_mask"].sum(-1) == 3).all()


@pytest.mark.parametrize("num_envs", [1, 3])
@pytest.mark.parametrize("says", [*PLACES, "tuple"])
def test_of_several_choices_each_has_its_own_options(says, num_envs):
    """All of them in a row; the task raises where a forbidden one is taken."""
    make = partial(gymnasium_env, id="tests.fakes.masked_envs:Both-v0", says=says)
    env = make_env(make, [], num_envs=num_envs, seed=0)
    check_env_specs(env)
    assert (mask_key(env), observation_keys(env)) == ("action_mask", ["observation"])
    rows = env.rollout(100, break_when_any_done=False).reshape(-1)
    first, second = rows["action_mask"].split([3, 4], -1)
    assert (first.sum(-1) == 2).all()
    assert (second.sum(-1) == 2).all()
    assert first.gather(-1, rows["action"][:, :1]).all()
    assert second.gather(-1, rows["action"][:, 1:]).all()
    play(env, env.reset().to_dict())
    with pytest.raises(
        UserError, match=r"tests\.fakes\.masked_envs:Both-v0: every option of a choice is invalid"
    ):
        make_env(partial(make, all_forbidden_at=2), [], num_envs=num_envs, seed=0).rollout(5)


class OfTorchRL(EnvBase):
    """TorchRL's kind, with a mask of zeros and ones: the step's own action is forbidden."""

    def __init__(self, device="cpu", allowed=True):
        super().__init__(device=device)
        self.observation_spec = Composite(observation=Unbounded(1), action_mask=Binary(3))
        self.action_spec, self.reward_spec = OneHot(3), Unbounded(1)
        self.steps, self.allowed = 0, allowed

    def now(self):
        mask = torch.ones(3, dtype=torch.int8) if self.allowed else torch.zeros(3, dtype=torch.int8)
        mask[self.steps % 3] = 0
        return {"observation": torch.zeros(1), "action_mask": mask}

    def _reset(self, tensordict=None, **kwargs):
        self.steps = 0
        return TensorDict(self.now())

    def _step(self, tensordict):
        assert int(tensordict["action"].long().argmax()) != self.steps % 3
        self.steps += 1
        ended = torch.zeros(1, dtype=torch.bool)
        return TensorDict({**self.now(), "reward": torch.ones(1), "terminated": ended, "done": ended.clone()})

    def _set_seed(self, seed):
        pass


@pytest.mark.parametrize("num_envs", [1, 2])
def test_an_environment_of_torchrl_s_kind_may_have_one(num_envs):
    env = make_env(OfTorchRL, [], num_envs=num_envs)
    check_env_specs(env)
    rows = env.rollout(20)
    assert rows["action_mask"].dtype == torch.bool
    assert (rows["action_mask"].sum(-1) == 2).all()
    with pytest.raises(UserError, match=re.escape("OfTorchRL: every action is invalid")):
        make_env(partial(OfTorchRL, allowed=False), [], num_envs=num_envs).rollout(2)


@pytest.mark.parametrize("by_name", [False, True])
def test_a_class_that_is_defined_anew_says_itself_what_it_allows(by_name, monkeypatch):
    def defined(info):
        class Redefined(gymnasium.Env):
            observation_space, action_space = gymnasium.spaces.Box(0, 1, (1,)), gymnasium.spaces.Discrete(3)

            def reset(self, *, seed=None, options=None):
                super().reset(seed=seed)
                return np.zeros(1, np.float32), dict(info)

            def step(self, action):
                return np.zeros(1, np.float32), 0.0, False, False, dict(info)

        gymnasium.registry.pop("Redefined-v0", None)
        module = sys.modules[__name__]
        monkeypatch.setattr(module, "Redefined", Redefined, raising=False)
        point = f"{module.__name__}:Redefined" if by_name else Redefined
        gymnasium.register("Redefined-v0", entry_point=point)
        return [*gymnasium_env("Redefined-v0").observation_spec.keys()]

    assert defined({}) == ["observation"]
    assert defined({"action_mask": np.array([1, 0, 1], np.int8)}) == ["observation", "action_mask"]
    assert defined({}) == ["observation"]
