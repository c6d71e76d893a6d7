"""Text as tokens: a tokenizer with padding, the end of an answer, and errors for what it does not know."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from hydrl.envs.optional import require_package
from hydrl.errors import UserError, printable

PAD = "<|pad|>"
WEIGHTS = ("*.safetensors", "*.bin")  # the second are pickles, which need trust
ANSWER = "ANSWER"  # a placeholder in chat templates


class TextCodec:
    """Converts texts to rows of tokens and back.

    Args:
        tokenizer: a tokenizer of transformers. A padding token of its own is added if it has none: where the
            end of an answer doubles as padding, the end would never be learned.
        has_chat: whether prompts and replies are the user's messages in the tokenizer's chat template.

    Attributes:
        pad: the padding token.
        end: the token that ends an answer.
        size: number of tokens in the vocabulary.
    """

    def __init__(self, tokenizer: Any, *, has_chat: bool = False) -> None:
        if tokenizer.eos_token_id is None:
            raise UserError("model.path: its tokenizer has no end token (eos_token). Add one to the folder.")
        if has_chat and not tokenizer.chat_template:
            raise UserError(
                "env.chat_template=true: the folder's tokenizer has no chat template. Use "
                "env.chat_template=false."
            )
        if tokenizer.pad_token_id in (None, tokenizer.eos_token_id):
            tokenizer.add_special_tokens({"pad_token": PAD})
        self.tokenizer, self.has_chat = tokenizer, has_chat
        self.pad, self.end, self.size = tokenizer.pad_token_id, tokenizer.eos_token_id, len(tokenizer)

    def encode_prompts(self, prompts: Sequence[str], length: int) -> Tensor:
        """Prompts as tokens, ``[prompts, length]``, padded on the left.

        Raises:
            UserError: for a prompt that is too long or has unknown characters.
        """
        rows = self.read_prompts(prompts)
        return self.pad_rows(rows, prompts, length, "left", "env.prompt_tokens")

    def read_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """Prompts as lists of tokens."""
        if not self.has_chat:
            return self.tokenizer(list(prompts))["input_ids"]
        chats = [self.render_chat([("user", prompt)]) for prompt in prompts]
        return self.tokenizer(chats, add_special_tokens=False)["input_ids"]

    def render_chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """The text of messages, each with its role, in the tokenizer's template, up to the next answer."""
        chat = [{"role": role, "content": content} for role, content in messages]
        return self.tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)

    def continue_conversation(self, context: list[int], answer: list[int], reply: str) -> list[int]:
        """Tokens of a conversation up to the next answer.

        Args:
            context: its tokens before this answer.
            answer: tokens that the policy wrote, its end token among them unless the answer was cut.
            reply: to the answer.

        Raises:
            UserError: if the reply has unknown characters.
        """
        if self.has_chat:
            # What the template writes after an answer; the mark that ends the answer is the policy's own.
            text = self.render_chat([("user", "."), ("assistant", ANSWER), ("user", reply)])
            text = text.partition(ANSWER)[2]
            text = text.removeprefix(self.tokenizer.eos_token) if self.end in answer else text
        else:
            text = reply
        rows = self.tokenizer([text], add_special_tokens=False)["input_ids"]
        self.check_known(rows[0], text)
        return [*context, *answer, *rows[0]]

    def check_known(self, row: Sequence[int], text: str) -> None:
        """Raises if a text has characters that the tokenizer does not know."""
        if self.tokenizer.unk_token_id in row:
            raise UserError(
                f"env.task: {printable(repr(text[:60]))} has a character that the tokenizer does not know. "
                "Add it to `characters` of the task, or use another model."
            )

    def encode_answers(self, answers: Sequence[str], length: int) -> Tensor:
        """Answers as tokens, ``[answers, length]``, with the end token and padding on the right.

        Raises:
            UserError: for an answer that is too long or has unknown characters.
        """
        rows = self.tokenizer(list(answers), add_special_tokens=False)["input_ids"]
        return self.pad_rows(
            [[*row, self.end] for row in rows], answers, length, "right", "env.answer_tokens"
        )

    def pad_rows(
        self,
        rows: Sequence[Sequence[int]],
        texts: Sequence[str],
        length: int,
        side: Literal["left", "right"],
        key: str,
    ) -> Tensor:
        """Rows of tokens, padded to the same length."""
        tokens = torch.full((len(rows), length), self.pad)
        for place, row, text in zip(tokens, rows, texts, strict=True):
            shown = printable(repr(text[:60]))
            if not row:
                raise UserError("env.task: a prompt is empty. Let draw return a prompt with a character.")
            if len(row) > length:
                raise UserError(
                    f"{key}={length}: {shown} has {len(row)} tokens. Use {key}={len(row)} or more."
                )
            self.check_known(row, text)
            place[length - len(row) if side == "left" else 0 :][: len(row)] = torch.tensor(row)
        return tokens

    def decode(self, answers: Tensor) -> list[str]:
        """Texts of answers, ``[answers, length]``, up to their end token."""
        rows = (row[: row.index(self.end)] if self.end in row else row for row in answers.tolist())
        return [self.tokenizer.decode([token for token in row if token != self.pad]) for row in rows]


def character_codec(characters: str) -> TextCodec:
    """A codec with one token for each character."""
    require_package("transformers", "llm", "prompts")
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    tokens = ["<pad>", "<eos>", "<unk>", *dict.fromkeys(characters)]
    tokenizer = Tokenizer(models.WordLevel({token: k for k, token in enumerate(tokens)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return TextCodec(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special))


def folder_codec(path: str, *, has_chat: bool = False) -> TextCodec:
    """The codec of a local Hugging Face folder.

    Args:
        path: of the folder.
        has_chat: see :class:`TextCodec`.

    Raises:
        UserError: if there is no such folder, or no tokenizer in it.
    """
    require_package("transformers", "llm", "prompts")
    from transformers import AutoTokenizer

    check_folder(path)
    try:
        return TextCodec(AutoTokenizer.from_pretrained(path, local_files_only=True), has_chat=has_chat)
    except (OSError, ValueError, TypeError) as error:
        if isinstance(error, UserError):
            raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"model.path={path}: its tokenizer cannot be read: {reason}") from error


def check_folder(path: str, *, trust: bool = True) -> None:
    """Checks that a folder is a local Hugging Face model with weights.

    Args:
        path: of the folder.
        trust: whether other weights than safetensors are read.

    Raises:
        UserError: naming what is missing.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise UserError(
            f"model.path={path}: no such folder. Write that of a local model; nothing is downloaded."
        )
    if not (folder / "config.json").is_file():
        raise UserError(f"model.path={path}: no config.json in it. Write the folder of a Hugging Face model.")
    if not any(any(folder.glob(pattern)) for pattern in (WEIGHTS if trust else WEIGHTS[:1])):
        raise UserError(
            f"model.path={path}: no weights as *.safetensors in it. Save the model by save_pretrained, or "
            "add trust=true to read other files."
        )
