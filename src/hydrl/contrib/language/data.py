"""Solved prompts to learn from: a task's own, or those of a JSONL file."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModuleBase
from torchrl.data import LazyTensorStorage, ReplayBuffer
from torchrl.envs import TransformedEnv

from hydrl.contrib.language.prompt_env import PromptEnv, PromptSource
from hydrl.errors import UserError
from hydrl.limits import PositiveInt


def solved(
    env: TransformedEnv,
    actor: TensorDictModuleBase,
    *,
    examples: PositiveInt = 1_000,
    path: str | None = None,
    seed: int = 0,
) -> ReplayBuffer:
    """Offline dataset of prompts with right answers, sampled uniformly with replacement.

    Args:
        env: an environment of prompts.
        actor: unused; all datasets have the same arguments.
        examples: prompts that the task draws, none of them held out.
        path: a file with a JSON object in each line, ``{"prompt": …, "answer": …}``, to use instead.
        seed: of the draws.

    Raises:
        UserError: for a file that cannot be read, or texts that are too long.
    """
    base = env.base_env
    if path is None:
        rows = [row for pair in draw_pairs(base.source, examples, seed) for row in demonstrate(base, *pair)]
    else:
        pairs = [*read_pairs(Path(path))]
        contexts = base.codec.read_prompts([prompt for prompt, _ in pairs])
        rows = [(prompt, context, answer) for (prompt, answer), context in zip(pairs, contexts, strict=True)]
    prompts, tokens, answers = (list(column) for column in zip(*rows, strict=True))
    prompt = base.codec.pad_rows(tokens, prompts, base.prompt_tokens, "left", "env.prompt_tokens")
    action = base.codec.encode_answers(answers, base.action_spec.shape[-1])
    ones = torch.ones(len(rows), 1)
    ends = {"done": ones.bool(), "terminated": ones.bool()}
    after = TensorDict({"prompt": prompt, "reward": ones, "episode_reward": ones, **ends}, [len(rows)])
    buffer = ReplayBuffer(storage=LazyTensorStorage(len(rows)))
    buffer.extend(TensorDict({"prompt": prompt, "action": action, "next": after}, [len(rows)]))
    return buffer


def draw_pairs(source: PromptSource, examples: int, seed: int) -> list[tuple[str, str]]:
    """Prompts of a task with their solutions."""
    rng = random.Random(f"solved {seed}")
    return [source.draw(rng, "training") for _ in range(examples)]


def demonstrate(env: PromptEnv, prompt: str, solution: str) -> Iterator[tuple[str, list[int], str]]:
    """The turns of a conversation that solves a prompt: text and tokens before an answer, and the answer."""
    codec, source, text = env.codec, env.source, prompt
    context = codec.read_prompts([prompt])[0]
    for answer in source.task.demonstrate(prompt, solution):
        yield text, context, answer
        if (reply := source.reply(text, answer) if env.turns > 1 else None) is None:
            return
        tokens = codec.tokenizer([answer], add_special_tokens=False)["input_ids"][0]
        context = codec.continue_conversation(context, [*tokens, codec.end], reply)
        text += answer + reply


def read_pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Prompts and answers of a JSONL file.

    Raises:
        UserError: naming the line that cannot be read.
    """
    if not path.is_file():
        raise UserError(
            f"data.path={path}: no such file. Write a file of lines with prompt and answer, or null."
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    if not lines:
        raise UserError(
            f"data.path={path}: is empty. Write a JSON object with prompt and answer in each line."
        )
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            yield str(row["prompt"]), str(row["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"data.path={path}: line {number} is no JSON object with prompt and answer. Write "
                '{"prompt": "…", "answer": "…"}.'
            ) from error
