"""Builds losses: TorchRL's over the run's networks, with their keys, value estimator and parameter groups."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import InteractionType, ProbabilisticTensorDictSequential
from torch import nn
from torchrl import objectives
from torchrl.data import Composite, TensorSpec
from torchrl.objectives import LossModule
from torchrl.objectives.value import TD0Estimator, VTrace

from hydrl.errors import UserError
from hydrl.losses.sac_shared_encoder import split_shared_encoder
from hydrl.specs import ALIVE, MASK, RNN_STATE_KEYS, group_key, group_network, nested_spec

# What a loss reads of a network, by the argument that it is handed as: names among its ``tensor_keys``.
READ_KEYS = {
    "critic_network": ("value",),
    "local_value_network": ("action_value",),
    "mixer_network": ("global_value",),
    "qvalue_network": ("state_action_value", "action_value"),
    "value_network": ("action_value", "value"),
}
KL_KEYS = ("kl_approx", "kl")
IMAGE_CHUNKS = 8  # in which a batch of images is evaluated; whole, it needs new memory each time
CHUNK_KEYWORDS = {"num_chunks", "num_chunk", "value_chunk_size"}  # keywords that say otherwise
PROBABILISTIC_ACTOR = "torchrl.modules.ProbabilisticActor with return_log_prob=True"


class DistributionalDQNLoss(objectives.DistributionalDQNLoss):
    """TorchRL's C51 loss (Bellemare et al. 2017), with its discount in ``make_value_estimator``.

    It is double DQN if it has a target network. Its priorities are its cross-entropies.
    """

    out_keys: ClassVar = ["loss"]

    def __init__(self, value_network: nn.Module, *, delay_value: bool = True) -> None:
        if not hasattr(value_network, "support"):
            raise UserError(
                "actor: it has no support of returns. Use a torchrl.modules.DistributionalQValueActor."
            )
        super().__init__(value_network, gamma=0.99, delay_value=delay_value)

    def make_value_estimator(self, value_type: Any = None, *, gamma: float = 0.99, **others: Any) -> None:
        """TD(0) with a discount, its only option.

        Raises:
            UserError: for other options.
        """
        if ignored := sorted(others.keys() - {"device"}):
            raise UserError(f"loss.value_estimator.{ignored[0]}: C51 takes gamma alone. Leave it out.")
        super().make_value_estimator(TD0Estimator, value_network=None, gamma=gamma)
        self.gamma.fill_(gamma)

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Over a minibatch ``[size]``; its steps to the next observation get the shape of its rewards."""
        key = self.tensor_keys.steps_to_next_obs
        if (steps := minibatch.get(key, None)) is not None:
            minibatch.set(key, steps.reshape(-1, 1))
        return super().forward(minibatch)


class DiscreteSACLoss(objectives.DiscreteSACLoss):
    """TorchRL's discrete SAC loss (Christodoulou 2019), with a target entropy that follows the action mask.

    The target of all actions cannot be reached if some are invalid, and the temperature would grow for ever.
    """

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Over a minibatch; with an ``action_mask`` the temperature's loss uses the valid actions' target."""
        losses = super().forward(tensordict)
        if (mask := tensordict.get(MASK, None)) is None:
            return losses
        share = 1 - mask.sum(-1).log() / math.log(mask.shape[-1])
        lacking = self._reduce_loss(
            self.log_alpha * self.target_entropy * share,
            tensordict=tensordict,
            weights=self._maybe_get_priority_weight(tensordict),
        )
        return losses.set("loss_alpha", losses["loss_alpha"] + lacking)


class GroupLosses(nn.Module):
    """Losses of several unlike groups of agents, whose terms are summed in one update.

    Args:
        of_groups: by the groups' names, which prefix their terms.
    """

    def __init__(self, of_groups: Mapping[str, LossModule]) -> None:
        super().__init__()
        self.of_groups = nn.ModuleDict(of_groups)
        self.out_keys = [group_term(group, key) for group, loss in of_groups.items() for key in loss.out_keys]
        for key in KL_KEYS:  # which target_kl looks at
            self.out_keys += [key] if all(key in loss.out_keys for loss in of_groups.values()) else []

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Over a minibatch; the divergence is the largest of all groups."""
        losses = {group: loss(minibatch) for group, loss in self.of_groups.items()}
        terms = {
            group_term(group, key): value
            for group, outputs in losses.items()
            for key, value in outputs.items()
        }
        for key in KL_KEYS:
            if key in self.out_keys:
                terms[key] = torch.stack([outputs[key] for outputs in losses.values()]).max()
        return TensorDict(terms)


def group_term(group: str, key: str) -> str:
    """The name of a group's term ``loss_objective``, or output ``entropy``, with the group's name."""
    return f"loss_{group}/{key[5:]}" if key.startswith("loss_") else f"{group}/{key}"


