"""A language model as a policy: it answers prompts and gives losses the probabilities of answers."""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules.distributions import LLMMaskedCategorical

from hydrl.contrib.language.models import Lora
from hydrl.contrib.language.text import TextCodec
from hydrl.errors import UserError
from hydrl.limits import PositiveFloat


def language(
    env: EnvBase, *, model: Callable[..., Any], temperature: PositiveFloat = 1.0
) -> "LanguagePolicy":
    """Policy of a language model for an environment of prompts.

    Args:
        env: gives the tokenizer and the lengths of prompts and answers.
        model: ``model(codec, positions)`` builds the language model.
        temperature: of sampled answers; log-probabilities are those of the same temperature.
    """
    codec, answer_tokens = env.base_env.codec, env.base_env.action_spec.shape[-1]
    positions = env.base_env.observation_spec["prompt"].shape[-1] + answer_tokens
    policy = LanguagePolicy(model(codec, positions), codec, answer_tokens, temperature).to(env.device)
    policy.turns = env.base_env.turns
    return policy


class LanguagePolicy(TensorDictModuleBase):
    """Policy that samples answers, or takes the likeliest tokens under ``ExplorationType.DETERMINISTIC``.

    Args:
        model: a causal language model of transformers.
        codec: knows the padding and the end token.
        answer_tokens: tokens after which an answer is cut.
        temperature: of sampled answers.

    Attributes:
        turns: answers in a conversation's episode, see :class:`hydrl.contrib.language.prompt_env.PromptEnv`.
    """

    model: Any
    turns = 1

    def __init__(self, model: nn.Module, codec: TextCodec, answer_tokens: int, temperature: float) -> None:
        from transformers import GenerationConfig

        super().__init__()
        self.in_keys, self.out_keys = ["prompt"], ["action", "action_log_prob"]
        self.model, self.answer_tokens, self.temperature = model, answer_tokens, temperature
        self.pad, self.end = codec.pad, codec.end
        # A folder's own configuration may penalise repetition, of which log-probabilities know nothing.
        self.model.generation_config = GenerationConfig(pad_token_id=codec.pad, eos_token_id=codec.end)
        self.eval()
        # Of adapters a checkpoint has no more than these; the folder has the weights they adapt.
        self.has_adapter = hasattr(model, "peft_config")
        self.frozen = [name for name, parameter in self.named_parameters() if not parameter.requires_grad]
        self.register_state_dict_post_hook(drop_frozen)
        self.register_load_state_dict_pre_hook(keep_frozen)
        self.register_buffer("folder_digest", getattr(model, "folder_digest", None))
        self.register_buffer("adapter_scale", adapter_scale(model) if self.has_adapter else None)

    def train(self, mode: bool = True) -> "LanguagePolicy":
        """Stays in ``eval()`` mode: dropout would make another policy than the one that acted."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes answers ``[answer_tokens]`` and their log-probabilities, which are 0 after the end."""
        prompt = tensordict["prompt"]
        flat = prompt.reshape(-1, prompt.shape[-1])
        active = (flat != self.pad).any(-1)  # conversations that have ended have empty prompts
        action = flat.new_full((len(flat), self.answer_tokens), self.pad)
        log_prob = torch.zeros(action.shape, device=flat.device)
        if active.any():
            answer, log_probs = self.answer(flat[active])
            action[active, : answer.shape[1]], log_prob[active, : answer.shape[1]] = answer, log_probs
        shape = (*prompt.shape[:-1], self.answer_tokens)
        tensordict["action"], tensordict["action_log_prob"] = action.reshape(shape), log_prob.reshape(shape)
        return tensordict

    def answer(self, prompt: Tensor) -> tuple[Tensor, Tensor]:
        """Answers to prompts ``[prompts, prompt_tokens]``, and the log-probabilities of their tokens."""
        # Without top_k=0 transformers samples the 50 likeliest tokens only.
        sampling = {"do_sample": True, "temperature": self.temperature, "top_k": 0, "top_p": 1.0}
        greedy = exploration_type() == ExplorationType.DETERMINISTIC
        output = self.model.generate(
            input_ids=prompt,
            attention_mask=(prompt != self.pad).long(),
            max_new_tokens=self.answer_tokens,
            suppress_tokens=[self.pad],
            output_scores=True,
            return_dict_in_generate=True,
            **({"do_sample": False} if greedy else sampling),
        )
        answer = output.sequences[:, prompt.shape[1] :]
        scores = torch.stack(output.scores, 1).float().log_softmax(-1)
        return answer, scores.gather(-1, answer[..., None])[..., 0].masked_fill(answer == self.pad, 0.0)

    def logits(self, prompt: Tensor, answer: Tensor) -> Tensor:
        """Logits of an answer's tokens as they are sampled, ``[answers, answer_tokens, vocabulary]``.

        Args:
            prompt: ``[answers, prompt_tokens]``.
            answer: ``[answers, answer_tokens]``.
        """
        tokens = torch.cat([prompt, answer], -1)
        mask = (tokens != self.pad).long()
        output = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=(mask.cumsum(-1) - 1).clamp_min(0),
            logits_to_keep=answer.shape[-1] + 1,
            use_cache=False,
        )
        logits = output.logits[:, :-1].float() / self.temperature
        pad = torch.tensor([self.pad], device=logits.device)
        return logits.index_fill(-1, pad, torch.finfo(logits.dtype).min)

    def read_weights(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Weights of another run's policy as those of this one, before a warm start; adapters are merged.

        With adapters of its own this policy then saves all weights, because the folder no longer has them.

        Raises:
            UserError: for adapters of another folder.
        """
        own = {name.removeprefix("model."): value for name, value in weights.items()}
        adapters = [value for name, value in own.items() if "lora_A" in name]
        if not adapters and not self.has_adapter:
            return weights
        model = copy.deepcopy(self.model)
        model = model.unload() if self.has_adapter else model  # as the folder has it
        if adapters:
            digest = weights.get("folder_digest")
            if (
                digest is None
                or self.folder_digest is None
                or not torch.equal(digest, self.folder_digest.cpu())
            ):
                raise UserError(
                    "init_from: its adapters are of another folder. Write model=folder with its model.path."
                )
            r, scale = len(adapters[0]), weights.get("adapter_scale", torch.tensor(2.0))
            model = Lora(r, r * float(scale)).adapt(model)
        fitting = {name: value for name, value in model.state_dict().items() if name in own}
        fitting = {name: own[name] for name, value in fitting.items() if own[name].shape == value.shape}
        model.load_state_dict(fitting, strict=False)
        model = model.merge_and_unload() if adapters else model
        self.frozen = []
        merged = {plain_name(name): value for name, value in model.state_dict(prefix="model.").items()}
        return {name: merged.get(plain_name(name), value) for name, value in self.state_dict().items()}

    def save_folder(self, path: Path) -> None:
        """Saves the model to a Hugging Face folder, adapters merged."""
        model = copy.deepcopy(self.model).cpu()
        (model.merge_and_unload() if self.has_adapter else model).save_pretrained(path)

    def get_dist(self, tensordict: TensorDictBase, **_: Any) -> LLMMaskedCategorical:
        """The distribution of an answer's tokens, which TorchRL's ``GRPOLoss`` reads."""
        answer = tensordict["action"]
        return LLMMaskedCategorical(logits=self.logits(tensordict["prompt"], answer), mask=answer != self.pad)

    def log_prob(self, tensordict: TensorDictBase) -> Tensor:
        """Log-probabilities of answers' tokens, ``[answers, answer_tokens]``, which are 0 after the end."""
        answer = tensordict["action"]
        log_probs = self.logits(tensordict["prompt"], answer).log_softmax(-1)
        return log_probs.gather(-1, answer[..., None])[..., 0].masked_fill(answer == self.pad, 0.0)


def adapter_scale(model: Any) -> Tensor:
    """The factor of the outputs of a model's adapters."""
    options = next(iter(model.peft_config.values()))
    return torch.tensor(options.lora_alpha / options.r)


def plain_name(name: str) -> str:
    """A weight's name without the modules that hold adapters."""
    return name.replace("base_model.model.", "").replace(".base_layer.", ".")


def drop_frozen(policy: LanguagePolicy, state: dict[str, Any], prefix: str, _: Any) -> None:
    """Leaves the weights that adapters adapt out of a state."""
    for name in policy.frozen:
        state.pop(f"{prefix}{name}", None)


def keep_frozen(policy: LanguagePolicy, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Adds them to a state that is loaded, after a check that they are the same.

    Raises:
        UserError: if the folder has changed since the state was saved.
    """
    saved, own_digest = state.get(f"{prefix}folder_digest"), policy.folder_digest
    if saved is not None and own_digest is not None and not torch.equal(saved.cpu(), own_digest.cpu()):
        raise UserError(
            "model.path: weights or tokenizer of the folder have changed since the run began. Restore it."
        )
    if policy.adapter_scale is not None:
        state.setdefault(f"{prefix}adapter_scale", policy.adapter_scale)
    # After a warm start a state has these, too.
    policy.frozen = [name for name in policy.frozen if f"{prefix}{name}" not in state]
    own = dict(policy.named_parameters())
    state.update({f"{prefix}{name}": own[name].detach() for name in policy.frozen})
