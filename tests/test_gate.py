"""The learning gate: fresh seeds learn as well as the reference, and planted defects are found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hydrl.errors import DivergedError
from hydrl.experience.minibatches import Epochs, Replay
from hydrl.losses.sac_shared_encoder import SACLoss
from hydrl.training.evaluator import PolicyEvaluator
from scripts.benchmark.gate import TASKS, Reference, measure_run, read_references

FRESH = 300  # the first seed of the gate; the reference has others


def reference_of(scores: np.ndarray) -> Reference:
    return Reference(scores.tolist(), 0.0)


def test_losses_are_found_and_unchanged_programs_are_not_blamed_as_often_as_promised():
    """With normal scores of a known spread, redrawn 4,000 times."""
    generator = np.random.default_rng(0)
    spread, alarms, power = 0.12, 0.05, 0.9
    standard = generator.standard_normal(20)
    standard = (standard - standard.mean()) / standard.std(ddof=1)
    seeds = reference_of(1 + spread * standard).seeds_needed(0.2, power, alarms)
    blamed = {0.0: 0, 0.2: 0}
    for _ in range(4_000):
        reference = reference_of(generator.normal(1, spread, 20))
        lowest = reference.lowest_mean(seeds, alarms)
        for loss in blamed:
            blamed[loss] += generator.normal(1 - loss, spread, seeds).mean() < lowest
    assert blamed[0.0] / 4_000 == pytest.approx(alarms, abs=0.012)
    assert power - 0.03 < blamed[0.2] / 4_000 < 0.99


def test_scores_that_spread_more_need_more_seeds():
    scores = np.linspace(-1, 1, 20)
    needed = [reference_of(1 + spread * scores).seeds_needed() for spread in (0.16, 0.19, 0.22)]
    assert needed[0] < needed[1] < needed[2]
    with pytest.raises(ValueError, match="spread too widely"):
        reference_of(1 + scores).seeds_needed()


def test_every_algorithm_of_the_gate_has_its_reference_and_few_seeds_suffice():
    references = read_references()
    assert references.keys() == TASKS.keys() == DEFECTS.keys()
    for algo, reference in references.items():
        assert len(reference.scores) == len(TASKS[algo].seeds)
        assert reference.power(reference.seeds_needed()) >= 0.95
        assert reference.seeds_needed() <= 20


def fresh_mean(algo: str, folder: Path) -> tuple[float, float]:
    """Mean score of fresh seeds, and the lowest that passes."""
    reference = read_references()[algo]
    seeds = reference.seeds_needed()
    returns = [measure_run(TASKS[algo], seed, folder / str(seed)) for seed in range(FRESH, FRESH + seeds)]
    lowest = reference.lowest_mean(seeds)
    mean = float(np.mean(returns)) - reference.random_return
    print(f"{algo}: {mean:.3f} over {seeds} seeds, reference {reference.mean:.3f}, lowest {lowest:.3f}")
    return mean, lowest


@pytest.mark.slow
@pytest.mark.parametrize("algo", TASKS)
def test_it_learns_as_well_as_before(algo, tmp_path):
    mean, lowest = fresh_mean(algo, tmp_path)
    assert mean >= lowest


def normalizer_not_shared(patch: pytest.MonkeyPatch) -> None:
    """Evaluations read observations as they are."""
    init: Callable[..., None] = PolicyEvaluator.__init__

    def unshared(self: PolicyEvaluator, make_env: Any, actor: Any, normaliser: Any, *rest: Any, **more: Any):
        plain = {
            position: {"loc": torch.zeros_like(state["loc"]), "scale": torch.ones_like(state["scale"])}
            for position, state in normaliser().items()
        }
        assert plain
        init(self, make_env, actor, lambda: plain, *rest, **more)

    patch.setattr(PolicyEvaluator, "__init__", unshared)


def entropy_sign(patch: pytest.MonkeyPatch) -> None:
    """The policy is rewarded for certainty."""
    patch.setattr(SACLoss, "_alpha", property(lambda self: -self.log_alpha.detach().exp()))


def next_observation_is_the_current(patch: pytest.MonkeyPatch) -> None:
    """Targets are the value of the observation that was acted in."""
    sample: Callable[..., Any] = Replay.sample

    def sample_rows(self: Replay, count: int) -> Any:
        rows = sample(self, count)
        return rows.set(("next", "observation"), rows["observation"])

    patch.setattr(Replay, "sample", sample_rows)


def agents_mixed_up(patch: pytest.MonkeyPatch) -> None:
    """The log-probabilities of the policy that acted are those of another agent."""
    split: Callable[..., Any] = Epochs.__call__

    def split_batch(self: Epochs, batch: Any) -> Any:
        key = self.loss.tensor_keys.sample_log_prob
        return split(self, batch.set(key, batch[key].roll(1, -1)))

    patch.setattr(Epochs, "__call__", split_batch)


DEFECTS = {
    "ppo": normalizer_not_shared,
    "sac": entropy_sign,
    "td3": next_observation_is_the_current,
    "mappo": agents_mixed_up,
}


@pytest.mark.slow
@pytest.mark.parametrize("algo", TASKS)
def test_a_planted_defect_is_found(algo, tmp_path):
    """By the mean of its scores, or because a run diverges, as SAC does with the wrong sign."""
    with pytest.MonkeyPatch.context() as patch:
        DEFECTS[algo](patch)
        try:
            mean, lowest = fresh_mean(algo, tmp_path)
        except DivergedError:
            mean, lowest = -np.inf, 0
    assert mean < lowest
