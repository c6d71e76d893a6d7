"""Learners: each a loss with its optimizer, which learn from each batch in order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import signature
from typing import Any

from tensordict import TensorDictBase
from torch import nn
from torch.optim import Optimizer
from torchrl.data import ReplayBuffer, TensorSpec
from torchrl.objectives import LossModule
from torchrl.objectives.utils import TargetNetUpdater

from hydrl import metric_names
from hydrl.losses.build import make_loss, parameter_groups
from hydrl.training.timers import Clock
from hydrl.training.update import Update, keep_norms


class Learner:
    """A loss with its optimizer, and the minibatches it learns from.

    A run has one learner for its own loss, and maybe extra learners before it, see :func:`learn`.

    Args:
        name: its metrics are ``loss/NAME/...``; empty for the run's own loss.
        loss: TorchRL's, or one like it.
        target: moves the loss's target networks; ``None`` where it has none.
        optimizer: over the loss's parameters.
        update: one step on a minibatch.
        minibatches: draws minibatches from a batch, see :mod:`hydrl.experience.minibatches`; ``None``: an
            extra learner that shares the minibatches of the run's own loss.
        writes: called with the batch before the next learner reads it, to write the reward that one learns
            from; after this learner's own updates, but before shared ones. ``None`` writes nothing.
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
        self.name, self.optimizer, self.update = name, optimizer, update
        self.minibatches, self.write_batch = minibatches, writes
        self.components = {
            "loss": loss,
            "target": target,
            "optimizer": optimizer,
            "update": update,
            "minibatches": minibatches,
        }

    def state_dict(self) -> dict[str, Any]:
        """The state of its components, by their names."""
        return {
            name: component.state_dict()
            for name, component in self.components.items()
            if component is not None
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state_dict`."""
        for name, own in state.items():
            self.components[name].load_state_dict(own)


def learn(learners: Sequence[Learner], batch: TensorDictBase, clock: Clock) -> list[list[TensorDictBase]]:
    """Updates all learners on a batch, ``[time]`` or ``[envs, time]``.

    Extra learners come first, in order, as GAIL's discriminator before PPO. One without minibatches of its
    own takes a step on each minibatch of the run's own loss, before that loss does.

    Args:
        learners: of a run; the last one is that of its own loss.
        batch: of the collector; what a learner writes, those after it read.
        clock: the run's.

    Returns:
        For each learner the losses of its updates.
    """
    *extras, own = learners
    losses: list[list[TensorDictBase]] = []
    for extra in extras:
        losses.append([] if extra.minibatches is None else update_on(extra, batch, clock))
        if extra.write_batch is not None:
            extra.write_batch(batch)
    sharing = [
        (extra, outputs) for extra, outputs in zip(extras, losses, strict=True) if extra.minibatches is None
    ]
    losses.append(update_on(own, batch, clock, sharing))
    if own.write_batch is not None:
        own.write_batch(batch)
    return losses


def update_on(
    learner: Learner,
    batch: TensorDictBase,
    clock: Clock,
    sharing: Sequence[tuple[Learner, list[TensorDictBase]]] = (),
) -> list[TensorDictBase]:
    """One learner's updates on a batch; learners that share its minibatches append the losses of theirs."""

    def minibatches() -> Iterator[TensorDictBase]:
        for minibatch in clock.timed(learner.minibatches(batch), metric_names.SAMPLING):
            with clock.timeit(metric_names.UPDATING):  # until the next minibatch is asked for
                for extra, outputs in sharing:
                    outputs += extra.update.update_all([minibatch.copy()])  # a loss may write to it
                yield minibatch

    return learner.update.update_all(minibatches())


def make_learners(
    learner_options: Mapping[str, Any],
    networks: Mapping[str, nn.Module],
    action_spec: TensorSpec,
    buffer: ReplayBuffer | None,
    data: ReplayBuffer | None,
) -> list[Learner]:
    """Builds the learners of a run, with a loss over the networks for each.

    Args:
        learner_options: by the learners' names, in order: ``build``, which gives builders of ``loss``,
            ``target``, ``optim``, ``minibatches`` and ``writes``; ``loss``, how it is trained (``networks``,
            ``keys``, ``value_estimator``, ``skip``, ``every``, ``param_groups``, ``unit_norm``); ``options``
            of the update.
        networks: by their names.
        action_spec: of one environment.
        buffer: the replay buffer; ``None`` without one.
        data: an offline dataset, for minibatches that take one.
    """
    learners = []
    for name, options in learner_options.items():
        build, loss_options = options.build, options.loss
        loss = make_loss(
            build("loss"),
            networks,
            action_spec,
            loss_options.networks,
            loss_options.keys,
            loss_options.value_estimator,
        )
        target = build("target")(loss)
        optimizer = build("optim")(parameter_groups(loss, loss_options.param_groups))
        keep_norms(optimizer, loss, loss_options.unit_norm)
        update = Update(loss, optimizer, target, loss_options.skip, loss_options.every, **options.options)
        writes = build("writes")(networks)
        minibatches = bind_accepted(build("minibatches"), data=data)(buffer, loss)
        learners.append(Learner(name, loss, target, optimizer, update, minibatches, writes))
    return learners


def bind_accepted(make: Callable[..., Any], **offered: Any) -> Callable[..., Any]:
    """A builder with those of the keyword arguments ``offered`` that it accepts."""
    return partial(
        make, **{name: argument for name, argument in offered.items() if name in signature(make).parameters}
    )