def make_loss(
    module: Callable[..., LossModule],
    parts: Mapping[str, nn.Module],
    action_spec: TensorSpec,
    networks: Mapping[str, str],
    keys: Mapping[str, str | Sequence[str]],
    value_estimator: Mapping[str, Any] | None,
) -> LossModule | GroupLosses:
    """Builds TorchRL's loss over the networks, whose parameters it shares.

    Args:
        module: builds the loss; it gets ``action_spec``, ``action_space`` and ``num_actions`` if it has such
            parameters. Over an RNN it works without vmap, which does not support recurrent networks.
        parts: the materialised networks by name.
        action_spec: of one environment.
        networks: which network goes into which argument of the loss.
        keys: for ``loss.set_keys``; a list is a nested key.
        value_estimator: keywords of ``loss.make_value_estimator``, among them the discount, and
            ``value_type`` to choose another estimator; ``None`` for a loss without one.

    Returns:
        TorchRL's loss; for several groups of agents one each, see :class:`GroupLosses`.

    Raises:
        UserError: for a network that lacks what the loss reads of it.
    """
    if isinstance(action_spec, Composite):
        make = partial(make_loss, module, networks=networks, value_estimator=value_estimator)
        return make_group_losses(make, parts, action_spec, networks, partial(group_loss_keys, module, keys))
    keys = {name: key if isinstance(key, str) else tuple(key) for name, key in keys.items()}
    known = {
        "action_spec": nested_spec(action_spec, keys.get("action", "action"))
    }  # an entropy is of each agent
    known |= {"action_space": action_spec, "num_actions": getattr(action_spec.space, "n", None)}
    parameters = inspect.signature(module).parameters
    remembers = any(
        key in RNN_STATE_KEYS for network in parts.values() for key in getattr(network, "in_keys", ())
    )
    known |= {"deactivate_vmap": True} if remembers else {}
    check_networks(getattr(module, "func", module), networks, parts, keys)
    check_shared(module, networks, parts)
    arguments, encoder = split_shared_encoder({argument: parts[part] for argument, part in networks.items()})
    loss = copy_value_norm(
        module(**arguments, **{name: value for name, value in known.items() if name in parameters})
    )
    if encoder is not None:
        loss.convert_to_functional(encoder, "encoder", create_target_params=True)
    if keys:
        loss.set_keys(**keys)
    if isinstance(action := keys.get("action"), tuple) and "advantage" in vars(loss.tensor_keys):
        loss.loss_mask_key = (action[0], ALIVE)  # where there is such an entry
    if value_estimator is not None:
        make_estimator(loss, value_estimator, parts, remembers=remembers)
    for made_when_asked in ("in_keys", "out_keys", "target_entropy"):
        getattr(loss, made_when_asked, None)  # within a compiled update, that would compile it twice
    return loss


def make_estimator(
    loss: LossModule, value_estimator: Mapping[str, Any], parts: Mapping[str, nn.Module], *, remembers: bool
) -> None:
    """Makes a loss's value estimator: without vmap over an RNN, in chunks over images.

    Raises:
        UserError: for an actor that does not write what it reads.
    """
    loss.make_value_estimator(**value_estimator)
    if remembers:
        loss.value_estimator.deactivate_vmap = True  # which not all take as a keyword
    elif (
        hasattr(loss.tensor_keys, "advantage")
        and has_convolutions(parts)
        and not CHUNK_KEYWORDS & value_estimator.keys()
    ):
        loss.value_estimator.num_chunks = IMAGE_CHUNKS
    reading = (*getattr(loss, "in_keys", ()), *getattr(loss.value_estimator, "in_keys", ()))
    log_prob = getattr(loss.tensor_keys, "sample_log_prob", None)
    # Of the action as it was acted; what is learned from without an advantage draws its own.
    if hasattr(loss.tensor_keys, "advantage") and log_prob in reading:
        require_written("actor", parts["actor"], type(loss), [log_prob], PROBABILISTIC_ACTOR)
    if isinstance(loss.value_estimator, VTrace):
        actor = loss.value_estimator.actor_network
        loss.value_estimator.actor_network = TakenActionActor(actor, loss.tensor_keys.action)


def has_convolutions(parts: Mapping[str, nn.Module]) -> bool:
    """Whether any of the networks has convolutions."""
    built = [part for part in parts.values() if part is not None]
    return any(isinstance(layer, nn.Conv2d) for part in built for layer in part.modules())


def make_group_losses(
    make: Callable[..., LossModule],
    parts: Mapping[str, nn.Module],
    action_spec: Composite,
    networks: Mapping[str, str],
    keys: Callable[[str], Mapping[str, Any]],
) -> GroupLosses:
    """A loss for each group of agents, over the group's networks and with its keys."""
    losses = {}
    for group, action in action_spec.keys(True, True):
        own = {part: group_network(parts[part], part, group) for part in networks.values()}
        losses[group] = make(own, action_spec[group, action], keys=keys(group))
    return GroupLosses(losses)


