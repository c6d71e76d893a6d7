"""Builder of all networks: encoder, RNN, hidden layers and head, sized from the environment's specs.

Parts that are not configured leave no module behind.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NotRequired, TypedDict

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import nn
from torchrl.envs import EnvBase

from hydrl.limits import Activation, PositiveInt
from hydrl.nan_checks import check_finite
from hydrl.networks.blocks import BlockLayers, BuildLayers
from hydrl.networks.encoders import Encoder
from hydrl.networks.heads import Head
from hydrl.networks.layers import ActionValueLayers, Layers, Norm, init_weights, redraw_weights
from hydrl.networks.rnn import CRITIC_STATE, STATE_KEYS, RecurrentLayer
from hydrl.specs import mask_keys, observation_keys, require_entries, total_size

SHARED_KEYS = ("features", "memory")  # outputs of an encoder and an RNN

MakeEncoder = Callable[..., TensorDictModuleBase | None]


class NetworkOptions(TypedDict):
    """Keywords of all networks for the modules below the head, see :func:`make_network`.

    Attributes:
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: observation entries that it reads; ``None`` reads all.
        encoder: builds, from the environment and ``in_keys``, a module that reads these entries and writes
            ``features``, ``[..., size]``. ``None``: hidden layers read the entries, concatenated vectors.
            ``shared``: a state-value critic uses the actor's encoder and RNN.
        rnn: builds a recurrent layer, see :class:`hydrl.networks.rnn.RecurrentLayer`. A state-value critic
            has none of its own, which would need hidden states while acting; an action-value critic has, as
            it only reads sequences.
        norm: see :func:`hydrl.networks.layers.mlp`.
        hidden_layers: builds hidden layers and output in place of an MLP, see :mod:`hydrl.networks.blocks`.
        init: see :func:`hydrl.networks.layers.init_weights`.
    """

    num_cells: list[PositiveInt]
    activation: Activation
    in_keys: NotRequired[list[str] | None]
    encoder: NotRequired[MakeEncoder | Literal["shared"] | None]
    rnn: NotRequired[Callable[..., TensorDictModuleBase] | None]
    norm: NotRequired[Norm | None]
    hidden_layers: NotRequired[BuildLayers | None]
    init: NotRequired[Literal["orthogonal"] | None]


def make_network(
    env: EnvBase,
    head: Head,
    actor: nn.Module | None = None,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str] | None = None,
    encoder: MakeEncoder | Literal["shared"] | None = None,
    rnn: Callable[..., TensorDictModuleBase] | None = None,
    norm: Norm | None = None,
    hidden_layers: BuildLayers | None = None,
    init: str | None = None,
) -> TensorDictModuleBase:
    """Builds an actor or critic that ends in ``head``; other arguments as in :class:`NetworkOptions`.

    Args:
        env: gives, by its specs and one reset, the sizes of all layers.
        head: the last part of the network.
        actor: the actor whose encoder and RNN a critic may share.
    """
    in_keys = in_keys or observation_keys(env)
    if actor is not None and rnn is not None:
        rnn = partial(rnn, state=CRITIC_STATE)
    preceding, layer_keys = (
        find_shared_modules(actor, in_keys)
        if encoder == "shared" or {*in_keys} & {*SHARED_KEYS}
        else ([], in_keys)
    )
    is_shared = bool(preceding)
    if not is_shared and encoder != "shared":
        preceding, layer_keys = make_encoder_and_rnn(env, in_keys, encoder, rnn)
    size = input_size(env, preceding, layer_keys) if norm or hidden_layers or not preceding else 0
    actions = env.action_spec_unbatched.shape[-1] if head.takes_action else 0
    if head.takes_action:
        layer_keys = [*layer_keys, "action"]
    layers = make_layers(num_cells, activation, norm, hidden_layers, size + actions, actions)
    network = materialise(head.build(layers, layer_keys, preceding), env)
    # Shared modules are initialised with the actor.
    init_weights(network[-1] if is_shared else network, init, head.gain)
    if init or hidden_layers:
        network.redraw = partial(redraw_weights, init=init, last_gain=head.gain)
    return network


def make_layers(
    num_cells: list[int],
    activation: str,
    norm: Norm | None,
    hidden_layers: BuildLayers | None,
    size: int,
    actions: int,
) -> Layers:
    """Builder of the hidden layers; of the ``size`` entries that they read, the last are the action's."""
    if hidden_layers is not None:
        return BlockLayers(num_cells, activation, norm, size, hidden_layers, actions)
    cls = ActionValueLayers if actions and norm is None else Layers
    return cls(num_cells, activation, norm, size)


