"""Builds losses: TorchRL's over the run's networks, with their keys, value estimator and parameter groups."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
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

# What a loss reads from a network, by the loss's argument: names of its ``tensor_keys``.
READ_KEYS = {
    "critic_network": ("value",),
    "local_value_network": ("action_value",),
    "mixer_network": ("global_value",),
    "qvalue_network": ("state_action_value", "action_value"),
    "value_network": ("action_value", "value"),
}
KL_KEYS = ("kl_approx", "kl")
IMAGE_CHUNKS = 8  # chunks of a batch of images for the estimator; a whole batch needs new memory each time
CHUNK_KEYWORDS = {"num_chunks", "num_chunk", "value_chunk_size"}  # keywords that override it
PROBABILISTIC_ACTOR = "torchrl.modules.ProbabilisticActor with return_log_prob=True"


class DistributionalDQNLoss(objectives.DistributionalDQNLoss):
    """TorchRL's C51 loss (Bellemare et al. 2017), with its discount in ``make_value_estimator``.

    With a target network it is double DQN. Cross-entropies are the priorities.
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
        """Losses of a minibatch ``[size]``; reshapes ``steps_to_next_obs`` as rewards."""
        key = self.tensor_keys.steps_to_next_obs
        if (steps := minibatch.get(key, None)) is not None:
            minibatch.set(key, steps.reshape(-1, 1))
        return super().forward(minibatch)


class DiscreteSACLoss(objectives.DiscreteSACLoss):
    """TorchRL's discrete SAC loss (Christodoulou 2019), with a target entropy that follows the action mask.

    The target for all actions cannot be reached if some are invalid: the temperature would grow for ever.
    """

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Losses of a minibatch; with an ``action_mask`` the target entropy is that of valid actions."""
        losses = super().forward(tensordict)
        if (mask := tensordict.get(MASK, None)) is None:
            return losses
        entropy_share = 1 - mask.sum(-1).log() / math.log(mask.shape[-1])
        correction = self._reduce_loss(
            self.log_alpha * self.target_entropy * entropy_share,
            tensordict=tensordict,
            weights=self._maybe_get_priority_weight(tensordict),
        )
        return losses.set("loss_alpha", losses["loss_alpha"] + correction)


class GroupLosses(nn.Module):
    """Module of one loss for each group of agents, whose terms are summed in one update.

    Args:
        of_groups: losses by group; the group's name becomes part of its terms' names.
    """

    def __init__(self, of_groups: Mapping[str, LossModule]) -> None:
        super().__init__()
        self.of_groups = nn.ModuleDict(of_groups)
        self.out_keys = [group_term(group, key) for group, loss in of_groups.items() for key in loss.out_keys]
        for key in KL_KEYS:  # read by target_kl
            self.out_keys += [key] if all(key in loss.out_keys for loss in of_groups.values()) else []

    def forward(self, minibatch: TensorDictBase) -> TensorDictBase:
        """Losses of a minibatch; the divergence is the largest of all groups."""
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
    modules: Mapping[str, nn.Module],
    action_spec: TensorSpec,
    networks: Mapping[str, str],
    keys: Mapping[str, str | Sequence[str]],
    value_estimator: Mapping[str, Any] | None,
) -> LossModule | GroupLosses:
    """Builds TorchRL's loss over the networks, whose parameters it shares.

    Args:
        module: builds the loss; it gets ``action_spec``, ``action_space`` and ``num_actions`` if it has such
            parameters. Over an RNN it works without vmap, which does not support recurrent networks.
        modules: the materialised networks by name.
        action_spec: of one environment.
        networks: the network by each argument of the loss.
        keys: for ``loss.set_keys``; a list is a nested key.
        value_estimator: keywords of ``loss.make_value_estimator``, among them the discount, and
            ``value_type`` to choose another estimator; ``None`` for a loss without one.

    Returns:
        TorchRL's loss; for several groups of agents one each, see :class:`GroupLosses`.

    Raises:
        UserError: for a network that does not write what the loss reads.
    """
    if isinstance(action_spec, Composite):
        make = partial(make_loss, module, networks=networks, value_estimator=value_estimator)
        return make_group_losses(make, modules, action_spec, networks, partial(group_loss_keys, module, keys))
    keys = {name: key if isinstance(key, str) else tuple(key) for name, key in keys.items()}
    # The target entropy is that of each agent.
    loss_kwargs = {"action_spec": nested_spec(action_spec, keys.get("action", "action"))}
    loss_kwargs |= {"action_space": action_spec, "num_actions": getattr(action_spec.space, "n", None)}
    is_recurrent = any(
        key in RNN_STATE_KEYS for network in modules.values() for key in getattr(network, "in_keys", ())
    )
    loss_kwargs |= {"deactivate_vmap": True} if is_recurrent else {}
    check_networks(getattr(module, "func", module), networks, modules, keys)
    check_shared(module, networks, modules)
    arguments = {argument: modules[network] for argument, network in networks.items()}
    loss = build_module(module, arguments, loss_kwargs)
    if keys:
        loss.set_keys(**keys)
    if isinstance(action := keys.get("action"), tuple) and "advantage" in vars(loss.tensor_keys):
        loss.loss_mask_key = (action[0], ALIVE)  # where there is such an entry
    if value_estimator is not None:
        make_estimator(loss, value_estimator, modules, is_recurrent=is_recurrent)
    for lazy_attribute in ("in_keys", "out_keys", "target_entropy"):
        getattr(loss, lazy_attribute, None)  # within a compiled update, that would compile it twice
    return loss


def build_module(
    module: Callable[..., LossModule], arguments: Mapping[str, nn.Module], loss_kwargs: Mapping[str, Any]
) -> LossModule:
    """TorchRL's loss over networks, by those keywords that it accepts, with its own value normalizer."""
    parameters = inspect.signature(module).parameters
    networks, encoder = split_shared_encoder(arguments)
    loss = module(**networks, **{name: value for name, value in loss_kwargs.items() if name in parameters})
    redraw_copies(loss, networks)
    if (norm := getattr(loss, "value_norm", None)) is not None:
        loss.value_norm = copy.deepcopy(norm).to(next(loss.parameters()).device)
    if encoder is not None:
        loss.convert_to_functional(encoder, "encoder", create_target_params=True)
    return loss


