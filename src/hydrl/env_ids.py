"""Which option of ``env`` an environment's id belongs to, by how the id begins."""

import re

OPTIONS = {"ALE": "atari", "MinAtar": "minatar", "MiniGrid": "minigrid", "BabyAI": "minigrid"}
ROBOTICS = re.compile("Fetch(Reach|Push|Slide|Pick)|Hand(Reach|Man)|(Point|Ant)Maze_|AdroitHand|FrankaKit")


def find_option(id: str) -> str | None:
    """The option of ``env`` with the preprocessing of an environment, such as ``atari``, if there is one."""
    name = id.rpartition(":")[2]
    return "robotics" if ROBOTICS.match(name) else OPTIONS.get(re.split("[/-]", name)[0])
