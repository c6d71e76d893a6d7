"""Prompts as an environment: the observation is a prompt, the action an answer, and a turn is a step."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.data import Binary, Categorical, Composite, Unbounded
from torchrl.envs import EnvBase, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl.contrib.language.tasks import Part, TextTask, part_of
from hydrl.contrib.language.text import TextCodec, character_codec, folder_codec
from hydrl.contrib.language.verifier import VerifierProcess
from hydrl.envs.build import EnvFamily, MakeEnv
from hydrl.envs.evaluation import Evaluation, play_episodes
from hydrl.errors import RunError, UserError, printable
from hydrl.limits import Fraction, PositiveFloat, PositiveInt
from hydrl.specs import INFO

DRAWS = 10_000  # after so many prompts of other parts, a task has none of the wanted part
ENDS = ("done", "terminated", "truncated")
SAMPLES = 4  # prompts whose answers each evaluation shows
FOLLOWED = ("success", "tokens", "truncated")  # of each answer, beside the task's own rewards


class PromptFamily(EnvFamily):
    """Environments of prompts, which language models answer."""

    copies_arrays = True

    def for_evaluation(self, make: MakeEnv) -> MakeEnv:
        """The maker of held-out prompts, each asked once."""
        return partial(make, group_size=1, part="evaluation")

    def action_kind(self, env: EnvBase) -> str:
        """``text``."""
        return "text"

    def evaluate(
        self, env: TransformedEnv, actor: TensorDictModuleBase, *, max_steps: int, is_final: bool = False
    ) -> Evaluation:
        """Asks a held-out prompt in each environment; final evaluations have prompts of their own."""
        base = env.base_env
        base.part = "final" if is_final else "evaluation"
        evaluation = play_episodes(env, actor, max_steps=max_steps)
        return replace(evaluation, samples=base.answer_samples(actor))

    def policy_io(self, make: MakeEnv, env: TransformedEnv) -> "TextIO":
        """Conversion of texts."""
        return TextIO(env.base_env.source)

    def export(self, env: TransformedEnv, actor: TensorDictModuleBase, path: Path) -> str:
        """Writes the model and its tokenizer to a new Hugging Face folder.

        Raises:
            UserError: for a path that exists, or looks like a file.
        """
        if path.exists() or path.suffix in (".onnx", ".pt2"):
            raise UserError(f"export={path}: a language model is exported to a new folder. Write export=DIR.")
        actor.save_folder(path)
        env.base_env.codec.tokenizer.save_pretrained(path)
        return "a Hugging Face folder, for transformers and model=folder"


class TextIO:
    """Conversion of texts to prompts, and of answers to texts.

    Args:
        source: makes tokens of texts.
    """

    def __init__(self, source: "PromptSource") -> None:
        self.source, self.is_single = source, False

    def read(self, text: str | Sequence[str], mask: Any = None) -> TensorDictBase:
        """A tensordict of a prompt ``[]``, or of prompts ``[n]``.

        Raises:
            UserError: for what is no text, a prompt that is too long, or unknown characters.
        """
        self.is_single = isinstance(text, str)
        texts = [text] if isinstance(text, str) else list(text)
        if mask is not None or not all(isinstance(prompt, str) for prompt in texts):
            raise UserError("predict: a language model takes a text or a list of texts, and no mask.")
        prompt = self.source.encode(texts)
        rows = TensorDict(
            {"prompt": prompt, "group": torch.zeros(len(texts), 1, dtype=torch.int64)}, [len(texts)]
        )
        return rows[0] if self.is_single else rows

    def write(self, tensordict: TensorDictBase) -> str | list[str]:
        """The text of an answer, or of several."""
        action = tensordict["action"].cpu()
        texts = self.source.decode(action.reshape(-1, action.shape[-1]))
        return texts[0] if self.is_single else texts


def make_prompts(
    task: TextTask,
    *,
    prompt_tokens: PositiveInt,
    answer_tokens: PositiveInt,
    turns: PositiveInt = 1,
    num_envs: int = 1,
    group_size: int | None = None,
    tokenizer: str | None = None,
    chat_template: bool = False,
    held_out: Fraction = 0.1,
    verifier_timeout: PositiveFloat | None = None,
    part: Part = "training",
    device: str = "cpu",
) -> "PromptEnv":
    """Makes an environment of a task's prompts.

    Args:
        task: draws prompts and rewards answers.
        prompt_tokens: tokens of the longest prompt, earlier turns included.
        answer_tokens: tokens after which an answer is cut.
        turns: answers in the longest conversation, for tasks that reply.
        num_envs: prompts at a time; 1 gives batch size ``[]``, more ``[num_envs]``.
        group_size: consecutive answers to the same prompt; ``None`` is 1.
        tokenizer: a local Hugging Face folder; ``None``: a token for each character of the task.
        chat_template: whether prompts and replies are messages in the chat template of that folder.
        held_out: share of prompts that are never trained on; with 0 evaluations draw from all prompts.
        verifier_timeout: seconds for the reward of one answer, which a worker process computes; a longer one
            is killed, and its answer gets 0. ``None`` rewards in this process without a limit.
        part: which of the prompts to draw, see :func:`hydrl.contrib.language.tasks.part_of`.
        device: where prompts and answers live.

    Raises:
        UserError: for a task too small to hold a prompt out, a prompt that is too long, one turn for a task
            that replies, several for one that does not, a chat template without a folder, or a missing
            package.
    """
    if tokenizer is None and chat_template:
        raise UserError("env.chat_template=true: model=tiny has no chat template. Use model=folder.")
    if tokenizer is None:
        codec = character_codec(task.characters)
    else:
        codec = folder_codec(tokenizer, has_chat=chat_template)
    source = PromptSource(task, codec, prompt_tokens, held_out, verifier_timeout)
    source.check(turns)
    batch_size = [] if num_envs == 1 else [num_envs]
    return PromptEnv(source, answer_tokens, batch_size, group_size or 1, part, device, turns)


make_prompts.env_family = PromptFamily()  # type: ignore[attr-defined]


class PromptSource:
    """A task's prompts as tokens, and the rewards of answers.

    Args:
        task: draws prompts and rewards answers.
        codec: makes tokens of them.
        prompt_tokens: tokens of the longest prompt.
        held_out: share of prompts that are never trained on.
        verifier_timeout: seconds for the reward of one answer; ``None``: no limit.
    """

    def __init__(
        self,
        task: TextTask,
        codec: TextCodec,
        prompt_tokens: int,
        held_out: float,
        verifier_timeout: float | None = None,
    ) -> None:
        self.task, self.codec, self.prompt_tokens, self.held_out = task, codec, prompt_tokens, held_out
        self.worker = None if verifier_timeout is None else VerifierProcess(task, verifier_timeout)

    def check(self, turns: int) -> None:
        """Checks that there are prompts of each part, that they can be encoded, and the number of turns.

        Raises:
            UserError: naming what is wrong.
        """
        name, replies = type(self.task).__name__, type(self.task).turn is not TextTask.turn
        if replies != (turns > 1):
            advice = (
                "replies to answers. Use env.turns=2 or more" if replies else "never replies. Use env.turns=1"
            )
            raise UserError(f"env.turns={turns}: {name} {advice}.")
        rng = random.Random(0)
        parts: list[Part] = ["training", "evaluation", "final"]
        self.encode([self.draw(rng, part)[0] for part in parts])

    def draw(self, rng: random.Random, part: Part) -> tuple[str, str]:
        """Draws a prompt of one part, and its solution.

        Raises:
            UserError: if the task has too few prompts.
        """
        for _ in range(DRAWS):
            prompt, solution = self.task.draw(rng)
            if not self.held_out or part_of(self.task, prompt, self.held_out) == part:
                return prompt, solution
        raise UserError(
            f"env.held_out={self.held_out}: {type(self.task).__name__} drew {DRAWS:,} prompts and none for "
            f"{part}; it is too small. Use env.held_out=0, which evaluates on training prompts."
        )

    def encode(self, prompts: Sequence[str]) -> torch.Tensor:
        """Prompts as tokens, ``[prompts, prompt_tokens]``."""
        return self.codec.encode_prompts(prompts, self.prompt_tokens)

    def decode(self, answers: torch.Tensor) -> list[str]:
        """The texts of answers."""
        return self.codec.decode(answers)

    def reward(self, prompt: str, answer: str, solution: str) -> dict[str, float]:
        """The task's rewards by name, and their sum as ``reward``.

        Raises:
            RunError: with prompt and answer, if the task raises or returns no number.
        """
        about = printable(f"of the answer {answer[:200]!r} to {prompt[:200]!r}")
        try:
            reward = (self.worker or self.task).reward(prompt, answer, solution)
            parts = dict(reward) if isinstance(reward, Mapping) else {}
            total = float(sum(parts.values()) if isinstance(reward, Mapping) else reward)
        except TimeoutError:
            return self.no_rewards()
        except Exception as error:
            raise self.explain("reward", error, about) from error
        if total != total or {*parts} != {*self.task.reward_names}:
            names = ", ".join(self.task.reward_names) or "one number"
            raise RunError(f"{type(self.task).__name__}.reward gave {reward!r} {about}; expected {names}.")
        return parts | {"reward": total, "timeout": 0.0}

    def no_rewards(self) -> dict[str, float]:
        """What an answer gets whose verifier took too long."""
        return dict.fromkeys([*self.task.reward_names, "reward"], 0.0) | {"timeout": 1.0}

    def reply(self, prompt: str, answer: str) -> str | None:
        """The task's reply to an answer, ``None`` at the end of a conversation.

        Args:
            prompt: the conversation before the answer.
            answer: of this turn.

        Raises:
            TimeoutError: if it takes longer than the verifier may.
            RunError: with prompt and answer, if the task raises or returns no text.
        """
        about = printable(f"of the answer {answer[:200]!r} to {prompt[:200]!r}")
        try:
            reply = (self.worker or self.task).turn(prompt, answer)
        except TimeoutError:
            raise
        except Exception as error:
            raise self.explain("turn", error, about) from error
        if not isinstance(reply, str | None):
            raise RunError(
                f"{type(self.task).__name__}.turn gave {reply!r} {about}; expected a text or None."
            )
        return reply

    def explain(self, method: str, error: Exception, about: str) -> RunError:
        """The error of a method of the task, in a line."""
        reason = printable(" ".join(f"{type(error).__name__}: {error}".split()))
        return RunError(f"{type(self.task).__name__}.{method} failed, {reason}, {about}.")


class PromptEnv(EnvBase):
    """Environment whose observations are prompts, ``[prompt_tokens]``, padded on the left.

    An action is an answer, ``[answer_tokens]``, with an end token and padding on the right. ``group`` numbers
    the answers to one prompt alike. A task that replies makes a conversation of several turns, whose
    observations hold all before the next answer. Episodes have the same number of turns: after its end a
    conversation has empty observations, to which the policy gives empty answers.

    Args:
        source: gives prompts and rewards.
        answer_tokens: tokens after which an answer is cut.
        batch_size: ``[]``, or ``[num_envs]``.
        group_size: consecutive answers to the same prompt.
        part: of the prompts.
        device: where prompts and answers live.
        turns: of an episode.
    """

    def __init__(
        self,
        source: PromptSource,
        answer_tokens: int,
        batch_size: Sequence[int],
        group_size: int,
        part: Part,
        device: str,
        turns: int = 1,
    ) -> None:
        super().__init__(batch_size=torch.Size(batch_size), device=device)
        # Bound methods count as constant where checkpoints read an environment's state.
        self.draw, self.encode, self.decode, self.reward_of = (
            source.draw,
            source.encode,
            source.decode,
            source.reward,
        )
        several = ["turns"] * (turns > 1)
        self.names = [*FOLLOWED, *several, *["timeout"] * bool(source.worker), *source.task.reward_names]
        self.right, self.pad, self.end = source.task.right, source.codec.pad, source.codec.end
        self.group_size, self.part, self.prompt_tokens = group_size, part, source.prompt_tokens
        self.turns = self.max_episode_steps = turns
        self.rng = random.Random()
        self.turn = 0
        self.prompts: list[tuple[str, str]] = []  # with their solutions
        # Of the conversations so far: text, tokens (none after the end), and values to follow.
        self.texts: list[str] = []
        self.contexts: list[list[int]] = []
        self.values: list[dict[str, float]] = []
        tokens, info = partial(Categorical, source.codec.size), Unbounded((*batch_size, 1))
        self.observation_spec = Composite(
            {
                "prompt": tokens((*batch_size, source.prompt_tokens)),
                "group": Unbounded((*batch_size, 1), dtype=torch.int64),
                INFO: Composite({name: info.clone() for name in self.names}, shape=batch_size),
            },
            shape=batch_size,
        )
        self.action_spec = tokens((*batch_size, answer_tokens))
        self.reward_spec = info.clone()
        ended = Binary(1, (*batch_size, 1), dtype=torch.bool)
        self.full_done_spec = Composite({name: ended.clone() for name in ENDS}, shape=batch_size)

    @property
    def codec(self) -> TextCodec:
        """Makes tokens of texts."""
        return self.source.codec

    @property
    def source(self) -> PromptSource:
        """Gives prompts and rewards."""
        return self.draw.__self__  # type: ignore[attr-defined]

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Ends the verifier's process."""
        if self.source.worker is not None:
            self.source.worker.close()
        super().close(raise_if_closed=raise_if_closed)

    def _set_seed(self, seed: int | None) -> None:
        self.rng.seed(f"{seed} {self.part}")

    def _reset(self, tensordict: TensorDictBase | None = None, **_: Any) -> TensorDictBase:
        count = -(-self.numel() // self.group_size)
        prompts = [self.draw(self.rng, self.part) for _ in range(count)]
        numbers = torch.tensor([self.rng.getrandbits(62) for _ in range(count)])  # also unlike other workers'
        self.prompts = [prompt for prompt in prompts for _ in range(self.group_size)][: self.numel()]
        group = numbers.repeat_interleave(self.group_size)[: self.numel()]
        self.texts = [prompt for prompt, _ in self.prompts]
        tokens = self.encode(self.texts)
        self.contexts = [[token for token in row if token != self.pad] for row in tokens.tolist()]
        self.values = [{} for _ in self.texts]
        self.turn = 0
        unknown = torch.full((self.numel(), len(self.names)), torch.nan)
        return self.observe(tokens, group, unknown)

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        answers = tensordict["action"].reshape(self.numel(), -1)
        self.turn += 1
        texts = zip(self.decode(answers), answers.tolist(), strict=True)
        rewards = [self.take_answer(number, *answer) for number, answer in enumerate(texts)]
        info = torch.tensor([[row.get(name, torch.nan) for name in self.names] for row in self.values])
        prompt = torch.full((self.numel(), self.prompt_tokens), self.pad)
        for place, context in zip(prompt, self.contexts, strict=True):
            place[self.prompt_tokens - len(context) :] = torch.tensor(context)
        next_step = self.observe(prompt, tensordict["group"].clone(), info)
        reward = torch.tensor(rewards).reshape(*self.batch_size, 1)
        is_last = self.turn == self.turns
        ended = torch.full((*self.batch_size, 1), is_last, device=self.device)
        ends = {"done": ended, "terminated": ended.clone(), "truncated": torch.zeros_like(ended)}
        return next_step.update({"reward": reward.to(self.device), **ends})

    def take_answer(self, number: int, text: str, tokens: list[int]) -> float:
        """Continues a conversation by an answer, or ends it; returns the reward, which is 0 until its end."""
        context, before = self.contexts[number], self.texts[number]
        if not context:
            return 0.0
        answer = tokens[: tokens.index(self.end) + 1] if self.end in tokens else tokens
        answer = [token for token in answer if token != self.pad]
        values = self.values[number]
        values["turns"] = self.turn
        values["tokens"] = values.get("tokens", 0) + len(answer)
        values["truncated"] = max(values.get("truncated", 0), self.end not in answer)
        self.texts[number], self.contexts[number] = before + text, []
        try:
            reply = self.source.reply(before, text) if self.turn < self.turns else None
        except TimeoutError:
            values |= {**self.source.no_rewards(), "success": 0.0}
            return 0.0
        if reply is not None:
            context = self.codec.continue_conversation(context, answer, reply)
            if len(context) <= self.prompt_tokens:
                self.texts[number], self.contexts[number] = before + text + reply, context
                return 0.0
            values["truncated"] = 1.0
        values |= self.reward_of(before, text, self.prompts[number][1])
        values["success"] = float(values["reward"] >= self.right)
        return values["reward"]

    @torch.no_grad()
    def answer_samples(self, actor: TensorDictModuleBase) -> list[dict[str, Any]]:
        """The policy's likeliest answers to a few held-out prompts, always the same, with their rewards."""
        answer_tokens = self.action_spec.shape[-1]
        env = PromptEnv(self.source, answer_tokens, [SAMPLES], 1, "evaluation", str(self.device), self.turns)
        env.rng.seed(0)
        with set_exploration_type(ExplorationType.DETERMINISTIC):
            rewards = env.rollout(self.turns, actor, break_when_any_done=False)["next", "reward"].sum(1)
        rows = zip(env.prompts, env.texts, rewards.flatten().tolist(), strict=True)
        return [
            {"prompt": prompt, "answer": text.removeprefix(prompt), "reward": reward}
            for (prompt, _), text, reward in rows
        ]

    def observe(self, prompt: torch.Tensor, group: torch.Tensor, info: torch.Tensor) -> TensorDictBase:
        """An observation of prompts ``[prompt_tokens]``, group numbers ``[1]`` and the values followed."""
        columns = info.reshape(*self.batch_size, len(self.names), 1).unbind(-2)
        followed = TensorDict(dict(zip(self.names, columns, strict=True)), self.batch_size)
        observed = {
            "prompt": prompt.reshape(*self.batch_size, -1),
            "group": group.reshape(*self.batch_size, 1),
            INFO: followed,
        }
        return TensorDict(observed, self.batch_size).to(self.device)
