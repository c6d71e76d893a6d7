"""Evaluation of a policy: one deterministic episode in each environment, and their statistics."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tensordict.nn import ProbabilisticTensorDictModule, TensorDictModuleBase
from torch import Tensor
from torchrl.envs import TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl import metric_names as names
from hydrl.specs import INFO


@dataclass(frozen=True)
class Evaluation:
    """The results of one evaluation.

    Attributes:
        returns: ``[episodes]``, undiscounted, before reward transforms.
        lengths: ``[episodes]``, steps.
        cut_episodes: episodes that were stopped at ``eval.max_steps``, and count as they are.
        info: values followed in ``info``, by name, ``[episodes]``; NaN if unknown.
        samples: rows for ``samples.jsonl``, of a language model's prompts and answers.
    """

    returns: Tensor
    lengths: Tensor
    cut_episodes: int = 0
    info: dict[str, Tensor] = field(default_factory=dict)
    samples: Sequence[Mapping[str, Any]] = ()

    @property
    def mean(self) -> float:
        """Mean return over the episodes."""
        return self.returns.mean().item()

    @property
    def std(self) -> float:
        """Standard deviation of the return over the episodes (population)."""
        return self.returns.std(unbiased=False).item()

    def with_values(self, values: Mapping[str, float]) -> "Evaluation":
        """The evaluation with values of its policy by name, such as its NashConv, which all episodes get."""
        more = {name: torch.full_like(self.returns, value) for name, value in values.items()}
        return replace(self, info=self.info | more) if more else self

    def metrics(self) -> dict[str, float]:
        """The ``eval/`` entries of a log row."""
        return {
            names.RETURN_MEAN: self.mean,
            names.RETURN_STD: self.std,
            names.RETURN_MIN: self.returns.min().item(),
            names.RETURN_MAX: self.returns.max().item(),
            names.LENGTH_MEAN: self.lengths.double().mean().item(),
            names.EVAL_EPISODES: self.returns.numel(),
            names.CUT_EPISODES: self.cut_episodes,
            **self.info_means(),
        }

    def info_means(self) -> dict[str, float]:
        """``eval/NAME``: means of the values followed in ``info``, over the episodes where they are known."""
        return known_means({f"eval/{name}": values for name, values in self.info.items()})


def join_evaluations(evaluations: Sequence[Evaluation]) -> Evaluation:
    """One evaluation of all episodes, in order."""
    if len(evaluations) == 1:
        return evaluations[0]
    info: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for part in evaluations for name in part.info):
        unknown = [torch.full(part.returns.shape, torch.nan) for part in evaluations]
        parts = zip(evaluations, unknown, strict=True)
        info[name] = torch.cat([part.info.get(name, nan) for part, nan in parts])
    return Evaluation(
        torch.cat([part.returns for part in evaluations]),
        torch.cat([part.lengths for part in evaluations]),
        sum(part.cut_episodes for part in evaluations),
        info,
        evaluations[0].samples,
    )


@torch.no_grad()
def play_episodes(
    env: TransformedEnv, actor: TensorDictModuleBase, *, max_steps: int, is_final: bool = False
) -> Evaluation:
    """Plays one deterministic episode in each environment, until the last has finished.

    Args:
        env: environments of an evaluation.
        actor: the policy.
        max_steps: steps after which an unfinished episode counts as it is.
        is_final: ignored; see :meth:`hydrl.envs.EnvFamily.evaluate`.
    """
    episodes = env.numel()
    returns, lengths = torch.zeros(episodes), torch.zeros(episodes, dtype=torch.int64)
    running = torch.ones(episodes, dtype=torch.bool)
    info: dict[str, Tensor] = {}
    with set_exploration_type(ExplorationType.DETERMINISTIC), without_log_probabilities(actor):
        tensordict = env.reset()
        for step in range(1, max_steps + 1):
            tensordict, next_tensordict = env.step_and_maybe_reset(actor(tensordict))
            next_step = tensordict["next"]
            returns = torch.where(running, next_step["episode_reward"].reshape(-1).cpu(), returns)
            lengths[running] = step
            if (info_entries := next_step.get(INFO, None)) is not None:
                values = {str(name): value.reshape(-1).cpu() for name, value in info_entries.items()}
                info = {
                    name: torch.where(running, value, info.get(name, value)) for name, value in values.items()
                }
            running &= ~next_step["done"].reshape(-1).cpu()
            if not running.any():
                break
            tensordict = next_tensordict
    return Evaluation(returns, lengths, int(running.sum()), info)


@contextmanager
def without_log_probabilities(actor: TensorDictModuleBase) -> Iterator[None]:
    """Context manager in which ``actor`` computes no log-probabilities, which saves 1/7 of a step."""
    sampling_modules = [
        module for module in actor.modules() if isinstance(module, ProbabilisticTensorDictModule)
    ]
    flags = [module.return_log_prob for module in sampling_modules]
    try:
        for module in sampling_modules:
            module.return_log_prob = False
        yield
    finally:
        for module, flag in zip(sampling_modules, flags, strict=True):
            module.return_log_prob = flag


def known_means(values: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """The mean of each value over the episodes where it is known."""
    known_values = {name: tensor[~tensor.isnan()].double() for name, tensor in values.items()}
    return {name: tensor.mean().item() for name, tensor in known_values.items() if len(tensor)}
