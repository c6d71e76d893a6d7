"""Text tasks: a task draws prompts with their solutions and rewards answers. Your own is such a class."""

import random
import zlib
from collections.abc import Mapping
from typing import Literal

from hydrl.limits import PositiveInt


class TextTask:
    """Base class of text tasks; ``env=prompts env.task._target_=MODULE.CLASS`` chooses one of your own.

    Attributes:
        characters: all characters of prompts and answers, from which ``model=tiny`` makes its tokenizer.
        right: rewards from this on count as success.
        reward_names: names of the rewards, if :meth:`reward` returns several.
    """

    characters = "0123456789"
    right = 1.0
    reward_names: tuple[str, ...] = ()

    def draw(self, rng: random.Random) -> tuple[str, str]:
        """Draws a prompt and its solution; all randomness comes from ``rng``."""
        raise NotImplementedError

    def reward(self, prompt: str, answer: str, solution: str) -> float | Mapping[str, float]:
        """The reward of an answer, or several by name, which are added."""
        return float(answer == solution)

    def identity(self, prompt: str) -> str:
        """A text that is the same for prompts that ask the same; they are held out together."""
        return prompt


class Digits(TextTask):
    """Digits to copy, to reverse or to sort: ``s3142=`` is answered by ``1234``.

    Args:
        action: what to do with the digits; its first letter begins the prompt.
        length: number of digits.
    """

    def __init__(self, action: Literal["copy", "reverse", "sort"] = "sort", length: PositiveInt = 4) -> None:
        self.action, self.length = action, length
        self.characters = f"0123456789={action[0]}"

    def draw(self, rng: random.Random) -> tuple[str, str]:
        """Draws the digits."""
        digits = "".join(rng.choice("0123456789") for _ in range(self.length))
        solutions = {"copy": digits, "reverse": digits[::-1], "sort": "".join(sorted(digits))}
        return f"{self.action[0]}{digits}=", solutions[self.action]


class Sum(TextTask):
    """Sums of two numbers: ``17+05=`` is answered by ``220``, the last digit first.

    Args:
        digits: digits of each number, leading zeros included.
        reverse: the answer's last digit comes first, in the order of carrying by hand.
    """

    def __init__(self, digits: PositiveInt = 2, *, reverse: bool = True) -> None:
        self.digits, self.reverse = digits, reverse
        self.characters = "0123456789+="

    def draw(self, rng: random.Random) -> tuple[str, str]:
        """Draws the two numbers."""
        first, second = (rng.randrange(10**self.digits) for _ in range(2))
        total = f"{first + second:0{self.digits + 1}}"
        prompt = f"{first:0{self.digits}}+{second:0{self.digits}}="
        return prompt, total[::-1] if self.reverse else total

    def identity(self, prompt: str) -> str:
        """The two numbers in order, since 17+05 asks the same as 05+17."""
        return "+".join(sorted(prompt.rstrip("=").split("+")))


Part = Literal["training", "evaluation", "final"]


def part_of(task: TextTask, prompt: str, held_out: float) -> Part:
    """The part of all prompts that a prompt belongs to, by a checksum of its identity.

    Half of the held-out prompts are for evaluations during training, the other half for final evaluations.

    Args:
        task: gives the identity.
        prompt: as it was drawn.
        held_out: share of prompts that are never trained on.
    """
    position = zlib.crc32(task.identity(prompt).encode()) / 2**32
    if position >= held_out:
        return "training"
    return "evaluation" if position < held_out / 2 else "final"