def find_shared_modules(
    actor: nn.Module | None, in_keys: Sequence[NestedKey]
) -> tuple[list[TensorDictModuleBase], Sequence[NestedKey]]:
    """The modules below the head of ``actor``, and the entries that a shared network reads of them.

    Configurations of older runs name these entries in ``in_keys``.
    """
    classes = (Encoder,) if "features" in in_keys else (Encoder, RecurrentLayer)
    modules = [] if actor is None else [module for module in actor.modules() if isinstance(module, classes)]
    for module in modules:
        module.shared = True
    if not modules or {*in_keys} & {*SHARED_KEYS}:
        return modules, in_keys
    return modules, ["memory" if isinstance(modules[-1], RecurrentLayer) else "features"]


def make_encoder_and_rnn(
    env: EnvBase,
    in_keys: list[str],
    encoder: MakeEncoder | None,
    rnn: Callable[..., TensorDictModuleBase] | None,
) -> tuple[list[TensorDictModuleBase], list[str]]:
    """The modules below the hidden layers, and the entries that these then read."""
    preceding: list[TensorDictModuleBase] = []
    if encoder is not None and (module := encoder(env, in_keys)) is not None:
        preceding.append(Encoder(materialise(module, env)))
        in_keys = ["features"]
    if rnn is not None:
        preceding.append(rnn(in_keys, input_size(env, preceding, in_keys)))
        in_keys = ["memory"]
    return preceding, in_keys


def input_size(env: EnvBase, preceding: Sequence[TensorDictModuleBase], in_keys: Sequence[NestedKey]) -> int:
    """Size of the hidden layers' input: of observation entries, or of the preceding modules' outputs.

    Raises:
        UserError: for missing entries.
    """
    if not preceding:
        return total_size(env.observation_spec, in_keys)
    outputs = initial_observation(env)
    with torch.no_grad():
        for module in preceding:
            outputs = module.to(env.device).eval()(outputs)
    return sum(outputs[key].shape[-1] for key in in_keys)


def materialise(module: TensorDictModuleBase, env: EnvBase) -> TensorDictModuleBase:
    """Gives lazy layers their sizes by one forward pass over a reset, as the TorchRL tutorials do.

    The module is left in ``eval()`` mode, for acting; the pass changes no statistics of normalisation layers.

    Raises:
        UserError: for entries that the environment lacks.
        DivergedError: for NaN or infinity in the first observation.
    """
    actions = env.action_keys
    in_keys = [key for key in module.in_keys if key not in (*actions, *STATE_KEYS, *mask_keys(env).values())]
    require_entries(env.observation_spec, in_keys)
    module.to(env.device).eval()
    with torch.no_grad():
        tensordict = initial_observation(env)
        check_finite(tensordict.unsqueeze(-1), in_keys)
        module(env.rand_action(tensordict) if set(actions) & set(module.in_keys) else tensordict)
    return module


def initial_observation(env: EnvBase) -> TensorDictBase:
    """The first observation of all environments, with ``is_init``."""
    tensordict = env.reset()
    tensordict["is_init"] = torch.ones(*env.batch_size, 1, dtype=torch.bool, device=env.device)
    return tensordict
