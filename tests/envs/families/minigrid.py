"""MiniGrid and BabyAI: one-hot cells, the agent's direction and missions in words."""

from functools import partial

import gymnasium
import numpy as np

from tests.envs.families.case import Case, Guard

# What BabyAI's missions have beside MiniGrid's own words.
BABY_WORDS = ["after", "behind", "front", "in", "left", "next", "on", "right", "your"]


def make_raw(id: str, **kwargs):
    import minigrid  # noqa: F401 - registers it

    return gymnasium.make(id, **kwargs)


def make_whole_grid(id: str, **kwargs):
    """The whole grid by MiniGrid's own wrapper, whose cell of the agent lacks what it carries."""
    from minigrid.wrappers import FullyObsWrapper

    return WithCarried(FullyObsWrapper(make_raw(id, **kwargs)))


class WithCarried(gymnasium.ObservationWrapper):
    """Adds what the agent carries; the agent's direction is no state, which has three values only."""

    def observation(self, observation):
        raw, image = self.unwrapped, observation["image"].copy()
        image[tuple(raw.agent_pos)] = raw.carrying.encode() if raw.carrying else (10, 0, 0)
        return observation | {"image": image, "agent": tuple(raw.agent_pos)}


def read(observation, words: bool = False):
    image = observation["image"]
    cells = np.zeros((20, *image.shape[:2]), np.uint8)
    for column, row in np.ndindex(image.shape[:2]):
        kind, colour, state = image[column, row]
        cells[kind, column, row] = cells[11 + colour, column, row] = cells[17 + state, column, row] = 1
    if "agent" in observation:
        cells[(10, *observation["agent"])] = 1
    entries = {"pixels": cells, "direction": np.eye(4, dtype=np.float32)[observation["direction"]]}
    if words:
        entries["mission"] = read_mission(observation["mission"])
    return entries


def read_mission(mission: str) -> np.ndarray:
    from minigrid.wrappers import DictObservationSpaceWrapper

    known = [*DictObservationSpaceWrapper.get_minigrid_words(), *BABY_WORDS]
    words = np.zeros((50, 1 + len(known)), np.float32)
    words[:, 0] = 1
    for place, word in enumerate(mission.replace(",", " ,").split()):
        words[place, 0], words[place, 1 + known.index(word)] = 0, 1
    return words.ravel()


def as_columns(image, space):
    """Guesses which side is the channels, as for other images: the shorter one."""
    return image.transpose(2, 0, 1) if image.shape[-1] <= image.shape[0] else image


BABY = "BabyAI-GoToLocal-v0"
CASES = [
    Case(
        "minigrid-empty",
        ["env=minigrid", "env.id=MiniGrid-Empty-Random-5x5-v0", "env.max_steps=30"],
        partial(make_raw, "MiniGrid-Empty-Random-5x5-v0", max_steps=30),
        read=read,
        script=lambda episode, step: (2, 2, 1)[step % 3] if episode % 2 else None,
        package="minigrid",
        random_starts=False,  # the agent may see the same from two places
    ),
    Case(
        "minigrid-view",
        ["env=minigrid", "env.id=MiniGrid-LavaCrossingS9N1-v0", "env.view=5", "env.max_steps=20"],
        partial(make_raw, "MiniGrid-LavaCrossingS9N1-v0", agent_view_size=5, max_steps=20),
        read=read,
        package="minigrid",
        random_starts=False,  # it begins in the same corner
        fast_num_envs=(1,),
    ),
    Case(
        "minigrid-whole",
        ["env=minigrid", f"env.id={BABY}", "env.full=true", "env.max_steps=40"],
        partial(make_whole_grid, BABY, max_steps=40),
        read=read,
        package="minigrid",
        fast_num_envs=(3,),
    ),
    Case(
        "babyai-words",
        ["env=minigrid", "env.id=BabyAI-GoToObj-v0", "env.mission=words", "env.max_steps=25"],
        partial(make_raw, "BabyAI-GoToObj-v0", max_steps=25),
        read=partial(read, words=True),
        package="minigrid",
        slow=True,
    ),
]
GUARDS = [
    Guard(
        "cells are channels before columns",
        "hydrl.envs.spaces:entry_channels_first",
        as_columns,
        "minigrid-empty",
        "observations",
    ),
]
