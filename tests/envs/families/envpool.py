"""EnvPool: seven of its environments, by pools of one that are stepped one after the other."""

from functools import partial

import numpy as np

from tests.envs.families.case import Case

ATARI = {"episodic_life": True, "reward_clip": False, "use_fire_reset": False, "noop_max": 30}


class OnePool:
    """A pool of one environment, with Gymnasium's methods."""

    def __init__(self, id: str, **kwargs):
        self.id, self.kwargs = id, kwargs

    def begin(self, seed: int):
        import envpool

        self.pool = envpool.make(self.id, env_type="gymnasium", num_envs=1, seed=seed, **self.kwargs)
        self.action_space = self.pool.action_space
        return self.reset()[0]

    def reset(self):
        self.observation = first(self.pool.reset()[0])
        return self.observation, {}

    def step(self, action):
        observation, reward, terminated, truncated, info = self.pool.step(np.array([action]))
        self.observation = first(observation)
        return self.observation, float(reward[0]), bool(terminated[0]), bool(truncated[0]), info

    def close(self):
        self.pool.close()


def first(batch):
    if isinstance(batch, dict):
        return {name: first(values) for name, values in batch.items()}
    return np.array(batch[0])


def read_tetris(observation):
    entries = {name: observation[name].ravel() for name in ("grid", "tetromino")}
    return entries | {"time_step": np.array([observation["step_count"] / np.float32(399)])}


def read_snake(observation):
    entries = {"grid": observation["grid"].transpose(2, 0, 1)}
    return entries | {"time_step": np.array([observation["step_count"] / np.float32(3999)])}


def read_grid(observation):
    image = observation["image"]
    cells = np.zeros((20, *image.shape[:2]), np.uint8)
    for column, row in np.ndindex(image.shape[:2]):
        kind, colour, state = image[column, row]
        cells[kind, column, row] = cells[11 + colour, column, row] = cells[17 + state, column, row] = 1
    return {"pixels": cells, "direction": np.eye(4, dtype=np.float32)[observation["direction"]]}


def make_case(name: str, id: str, limit: int, **options) -> Case:
    return Case(
        name,
        ["env=envpool", f"env.id={id}", f"+env.max_episode_steps={limit}"],
        partial(OnePool, id, max_episode_steps=limit),
        begin=OnePool.begin,
        package="envpool",
        **options,
    )


CASES = [
    make_case(
        "envpool-cartpole",
        "CartPole-v1",
        30,
        script=lambda episode, step: (0, 1, 1, 0)[step % 4] if episode % 2 else None,
        num_envs=(1, 3, 64),
        fast_num_envs=(3,),
    ),
    make_case("envpool-cheetah", "HalfCheetah-v4", 25, ends={"truncated"}, fast_num_envs=(3,)),
    Case(
        "envpool-tetris",
        ["env=envpool", "env.id=Jumanji/Tetris-v0"],
        partial(OnePool, "Jumanji/Tetris-v0"),
        begin=OnePool.begin,
        read=read_tetris,
        ends={"terminated"},
        action=lambda number: np.array(divmod(int(number), 10), np.int32),  # rotation and column
        mask=lambda env: env.observation["action_mask"].ravel(),
        is_valid=lambda mask, action: bool(mask.reshape(4, 10)[tuple(action)]),
        random_starts=False,  # an empty grid and one of few pieces
        package="envpool",
        fast_num_envs=(3,),
    ),
    make_case(
        "envpool-minigrid",
        "MiniGrid-Empty-Random-5x5-v0",
        30,
        read=read_grid,
        script=lambda episode, step: (2, 2, 1)[step % 3] if episode % 2 else None,
        random_starts=False,  # the agent may see the same from two places
        fast_num_envs=(1,),
    ),
    make_case("envpool-goals", "FetchReach-v4", 20, ends={"truncated"}, read=dict, fast_num_envs=(3,)),
    Case(
        "envpool-snake",
        ["env=envpool", "env.id=Jumanji/Snake-v1"],
        partial(OnePool, "Jumanji/Snake-v1"),
        begin=OnePool.begin,
        read=read_snake,
        ends={"terminated"},
        mask=lambda env: env.observation["action_mask"],
        num_envs=(3,),
        package="envpool",
        fast_num_envs=(3,),
    ),
    Case(
        "envpool-pong",
        ["env=envpool", "env.id=Pong-v5", "~transforms.reward_sign", "+env.max_episode_steps=20"],
        partial(OnePool, "Pong-v5", max_episode_steps=20, **ATARI),
        begin=OnePool.begin,
        read=lambda observation: {"pixels": observation},
        ends={"truncated"},
        num_envs=(3,),
        fast_num_envs=(3,),
        package="envpool",
    ),
]