def redraw_copies(loss: LossModule, networks: Mapping[str, nn.Module]) -> None:
    """Draws the weights of critics by the distribution of the network that they are copies of.

    TorchRL draws them uniformly between the smallest and largest weight of each layer; a network with
    another distribution has ``redraw``.
    """
    for argument, network in networks.items():
        params = getattr(loss, f"{argument}_params", None)
        if params is None or not params.batch_dims or (redraw := getattr(network, "redraw", None)) is None:
            continue
        for index in range(params.batch_size[0]):
            weights = TensorDict.from_module(redraw(copy.deepcopy(network)) if index else network)
            for key, weight in weights.items(True, True):
                params[key].data[index].copy_(weight.data)
        getattr(loss, f"target_{argument}_params").data.copy_(params.data)


def make_estimator(
    loss: LossModule,
    value_estimator: Mapping[str, Any],
    modules: Mapping[str, nn.Module],
    *,
    is_recurrent: bool,
) -> None:
    """Makes a loss's value estimator: without vmap for an RNN, in chunks for images.

    Raises:
        UserError: for an actor that does not write what the loss reads.
    """
    loss.make_value_estimator(**value_estimator)
    layers = (layer for network in modules.values() if network is not None for layer in network.modules())
    if is_recurrent:
        loss.value_estimator.deactivate_vmap = True  # not a keyword of all estimators
    elif (
        hasattr(loss.tensor_keys, "advantage")
        and any(isinstance(layer, nn.Conv2d) for layer in layers)
        and not CHUNK_KEYWORDS & value_estimator.keys()
    ):
        loss.value_estimator.num_chunks = IMAGE_CHUNKS
    read_keys = (*getattr(loss, "in_keys", ()), *getattr(loss.value_estimator, "in_keys", ()))
    log_prob = getattr(loss.tensor_keys, "sample_log_prob", None)
    # On-policy losses read the stored action's log-probability; others sample actions themselves.
    if hasattr(loss.tensor_keys, "advantage") and log_prob in read_keys:
        require_written("actor", modules["actor"], type(loss), [log_prob], PROBABILISTIC_ACTOR)
    if isinstance(loss.value_estimator, VTrace):
        actor = loss.value_estimator.actor_network
        loss.value_estimator.actor_network = TakenActionActor(actor, loss.tensor_keys.action)


def make_group_losses(
    make: Callable[..., LossModule],
    modules: Mapping[str, nn.Module],
    action_spec: Composite,
    networks: Mapping[str, str],
    keys: Callable[[str], Mapping[str, Any]],
) -> GroupLosses:
    """A loss for each group of agents, over the group's networks and with its keys."""
    losses = {}
    for group, action in action_spec.keys(True, True):
        group_modules = {name: group_network(modules[name], name, group) for name in networks.values()}
        losses[group] = make(group_modules, action_spec[group, action], keys=keys(group))
    return GroupLosses(losses)


