"""Brax and Jumanji: JAX steps all environments together, as their raw functions do here."""

from functools import cache

import numpy as np

from tests.envs.families.case import Case, RawStep

PENDULUM_LIMIT, SNAKE_LIMIT, MAZE_LIMIT = 20, 12, 20


@cache
def make_pendulum():
    from brax.envs import get_environment

    return get_environment("inverted_pendulum", backend="spring")


@cache
def make_snake():
    import jumanji

    return jumanji.make("Snake-v1", time_limit=SNAKE_LIMIT)


@cache
def make_maze():
    import jumanji

    return jumanji.make("Maze-v0", time_limit=MAZE_LIMIT)


class Present:
    """One environment's part of a state, for its mask and the bounds of its actions."""

    mask = None

    def __init__(self, case, actions):
        self.case, self.action_space = case, actions


class FloatActions:
    """Actions of floats between -1 and 1."""

    low, high = np.full(1, -1.0), np.full(1, 1.0)

    def contains(self, action):
        return bool((abs(action) <= 1).all())


class TogetherEnvs:
    """Raw functions under ``jit`` and ``vmap``; environment ``k`` splits the key of the seed + ``k``."""

    actions = None

    def __init__(self, case, rows):
        import jax

        self.jax, self.raw, self.num_envs = jax, case.make_raw(), len(rows.ends["done"])
        self.reset_all, self.step_all = jax.jit(jax.vmap(self.raw.reset)), jax.jit(jax.vmap(self.raw.step))
        self.envs = [Present(case, self.actions) for _ in range(self.num_envs)]

    def begin(self, seed):
        self.keys = [self.jax.random.PRNGKey(seed + index) for index in range(self.num_envs)]
        self.states = [None] * self.num_envs
        return self.reset(range(self.num_envs))

    def reset(self, indices):
        keys = list(self.keys)
        for index in indices:
            self.keys[index], keys[index] = self.jax.random.split(self.keys[index])
        began = self.unstack(self.reset_all(np.stack(keys)))
        for index in indices:
            self.start(index, began[index])
        return [self.observe(index) for index in indices]

    def unstack(self, tree):
        """The states of single environments, in NumPy."""
        tree = self.jax.tree.map(np.array, tree)
        return [self.jax.tree.map(lambda array: array[index], tree) for index in range(self.num_envs)]  # noqa: B023

    def step(self, actions):
        stacked = self.jax.tree.map(
            lambda *arrays: np.stack(arrays), *map(self.state_of, range(self.num_envs))
        )
        for index, state in enumerate(self.unstack(self.step_all(stacked, np.stack(actions)))):
            self.follow(index, state)
        return [self.result(index) for index in range(self.num_envs)]

    def start(self, index, state):
        self.states[index] = state

    follow = start

    def state_of(self, index):
        return self.states[index]

    def close(self):
        pass


class Pendulums(TogetherEnvs):
    """Brax's own step, of which the time limit is counted here."""

    actions = FloatActions()

    def start(self, index, state):
        self.states[index], self.steps = state, getattr(self, "steps", {}) | {index: 0}

    def follow(self, index, state):
        self.states[index], self.steps[index] = state, self.steps[index] + 1

    def observe(self, index):
        return self.states[index].obs

    def result(self, index):
        state, is_late = self.states[index], self.steps[index] >= PENDULUM_LIMIT
        has_failed = bool(state.done)
        return RawStep(state.obs, state.reward, has_failed, is_late and not has_failed)


class JumanjiEnvs(TogetherEnvs):
    """Jumanji's state and time step."""

    def state_of(self, index):
        return self.states[index][0]

    def start(self, index, state):
        self.states[index] = state
        mask = state[1].observation.action_mask
        self.envs[index].mask = mask if mask.any() else np.ones_like(mask)  # of a trapped snake

    follow = start

    def observe(self, index):
        return self.states[index][1].observation

    def result(self, index):
        step = self.states[index][1]
        is_last = step.step_type == 2
        has_failed = bool(is_last and step.discount == 0)
        return RawStep(step.observation, step.reward, has_failed, bool(is_last) and not has_failed)


def read_snake(observation):
    cells = np.moveaxis(np.asarray(observation.grid), -1, 0)
    return {"grid": cells, "elapsed_steps": np.float32([observation.step_count])}


def read_maze(observation):
    positions = {
        f"{name}_{axis}": np.float32([getattr(getattr(observation, name), axis)])
        for name in ("agent_position", "target_position")
        for axis in ("row", "col")
    }
    walls = np.float32(observation.walls).ravel()
    return {**positions, "walls": walls, "elapsed_steps": np.float32([observation.step_count])}


CASES = [
    Case(
        "brax",
        [
            "env=brax",
            "env.id=inverted_pendulum",
            "env.backend=spring",
            f"env.max_episode_steps={PENDULUM_LIMIT}",
        ],
        make_pendulum,
        action_space=lambda env: env.action_space,
        make_vector=Pendulums,
        package="brax",
        slow=True,
    ),
    Case(
        "jumanji",
        ["env=jumanji", "env.id=Snake-v1", f"+env.time_limit={SNAKE_LIMIT}"],
        make_snake,
        read=read_snake,
        ends={"terminated"},  # as Jumanji has its time limit
        action=np.int32,
        mask=lambda env: env.mask.astype(bool),
        action_space=lambda env: None,
        make_vector=JumanjiEnvs,
        package="jumanji",
        slow=True,
    ),
    Case(
        "jumanji-maze",  # whose episodes end at different times
        ["env=jumanji", "env.id=Maze-v0", f"+env.time_limit={MAZE_LIMIT}"],
        make_maze,
        read=read_maze,
        ends={"terminated"},
        action=np.int32,
        mask=lambda env: env.mask.astype(bool),
        action_space=lambda env: None,
        make_vector=JumanjiEnvs,
        package="jumanji",
        num_envs=(3,),
        slow=True,
    ),
]
