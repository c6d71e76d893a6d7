"""Language models: a small Llama made from the seed, or the model of a local Hugging Face folder."""

from hashlib import blake2b, file_digest
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from hydrl.contrib.language.text import WEIGHTS, TextCodec, check_folder
from hydrl.envs.optional import require_package
from hydrl.errors import UserError
from hydrl.limits import PositiveFloat, PositiveInt


def tiny(
    codec: TextCodec,
    positions: int,
    *,
    hidden: PositiveInt = 64,
    layers: PositiveInt = 2,
    heads: PositiveInt = 4,
) -> nn.Module:
    """A Llama with random weights.

    Args:
        codec: gives the vocabulary.
        positions: tokens of a prompt and its answer together.
        hidden: size of the embedding of a token, a multiple of ``heads``.
        layers: transformer blocks.
        heads: attention heads in each block.

    Raises:
        UserError: if ``hidden`` is no even multiple of ``heads``.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    if hidden % (2 * heads):
        size = -(-hidden // (2 * heads)) * 2 * heads
        raise UserError(
            f"model.hidden={hidden}: is no even multiple of model.heads={heads}. Use model.hidden={size}."
        )
    config = LlamaConfig(
        vocab_size=codec.size,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=positions,
        pad_token_id=codec.pad,
        eos_token_id=codec.end,
        bos_token_id=None,
    )
    return LlamaForCausalLM(config)


class Lora:
    """Low-rank adapters (Hu et al. 2021), which are trained in place of a model's own weights.

    Args:
        r: rank of an adapter's two matrices; ``None`` trains all weights.
        alpha: an adapter's output is scaled by ``alpha / r``; ``None``: twice ``r``.
    """

    def __init__(self, r: PositiveInt | None = None, alpha: PositiveFloat | None = None) -> None:
        self.r, self.alpha = r, alpha

    def adapt(self, model: nn.Module) -> nn.Module:
        """The model with adapters in all linear layers but the last; its own weights take no gradient."""
        if self.r is None:
            return model
        require_package("peft", "llm", "prompts")
        from peft import LoraConfig, get_peft_model

        alpha = 2 * self.r if self.alpha is None else self.alpha
        options = {"r": self.r, "lora_alpha": alpha, "target_modules": "all-linear", "task_type": "CAUSAL_LM"}
        return get_peft_model(model, LoraConfig(**options))


def folder(
    codec: TextCodec,
    positions: int,
    *,
    path: str,
    dtype: Literal["float32", "bfloat16"] = "float32",
    lora: Lora | None = None,
    trust: bool = False,
) -> nn.Module:
    """The causal language model of a local Hugging Face folder.

    No code of the folder is run.

    Args:
        codec: of the same folder; a padding token that it added gets an embedding.
        positions: tokens of a prompt and its answer together.
        path: of the folder.
        dtype: of the weights.
        lora: adapters to train in place of the weights.
        trust: whether to read weights in other files than safetensors, too.

    Raises:
        UserError: if the folder has no such model, or prompt and answer are longer than it can read.
    """
    from transformers import AutoModelForCausalLM

    check_folder(path, trust=trust)
    safetensors = None if trust else True
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, local_files_only=True, use_safetensors=safetensors, dtype=getattr(torch, dtype)
        )
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"model.path={path}: the model cannot be read: {reason}") from error
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and positions > longest:
        raise UserError(
            f"model.path={path}: reads {longest} tokens, and a prompt with its answer has {positions}. Lower "
            "env.prompt_tokens or env.answer_tokens."
        )
    if codec.size > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(codec.size)
    model = (lora or Lora()).adapt(model)
    model.folder_digest = compute_digest(Path(path))
    return model


def compute_digest(path: Path) -> torch.Tensor:
    """Digest of a folder's weights and tokenizer, 16 bytes."""
    digest = blake2b(digest_size=16)
    for file in sorted(file for pattern in (*WEIGHTS, "tokenizer*") for file in path.glob(pattern)):
        with file.open("rb") as content:
            digest.update(file_digest(content, "blake2b").digest())
    return torch.tensor([*digest.digest()], dtype=torch.uint8)
