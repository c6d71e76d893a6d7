"""Metrics for the log: episode statistics, mean losses, exploration."""

from collections.abc import Sequence
from typing import Any

import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.data import ReplayBuffer

from hydrl import metric_names as names
from hydrl.envs.evaluation import known_means
from hydrl.experience.episodes import EPISODE, RETURN_TO_GO, complete_episodes
from hydrl.specs import INFO, LAG
from hydrl.training.learner import Learner

RETURN = ("episode_reward", ("next", "episode_reward"))  # of an episode so far, before a step and after it
EXPLORATION = {"eps": names.EPSILON, "sigma": names.SIGMA}  # what TorchRL's exploration modules anneal


class Metrics:
    """Collects metrics since the last log row.

    Args:
        learners: of the run, its own last; extra ones have metrics under their names.
        exploration: TorchRL's module, or ``None``.
        data: the dataset of an offline run, whose episodes' statistics stand in each row.

    Attributes:
        followed: the names of values followed in ``info``, once a batch has come.
    """

    def __init__(
        self, learners: Sequence[Learner], exploration: Any, data: ReplayBuffer | None = None
    ) -> None:
        self.learners, self.exploration = learners, exploration
        self.data = episode_metrics([episodes_of(data.storage[:])]) if data is not None else None
        self.followed: list[str] = []
        self.clear()

    def clear(self) -> None:
        """Begins a new row."""
        self.episodes: list[TensorDictBase] = []
        self.losses: list[TensorDictBase] = []
        self.extra_losses: dict[str, list[TensorDictBase]] = {}
        self.steps: list[TensorDictBase] = []
        self.values: dict[str, float] = {}

    def learned(
        self, batch: TensorDictBase, losses: Sequence[TensorDictBase], *before: Sequence[TensorDictBase]
    ) -> None:
        """Adds a batch, the losses of its updates, and those of extra learners."""
        self.episodes.append(ended_episodes(batch))
        self.followed = [str(name) for name, _ in self.episodes[-1].get(INFO, TensorDict()).items()]
        self.steps.append(step_metrics(batch))
        self.values |= value_metrics(batch)
        if losses:
            self.losses.append(torch.stack(list(losses)).mean(0))
        for learner, losses_of_learner in zip(self.learners[:-1], before, strict=True):
            if losses_of_learner:
                self.extra_losses.setdefault(learner.name, []).append(
                    torch.stack(list(losses_of_learner)).mean(0)
                )

    def row(self) -> dict[str, float]:
        """The ``train/`` and ``loss/`` entries since the last row; then begins a new one."""
        row = {
            **{name: value for learner in self.extra_losses for name, value in self.mean_losses(learner)},
            **loss_metrics(self.losses),  # first: a number of hydrl's own keeps its name
            **(episode_metrics(self.episodes) if self.data is None else self.data),
            **info_metrics(self.episodes),
            **over_steps(self.steps),
            **self.values,
            names.LEARNING_RATE: self.learners[-1].update.learning_rate,
            **exploration_metrics(self.exploration),
        }
        self.clear()
        return row

    def mean_losses(self, name: str) -> list[tuple[str, float]]:
        """``loss/NAME/`` entries of an extra learner."""
        metrics = loss_metrics(self.extra_losses[name])
        return [(f"loss/{name}/{key.partition('/')[2]}", value) for key, value in metrics.items()]

    def state_dict(self) -> dict[str, Any]:
        """What was collected, as plain data."""
        return {
            "episodes": [(len(episodes), episodes.to_dict()) for episodes in self.episodes],
            "losses": [losses.to_dict() for losses in self.losses],
            "before": {
                learner: [losses.to_dict() for losses in rows] for learner, rows in self.extra_losses.items()
            },
            "steps": [steps.to_dict() for steps in self.steps],
            "values": dict(self.values),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""
        self.episodes = [TensorDict(episodes, batch_size=[count]) for count, episodes in state["episodes"]]
        self.losses = [TensorDict(losses) for losses in state["losses"]]
        before = state.get("before", {})  # in those of older runs neither this is nor the next
        self.extra_losses = {
            learner: [TensorDict(losses) for losses in rows] for learner, rows in before.items()
        }
        self.steps = [TensorDict(steps) for steps in state.get("steps", [])]
        self.values = dict(state["values"])


def ended_episodes(batch: TensorDictBase) -> TensorDictBase:
    """The last steps of episodes that ended in a batch of any shape: return, length, info; ``[episodes]``.

    Episodes that ``random_truncation`` cut are left out.
    """
    done = batch["next", "done"].squeeze(-1)
    if (cut_short := batch.get(("next", "cut_short"), None)) is not None:
        done = done & ~cut_short.squeeze(-1)
    return batch["next"].select("episode_reward", "step_count", INFO, strict=False)[done]


def episodes_of(rows: TensorDictBase) -> TensorDictBase:
    """As :func:`ended_episodes` of all rows of a dataset, ``[rows]``, each episode once.

    n-step rows reach an end more than once. A dataset without next observations lacks the last row of
    truncated episodes, which return and length count.
    """
    known = [("next", name) for name in ("episode_reward", "step_count", "done", "cut_short")]
    steps_read = rows.select(EPISODE, RETURN_TO_GO, "episode_reward", *known, strict=False)
    if steps_read.get(EPISODE, None) is None:  # as of older runs
        return ended_episodes(steps_read)
    steps_read = complete_episodes(steps_read)
    last = steps_read[steps_read[EPISODE].unique_consecutive(return_counts=True)[1].cumsum(0) - 1]
    episodes = TensorDict({"episode_reward": last[RETURN_TO_GO] + last["episode_reward"]}, last.shape)
    if (steps := last.get(("next", "step_count"), None)) is not None:
        episodes["step_count"] = steps + ~last["next", "done"]
    return episodes


def episode_metrics(episodes: Sequence[TensorDictBase]) -> dict[str, float]:
    """``train/`` entries over :func:`ended_episodes` of some batches; empty if none ended.

    Returns are raw, because ``RewardSum`` comes before every reward transform.
    """
    ended = TensorDict.cat([batch.exclude(INFO) for batch in episodes]) if episodes else None
    if ended is None or not len(ended):
        return {}
    metrics = {
        names.TRAIN_RETURN: ended["episode_reward"].double().mean().item(),
        names.TRAIN_EPISODES: len(ended),
    }
    if (step_count := ended.get("step_count", None)) is not None:
        metrics[names.TRAIN_LENGTH] = step_count.double().mean().item()
    return metrics


def info_metrics(episodes: Sequence[TensorDictBase]) -> dict[str, float]:
    """``train/`` entries of values followed in ``info``, over :func:`ended_episodes` of some batches.

    Each is the mean over the episodes where it is known, or missing if there are none.
    """
    values_by_name: dict[str, list[torch.Tensor]] = {}
    for batch in episodes:
        for name, values in batch.get(INFO, TensorDict()).items():
            values_by_name.setdefault(str(name), []).append(values.reshape(-1))
    return known_means({f"train/{name}": torch.cat(values) for name, values in values_by_name.items()})


def step_metrics(batch: TensorDictBase) -> TensorDictBase:
    """Metrics of a batch of any shape that need no ended episode.

    Returns:
        ``reward``, the mean before reward transforms; ``cut_short``, how many episodes ``random_truncation``
        cut; ``policy_lag``, how many newer policies there were; each if known.
    """
    known, (before, after) = TensorDict(), (batch.get(key, None) for key in RETURN)
    if before is not None and after is not None:
        known["reward"] = (after - before).double().mean()
    if (cut_short := batch.get(("next", "cut_short"), None)) is not None:
        known["cut_short"] = cut_short.sum()
    if (lag := batch.get(LAG, None)) is not None:
        known["policy_lag"] = lag.double().mean()
    return known


def over_steps(batches: Sequence[TensorDictBase]) -> dict[str, float]:
    """Entries over :func:`step_metrics` of some batches of equal size."""
    metrics = {}
    if rewards := [batch["reward"] for batch in batches if "reward" in batch]:
        metrics[names.TRAIN_REWARD] = torch.stack(rewards).mean().item()
    if cut_short := [batch["cut_short"] for batch in batches if "cut_short" in batch]:
        metrics[names.CUT_SHORT] = int(torch.stack(cut_short).sum())
    if lags := [batch["policy_lag"] for batch in batches if "policy_lag" in batch]:
        metrics[names.POLICY_LAG] = torch.stack(lags).mean().item()
    return metrics


def value_metrics(batch: TensorDictBase) -> dict[str, float]:
    """Metrics of a critic's values or of Q-values, if the batch has either.

    ``train/explained_variance`` is the share of the value targets' variance that the critic explained before
    it learned from the batch (where advantages are computed once): 1 is all, 0 no better than their mean.
    ``train/q_value`` is the mean value of the greedy action, taken or not.
    """
    for key in batch.keys(True, True):
        if "chosen_action_value" in (key, key[-1]):  # of several agents the mean over them
            return {names.Q_VALUE: batch[key].mean().item()}
    target, value = batch.get("value_target", None), batch.get("state_value", None)
    if target is None or value is None or target.numel() < 2:  # one number does not vary
        return {}
    return {names.EXPLAINED_VARIANCE: (1 - (target - value).var() / target.var()).item()}


def exploration_metrics(exploration: Any) -> dict[str, float]:
    """``train/epsilon`` or ``train/sigma``, the present amount of exploration, if any."""
    values = {name: getattr(exploration, key, None) for key, name in EXPLORATION.items()}
    return {name: value.item() for name, value in values.items() if value is not None}


def loss_metrics(losses: Sequence[TensorDictBase]) -> dict[str, float]:
    """``loss/`` entries: each scalar output of the loss, averaged over ``losses``.

    An output that shares its name with a term, as PPO's ``entropy`` with ``loss_entropy``, is a ``train/``
    entry.
    """
    if not losses:
        return {}
    mean = dict(TensorDict.stack(list(losses)).mean(0).items())
    prefixes = {key: "train" if f"loss_{key}" in mean else "loss" for key in mean}
    return {
        f"{prefixes[key]}/{key.removeprefix('loss_')}": value.item()
        for key, value in mean.items()
        if value.numel() == 1
    }