def group_loss_keys(
    module: Any, keys: Mapping[str, str | Sequence[str]], group: str
) -> dict[str, Sequence[str]]:
    """The keys of a group's loss; entries that it writes stand beside the group's own."""
    beside = vars(getattr(module, "func", module).default_keys())
    written = [name for name in ("value", "advantage", "value_target") if name in beside]
    nested_keys = {name: key if isinstance(key, str) else tuple(key) for name, key in keys.items()}
    group_keys = {name: (group, beside[name]) for name in written}
    return group_keys | {name: group_key(key, group) for name, key in nested_keys.items()}


def check_networks(
    loss: Any, networks: Mapping[str, str], parts: Mapping[str, nn.Module], keys: Mapping[str, Any]
) -> None:
    """Checks that networks write what the loss reads of them, as far as its keys say.

    Raises:
        UserError: naming what is missing.
    """
    names = vars(loss.default_keys()) | keys if hasattr(loss, "default_keys") else {}
    for argument, part in networks.items():
        read = [names[name] for name in READ_KEYS.get(argument, ()) if name in names]
        one_number = {"value", "local_value"} & names.keys()
        valuing = "QValueActor" if one_number else "DistributionalQValueActor"
        kind = valuing if part == "actor" else "ValueOperator"
        require_written(part, parts[part], loss, read, f"torchrl.modules.{kind}")
        asks = argument == "actor_network" and names.keys() & {"log_prob", "sample_log_prob"}
        if asks and not hasattr(parts[part], "get_dist"):
            require_written(part, parts[part], loss, ["a distribution"], PROBABILISTIC_ACTOR)


def check_shared(
    module: Callable[..., LossModule], networks: Mapping[str, str], parts: Mapping[str, nn.Module]
) -> None:
    """Refuses a loss with ``separate_losses`` over networks that share parameters.

    Raises:
        UserError: as TorchRL would silently detach these from the critic.
    """
    if not getattr(module, "keywords", {}).get("separate_losses"):
        return
    learned = [parameter for part in {*networks.values()} for parameter in parts[part].parameters()]
    if len(learned) > len({*learned}):
        raise UserError(
            "loss.module.separate_losses=true: the critic's gradient would not reach the encoder it shares "
            "with the actor. Write critic.encoder=own, or leave it out."
        )


def require_written(part: str, network: Any, loss: type, read: Sequence[Any], kind: str) -> None:
    """Refuses a network that does not write all it should; ``kind`` names one that does."""
    if lacking := [key for key in read if key not in network.out_keys]:
        writes, reads = (", ".join(map(str, listed)) for listed in (network.out_keys, lacking))
        raise UserError(f"{part}: it writes {writes}, but {loss.__name__} reads {reads}. Make it a {kind}.")


def copy_value_norm(loss: LossModule) -> LossModule:
    """Gives a loss its own copy of its value normalizer, on its networks' device."""
    if (norm := getattr(loss, "value_norm", None)) is not None:
        loss.value_norm = copy.deepcopy(norm).to(next(loss.parameters()).device)
    return loss


class TakenActionActor(nn.Module):
    """Actor for ``VTrace``, which gives the log-probability of the action that was taken.

    TorchRL's own draws a new action, and the importance weights are then of another action.
    """

    default_interaction_type, num_samples = InteractionType.RANDOM, None

    def __init__(self, actor: ProbabilisticTensorDictSequential, action: NestedKey) -> None:
        super().__init__()
        self.actor, self.action, self.in_keys = actor, action, [*actor.in_keys, action]

    def get_dist(self, batch: TensorDictBase) -> SimpleNamespace:
        """A distribution with one action, the one in the batch."""
        taken, dist = batch[self.action], self.actor.get_dist(batch)
        return SimpleNamespace(has_rsample=False, sample=lambda shape: taken, log_prob=dist.log_prob)


def parameter_groups(loss: LossModule, groups: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """The optimizer's parameters: all of the loss's, or groups with options of their own.

    Args:
        loss: its parameters' names begin with its networks' names, or are their own.
        groups: the optimizer's options by the beginning of names, as ``{"log_alpha": {"lr": 1e-4}}``.

    Raises:
        UserError: for a name that no parameter has, or that another group took.
    """
    if not groups:
        return list(loss.parameters())
    left = dict(loss.named_parameters())
    groups_found = []
    for name, options in groups.items():
        own = [left.pop(parameter) for parameter in list(left) if parameter.startswith(name)]
        if not own:
            heads = sorted({parameter.partition(".")[0].removesuffix("_params") for parameter in left})
            raise UserError(
                f"loss.param_groups.{name}: no parameter is left for it. Write {' or '.join(heads)}."
            )
        groups_found.append({"params": own, **options})
    return [*([{"params": list(left.values())}] if left else []), *groups_found]
