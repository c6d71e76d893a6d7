"""Text tasks that fail, never end, or reward what is easy to check; imported by verifier processes."""

import zlib

from hydrl.contrib.language.tasks import TextTask


class Broken(TextTask):
    """A task whose verifier fails, or gives other rewards than it names."""

    reward_names = ("right",)

    def __init__(self, kind: str = "raises") -> None:
        self.kind = kind

    def draw(self, rng):
        return str(rng.randrange(1_000)), "1"

    def reward(self, prompt, answer, solution):
        return {"right": 1 / 0} if self.kind == "raises" else {"wrong": 1.0}


class Strange(TextTask):
    """A task of characters it does not name."""

    def draw(self, rng):
        return "".join(rng.choice("αβγδ") for _ in range(9)), "1"


class Constant(TextTask):
    """Every answer is worth the same."""

    def draw(self, rng):
        return str(rng.randrange(1_000)), ""

    def reward(self, prompt, answer, solution):
        return 0.1


class Lengths(TextTask):
    """Rewards answers by their length."""

    def draw(self, rng):
        return str(rng.randrange(100, 1_000)), ""

    def reward(self, prompt, answer, solution):
        return float(len(answer))


class Endless(TextTask):
    """A verifier that evaluates answers as code."""

    characters = "9*1="

    def draw(self, rng):
        return rng.choice(["1=", "9="]), "1"

    def reward(self, prompt, answer, solution):
        return float(eval(answer) == 1)


class Telephone(TextTask):
    """Replies ``no`` to questions; any other answer ends the conversation, and ``1`` is right."""

    characters = "0123456789?no"

    def draw(self, rng):
        return str(rng.randrange(100, 1_000)), "1"

    def turn(self, prompt, answer):
        return "no" if answer.startswith("?") else None


class Lookup(TextTask):
    """A bit that only the tool knows, which tells it where the answer is ``?``."""

    characters = "01?"

    def draw(self, rng):
        prompt = f"{rng.randrange(16):04b}"
        return prompt, self.secret(prompt)

    def turn(self, prompt, answer):
        return self.secret(prompt) if answer == "?" else None

    def reward(self, prompt, answer, solution):
        return float(answer == solution and len(prompt) > 4)

    def demonstrate(self, prompt, solution):
        return ["?", solution]

    @staticmethod
    def secret(prompt):
        return str(zlib.crc32(prompt[:4].encode()) % 2)
