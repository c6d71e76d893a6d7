"""A learner: one loss with its optimizer, and the minibatches it learns from."""

from collections.abc import Callable, Mapping
from functools import partial
from inspect import signature
from typing import Any

from tensordict import TensorDictBase
from torch import nn
from torch.optim import Optimizer
from torchrl.data import ReplayBuffer, TensorSpec
from torchrl.objectives import LossModule
from torchrl.objectives.utils import TargetNetUpdater

from hydrl.losses.build import make_loss, parameter_groups
from hydrl.training.timers import timed
from hydrl.training.update import Update


class Learner:
    """Learns from each batch; a run has one, and where it says so others that learn before it.

    Args:
        name: what its numbers are logged under, beside those of the run's own loss.
        loss: what is learned.
        target: moves the loss's target networks; ``None`` where it has none.
        optimizer: over the loss's parameters.
        update: a step on a minibatch.
        minibatches: what a batch leads to, see :mod:`hydrl.experience.minibatches`.
        writes: called with the batch when all is learned from it, as to write the reward that the next
            learner reads; ``None`` writes nothing.
    """

    def __init__(
        self,
        name: str,
        loss: LossModule,
        target: TargetNetUpdater | None,
        optimizer: Optimizer,
        update: Update,
        minibatches: Any,
        writes: Callable[[TensorDictBase], None] | None = None,
    ) -> None:
        self.name = name
        self.parts = {
            "loss": loss,
            "target": target,
            "optimizer": optimizer,
            "update": update,
            "minibatches": minibatches,
        }
        self.optimizer, self.update, self.minibatches, self.writes = optimizer, update, minibatches, writes

    def learn(self, batch: TensorDictBase) -> list[TensorDictBase]:
        """All updates that a batch, ``[time]`` or ``[envs, time]``, leads to; the losses of each."""
        losses = self.update.over(timed("time/sample", self.minibatches(batch)))
        if self.writes is not None:
            self.writes(batch)
        return losses

    def state_dict(self) -> dict[str, Any]:
        """That of all its parts."""
        return {name: each.state_dict() for name, each in self.parts.items() if each is not None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""
        for name, own in state.items():
            self.parts[name].load_state_dict(own)


def make_learners(
    given: Mapping[str, Any],
    networks: Mapping[str, nn.Module],
    action_spec: TensorSpec,
    buffer: ReplayBuffer | None,
    data: ReplayBuffer | None,
) -> list[Learner]:
    """Builds losses over the networks, and what learns each.

    Args:
        given: by the names of learners, in order: ``build``, which gives builders of ``loss``, ``target``,
            ``optim``, ``minibatches`` and ``writes``; ``loss``, how it is trained (``networks``, ``keys``,
            ``value_estimator``, ``skip``, ``every``, ``param_groups``); ``options`` of the update.
        networks: by the names of their parts.
        action_spec: of one environment.
        buffer: what is collected; ``None`` where nothing is kept.
        data: what others collected, for minibatches that ask for it.
    """
    made = []
    for name, each in given.items():
        build, told = each.build, each.loss
        loss = make_loss(build("loss"), networks, action_spec, told.networks, told.keys, told.value_estimator)
        target = build("target")(loss)
        optimizer = build("optim")(parameter_groups(loss, told.param_groups))
        update = Update(loss, optimizer, target, told.skip, told.every, **each.options)
        cut = build("minibatches")
        writes = build("writes")(networks)
        minibatches = bind_accepted(cut, data=data)(buffer, loss)
        made.append(Learner(name, loss, target, optimizer, update, minibatches, writes))
    return made


def bind_accepted(make: Callable[..., Any], **offered: Any) -> Callable[..., Any]:
    """What makes a part, with those of the arguments ``offered`` that it takes."""
    return partial(
        make, **{name: each for name, each in offered.items() if name in signature(make).parameters}
    )