def group_loss_keys(
    module: Any, keys: Mapping[str, str | Sequence[str]], group: str
) -> dict[str, Sequence[str]]:
    """The keys of a group's loss; the entries that it writes are in the group."""
    default_keys = vars(getattr(module, "func", module).default_keys())
    written_names = [name for name in ("value", "advantage", "value_target") if name in default_keys]
    nested_keys = {name: key if isinstance(key, str) else tuple(key) for name, key in keys.items()}
    group_keys = {name: (group, default_keys[name]) for name in written_names}
    return group_keys | {name: group_key(key, group) for name, key in nested_keys.items()}


def check_networks(
    loss: Any, networks: Mapping[str, str], modules: Mapping[str, nn.Module], keys: Mapping[str, Any]
) -> None:
    """Checks that networks write what the loss reads.

    Raises:
        UserError: naming what is missing.
    """
    names = vars(loss.default_keys()) | keys if hasattr(loss, "default_keys") else {}
    for argument, network in networks.items():
        read_keys = [names[name] for name in READ_KEYS.get(argument, ()) if name in names]
        reads_state_value = {"value", "local_value"} & names.keys()
        value_class = "QValueActor" if reads_state_value else "DistributionalQValueActor"
        expected_class = value_class if network == "actor" else "ValueOperator"
        require_written(network, modules[network], loss, read_keys, f"torchrl.modules.{expected_class}")
        needs_distribution = argument == "actor_network" and names.keys() & {"log_prob", "sample_log_prob"}
        if needs_distribution and not hasattr(modules[network], "get_dist"):
            require_written(network, modules[network], loss, ["a distribution"], PROBABILISTIC_ACTOR)


def check_shared(
    module: Callable[..., LossModule], networks: Mapping[str, str], modules: Mapping[str, nn.Module]
) -> None:
    """Refuses a loss with ``separate_losses`` over networks that share parameters.

    Raises:
        UserError: as TorchRL would silently detach these from the critic.
    """
    if not getattr(module, "keywords", {}).get("separate_losses"):
        return
    parameters = [parameter for name in {*networks.values()} for parameter in modules[name].parameters()]
    if len(parameters) > len({*parameters}):
        raise UserError(
            "loss.module.separate_losses=true: the critic's gradient would not reach the encoder it shares "
            "with the actor. Write critic.encoder=own, or leave it out."
        )


def require_written(
    name: str, network: Any, loss: type, read_keys: Sequence[Any], expected_class: str
) -> None:
    """Raises UserError for a network that does not write ``read_keys``."""
    if missing := [key for key in read_keys if key not in network.out_keys]:
        writes, reads = (", ".join(map(str, keys)) for keys in (network.out_keys, missing))
        raise UserError(
            f"{name}: it writes {writes}, but {loss.__name__} reads {reads}. Make it a {expected_class}."
        )


class TakenActionActor(nn.Module):
    """Actor for ``VTrace`` that returns the log-probability of the stored action.

    TorchRL's estimator samples a new action, so that its importance weights are those of another action.
    """

    default_interaction_type, num_samples = InteractionType.RANDOM, None

    def __init__(self, actor: ProbabilisticTensorDictSequential, action: NestedKey) -> None:
        super().__init__()
        self.actor, self.action, self.in_keys = actor, action, [*actor.in_keys, action]

    def get_dist(self, batch: TensorDictBase) -> SimpleNamespace:
        """A distribution whose only sample is the batch's action."""
        action, dist = batch[self.action], self.actor.get_dist(batch)
        return SimpleNamespace(has_rsample=False, sample=lambda shape: action, log_prob=dist.log_prob)


def parameter_groups(loss: LossModule, groups: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    """The optimizer's parameters: all of the loss's, or groups with options of their own.

    Args:
        loss: its parameters' names begin with its networks' names.
        groups: the optimizer's options by the beginning of names, as ``{"log_alpha": {"lr": 1e-4}}``, or by
            a pattern, as ``{"*bias": {"weight_decay": 0.0}}``.

    Raises:
        UserError: for a name that no parameter has, or that another group took.
    """
    trained = {name: parameter for name, parameter in loss.named_parameters() if parameter.requires_grad}
    if not groups:
        return list(trained.values())
    remaining = trained
    param_groups = []
    for name, options in groups.items():
        pattern = name if "*" in name else f"{name}*"
        parameters = [
            remaining.pop(parameter) for parameter in list(remaining) if fnmatchcase(parameter, pattern)
        ]
        if not parameters:
            prefixes = sorted(
                {parameter.partition(".")[0].removesuffix("_params") for parameter in remaining}
            )
            raise UserError(
                f"loss.param_groups.{name}: no parameter is left for it. Write {' or '.join(prefixes)}."
            )
        param_groups.append({"params": parameters, **options})
    return [*([{"params": list(remaining.values())}] if remaining else []), *param_groups]
