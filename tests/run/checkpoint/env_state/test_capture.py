"""An environment whose state was put back goes on as the one it was read from, to the last bit."""

import io
from functools import partial

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDictBase
from torchrl.envs import GymWrapper, PendulumEnv, RewardSum, StepCounter, TransformedEnv

from hydrl.envs import gymnasium_env, make_env
from hydrl.run.checkpoint.env_state.capture import NotCapturedError, capture, is_same, restore
from tests.conftest import settings
from tests.fakes.envs import CountingEnv

TASKS = [
    *[(ident, envs) for ident in ("CartPole-v1", "Ant-v5", "InvertedDoublePendulum-v4") for envs in (1, 2)],
    *[(ident, 2) for ident in ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5", "Pendulum-v1", "Acrobot-v1")],
    ("FrozenLake-v1", 2),
]


def play(env: TransformedEnv, now: TensorDictBase, steps: int) -> tuple[TensorDictBase, TensorDictBase]:
    """Random steps, and where they led."""
    seen = []
    with torch.no_grad():
        for _ in range(steps):
            step, now = env.step_and_maybe_reset(env.rand_action(now))
            seen.append(step.clone())
    return torch.stack(seen), now


def check(make, num_envs: int, steps: int = 100) -> TensorDictBase:
    """Reads in the middle of episodes, through a file, into an environment that stood elsewhere."""
    first = make_env(make, [RewardSum, StepCounter], num_envs=num_envs)
    first.set_seed(0)
    _, now = play(first, first.reset(), 37)
    file, rng = io.BytesIO(), torch.get_rng_state()
    torch.save({"simulator": capture(first), "now": now.to_dict()}, file)
    expected, _ = play(first, now.clone(), steps)

    second = make_env(make, [RewardSum, StepCounter], num_envs=num_envs)
    second.set_seed(5)
    _, now = play(second, second.reset(), 3)
    file.seek(0)
    state = torch.load(file, weights_only=True)
    restore(second, state["simulator"])
    torch.set_rng_state(rng)
    found, _ = play(second, now.update(state["now"]), steps)
    for key in expected.keys(True, True):
        assert torch.equal(expected[key], found[key]), key
    assert expected["next", "reward"].isfinite().all()
    return expected


FAMILIES = [("atari", "ale_py", f"ALE/{game}-v5") for game in ("Pong", "Breakout")]
FAMILIES += [
    ("minatar", "minatar", f"MinAtar/{game}-v1")
    for game in ("Asterix", "Breakout", "Freeway", "Seaquest", "SpaceInvaders")
]


@pytest.mark.parametrize(("family", "package", "ident"), FAMILIES)
def test_a_game_goes_on_with_its_chance_its_lives_and_its_last_frames(family, package, ident):
    pytest.importorskip(package)
    make = settings("algo=dqn", f"env={family}", f"env.id={ident}", "env.sticky=0.25").build("env")
    expected = check(make, 1 if "Pong" in ident else 2, steps=300)
    if not ident.endswith(("Pong-v5", "Freeway-v1")):  # it goes past ends, too
        assert expected["next", "done"].sum() > 4


def test_a_game_of_atari_s_goes_on_from_any_moment():
    """The emulator does not tell which of its own sticky actions it holds: wrong once in six moments."""
    pytest.importorskip("ale_py")
    make = settings("algo=dqn", "env=atari", "env.id=ALE/Breakout-v5", "env.sticky=0.25").build("env")
    first, second = (make_env(make, [RewardSum, StepCounter], num_envs=2) for _ in range(2))
    first.set_seed(0)
    second.set_seed(1)
    now, elsewhere = first.reset(), second.reset()
    for _ in range(15):
        _, now = play(first, now, 5)
        _, elsewhere = play(second, elsewhere, 3)
        restore(second, capture(first))
        torch.manual_seed(0)
        expected, then = play(first, now.clone(), 8)
        torch.manual_seed(0)
        found, elsewhere = play(second, now.clone(), 8)
        now = then
        for key in expected.keys(True, True):
            assert torch.equal(expected[key], found[key]), key


@pytest.mark.parametrize("name", ["adversary", "push", "crypto", "reference", "speaker_listener"])
def test_agents_of_mpe_go_on_toward_what_was_drawn_for_them(name):
    """Each reset lets them refer to landmarks, and an environment that was never reset has none of that."""
    pytest.importorskip("mpe2")
    version = 4 if name == "speaker_listener" else 3
    words = ["algo=ippo", "env=pettingzoo", f"env.id=mpe2/simple_{name}_v{version}"]
    make = settings(*words).build("env")
    first, second = (make_env(make, [StepCounter], num_envs=2) for _ in range(2))
    first.set_seed(0)
    _, now = play(first, first.reset(), 33)
    restore(second, capture(first))
    torch.manual_seed(0)
    expected, _ = play(first, now.clone(), 40)  # past an end
    torch.manual_seed(0)
    found, _ = play(second, now.clone(), 40)
    assert expected["next", "done"].any()
    for key in expected.keys(True, True):
        assert torch.equal(expected[key], found[key]), key


@pytest.mark.filterwarnings("ignore:.*out of date.*")
@pytest.mark.parametrize(("ident", "num_envs"), TASKS)
def test_gymnasium_s(ident, num_envs):
    check(partial(gymnasium_env, id=ident), num_envs)


class Counted(CountingEnv):
    """TorchRL's kind with a counter on its class."""

    count = 0

    def _step(self, tensordict):
        Counted.count += 1
        after = super()._step(tensordict)
        return after.set("reward", after["reward"] + Counted.count)


@pytest.mark.parametrize("make", [CountingEnv, Counted, PendulumEnv])
@pytest.mark.parametrize("num_envs", [1, 2])
def test_torchrl_s_own(make, num_envs):
    check(make, num_envs)


class Wind(gymnasium.Wrapper):
    """State of every plain kind, each of which decides the reward."""

    def __init__(self, env):
        super().__init__(env)
        self.rng = np.random.RandomState(0)
        self.history = [0.0]
        self.phase = {"name": "calm", "count": np.int64(0)}

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        self.history = [*self.history[-3:], float(self.rng.rand())]
        self.phase["count"] += 1
        self.phase["name"] = "storm" if self.phase["count"] % 7 == 0 else "calm"
        bonus = 10.0 if self.phase["name"] == "storm" else 0.0
        return observation, float(reward) + sum(self.history) + bonus, *rest


class Remembering(gymnasium.Wrapper):
    """Keeps what decides the reward on its class, in closures and in two places at once."""

    count = 0
    log: list[float] = [0.0]  # noqa: RUF012

    def __init__(self, env):
        super().__init__(env)
        kept, shared, steps = [1.0], np.zeros(2), 0
        self.kept = kept

        def bonus(reward, past=[0.0]):  # noqa: B006
            nonlocal steps
            steps += 1
            past[0] += steps % 3
            bonus.sum = getattr(bonus, "sum", 0) + past[0] % 5
            shared[steps % 2] += steps
            kept.append(kept[-1] % 7 + 1)
            return reward + steps + shared[0] + len(self.kept) + past[0] + bonus.sum

        self.bonus = bonus

    def step(self, action):
        observation, reward, *rest = self.env.step(action)
        type(self).count += 1
        self.log[0] += self.kept[-1]
        return observation, self.bonus(float(reward)) + self.count + self.log[0], *rest


class World:
    """As Box2D's: an object of a library of which nothing is known."""


class Opaque(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        self.world = World()


class Enclosing(gymnasium.Wrapper):
    def __init__(self, env):
        super().__init__(env)
        world = World()
        self.step = lambda action: (env.step(action), world)[0]


class Ready(gymnasium.Wrapper):
    actions = iter(range(9))


@pytest.fixture(autouse=True)
def _registered():
    for wrapper in (Wind, Remembering, Opaque, Enclosing, Ready):
        ident = f"hydrl-test/{wrapper.__name__}-v0"
        if ident not in gymnasium.registry:
            gymnasium.register(ident, lambda make=wrapper: make(gymnasium.make("CartPole-v1")))


@pytest.mark.parametrize("num_envs", [1, 2])
@pytest.mark.parametrize("name", ["Wind", "Remembering"])
def test_what_a_wrapper_keeps_in_itself_its_class_and_its_closures(name, num_envs):
    check(partial(gymnasium_env, id=f"hydrl-test/{name}-v0"), num_envs)


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("Opaque", r"world \(tests\.\S+test_capture\.World\)"),
        ("Enclosing", r"step world \(tests\.\S+test_capture\.World\)"),
        ("Ready", r"class Ready\.actions \(builtins\.range_iterator\)"),
    ],
)
def test_what_cannot_be_read_is_named(name, what):
    env = make_env(partial(gymnasium_env, id=f"hydrl-test/{name}-v0"), [], num_envs=2)
    env.reset()
    with pytest.raises(NotCapturedError, match=rf"^env\._env\.envs\[0\]\..*{what}"):
        capture(env)


