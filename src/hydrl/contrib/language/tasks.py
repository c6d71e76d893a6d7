"""Text tasks: a task draws prompts with their solutions and rewards answers. Your own is such a class."""

import random
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import Literal

from hydrl.limits import PositiveInt

LONGEST = 200  # characters of an expression; longer ones are wrong


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
        """The reward of an answer, or several by name, which are added.

        Args:
            prompt: of several turns the whole conversation before the answer.
            answer: of several turns the last one.
            solution: that was drawn with the prompt.
        """
        return float(answer == solution)

    def turn(self, prompt: str, answer: str) -> str | None:
        """The reply to an answer, after which the policy answers again; ``None`` ends the conversation.

        Args:
            prompt: the conversation before the answer.
            answer: of this turn.
        """
        return None

    def demonstrate(self, prompt: str, solution: str) -> Sequence[str]:
        """The answers of a conversation that solves a prompt, for ``data=solved``; one for each turn."""
        return [solution]

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


class Countdown(TextTask):
    """Numbers to combine to a target: ``3,5,2=13`` is answered by ``3+5*2``; each number is used once.

    Args:
        count: of numbers.
        largest: of them.
        operators: the allowed ones, of ``+-*``.
    """

    characters = "0123456789,=+-*()"

    def __init__(
        self,
        count: PositiveInt = 3,
        largest: PositiveInt = 9,
        operators: Literal["+-*", "+-", "+*", "+"] = "+-*",
    ) -> None:
        self.count, self.largest, self.operators = count, largest, operators

    def draw(self, rng: random.Random) -> tuple[str, str]:
        """Draws numbers and operators; the target is their result."""
        numbers = [rng.randint(1, self.largest) for _ in range(self.count)]
        signs = [rng.choice(self.operators) for _ in numbers[1:]]
        text = str(numbers[0]) + "".join(
            f"{sign}{number}" for sign, number in zip(signs, numbers[1:], strict=True)
        )
        shuffled = rng.sample(numbers, len(numbers))
        return f"{','.join(map(str, shuffled))}={evaluate(text)}", text

    def reward(self, prompt: str, answer: str, solution: str) -> float:
        """1 for an expression of the prompt's numbers, each used once, that gives the target."""
        numbers, _, target = prompt.partition("=")
        if any(sign in answer for sign in {*"+-*"} - {*self.operators}):
            return 0.0
        is_used_once = sorted(re.findall(r"\d+", answer)) == sorted(numbers.split(","))
        return float(is_used_once and evaluate(answer) == int(target))

    def identity(self, prompt: str) -> str:
        """The numbers in order, and the target."""
        numbers, _, target = prompt.partition("=")
        return f"{','.join(sorted(numbers.split(',')))}={target}"


def evaluate(expression: str) -> int | None:
    """The value of whole numbers, ``+``, ``-``, ``*`` and parentheses; ``None`` for anything else.

    It parses the text and runs no code of it.
    """
    if len(expression) > LONGEST or not re.fullmatch(r"[\d+*()-]+", expression):
        return None
    tokens = re.findall(r"\d+|[+*()-]", expression)
    try:
        value = parse_sum(tokens)
    except (IndexError, ValueError):
        return None
    return None if tokens else value


def parse_sum(tokens: list[str]) -> int:
    """The value of a sum of products; removes its tokens from the list."""
    value = parse_product(tokens)
    while tokens and tokens[0] in "+-":
        sign = tokens.pop(0)
        value += parse_product(tokens) if sign == "+" else -parse_product(tokens)
    return value


def parse_product(tokens: list[str]) -> int:
    """The value of a product of numbers and sums in parentheses; removes its tokens from the list."""
    value = 1
    while True:
        if (token := tokens.pop(0)) == "(":
            value *= parse_sum(tokens)
            if tokens.pop(0) != ")":
                raise ValueError
        else:
            value *= int(token)
        if not (tokens and tokens[0] == "*"):
            return value
        tokens.pop(0)


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
