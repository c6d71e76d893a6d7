"""A text task for language models, whose policy may ask a calculator."""

from hydrl.contrib.language.tasks import TextTask, evaluate


class Calculator(TextTask):
    """Products: ``37*84=`` is answered by ``3108``. The answer ``37*84?`` asks the calculator first."""

    characters = "0123456789*=?"

    def draw(self, rng):
        first, second = rng.randint(10, 99), rng.randint(10, 99)
        return f"{first}*{second}=", str(first * second)

    def turn(self, prompt, answer):
        if not answer.endswith("?"):
            return None  # the conversation ends
        result = evaluate(answer.removesuffix("?"))
        return "?" if result is None else str(result)

    def demonstrate(self, prompt, solution):
        return [prompt.replace("=", "?"), solution]