def test_a_secret_stays_out_of_the_state_and_the_new_one_in_the_environment(monkeypatch):
    class Client(gymnasium.Wrapper):
        def __init__(self, env, key):
            super().__init__(env)
            self.key, self.count = key, len(key)
            self.headers = {"Authorization": f"Bearer {key}", "tries": 3}
            self.packed = [key.encode(), np.array([key])]

    def build(key):
        return make_env(lambda device: GymWrapper(Client(gymnasium.make("CartPole-v1"), key)), [])

    monkeypatch.setenv("TOKEN", "first-secret")
    old, new, file = build("first-secret"), build("another"), io.BytesIO()
    old.reset()
    torch.save(capture(old), file)
    assert b"first-secret" not in file.getvalue()
    file.seek(0)
    new.reset()
    restore(new, torch.load(file, weights_only=True))
    client = new.base_env._env
    assert (client.key, client.headers["Authorization"]) == ("another", "Bearer another")
    assert client.packed[0] == b"another"
    assert client.count == 12  # which no secret is
    assert client.headers["tries"] == 3


def test_a_class_of_hydrl_s_parts_is_known_where_it_has_moved():
    old = "hydrl.parts.environments.tasks:CopiedTask"
    assert is_same(old, "hydrl.envs.checked_env:CheckedEnv")
    assert is_same(f"{old}.step", "hydrl.envs.checked_env:CheckedEnv.step")
    assert not is_same(old, "hydrl.envs.checked_env:MaskTracker")
    assert not is_same("mine.tasks:CopiedTask", "hydrl.envs.checked_env:CheckedEnv")
