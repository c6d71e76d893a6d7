"""The one builder of networks: encoder, memory, hidden layers, head, sized from the environment's specs.

What does nothing is not there, so that a network of hidden layers alone is just these.
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
from hydrl.networks.encoders import Encoder
from hydrl.networks.heads import Head
from hydrl.networks.layers import ActionValueLayers, Layers, Norm, init_weights
from hydrl.networks.rnn import CRITIC_STATE, STATE_KEYS, RecurrentLayer
from hydrl.specs import mask_keys, observation_keys, require_entries, total_size

SHARED_KEYS = ("features", "memory")  # what lies before a head writes


MakeEncoder = Callable[..., TensorDictModuleBase | None]


class NetworkOptions(TypedDict):
    """What lies before a head; each network takes these keywords, and hands them to :func:`make_network`.

    Attributes:
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: observation entries that it reads; ``None``: all that the environment shows.
        encoder: builds, from the environment and ``in_keys``, what reads these and writes ``features``,
            ``[..., size]``, or ``None`` where hidden layers read them, vectors that are joined. Where it is
            ``shared``, for a critic of states, what lies before the actor's head lies before this one too.
        rnn: builds what keeps something of them, as :class:`hydrl.networks.rnn.RecurrentLayer` does. A
            critic of states has none of its own, which would need hidden states while acting, at an actor's
            cost; one of actions has, as it judges nothing but sequences.
        norm: see :func:`hydrl.networks.layers.mlp`.
        init: see :func:`hydrl.networks.layers.init_weights`.
    """

    num_cells: list[PositiveInt]
    activation: Activation
    in_keys: NotRequired[list[str] | None]
    encoder: NotRequired[MakeEncoder | Literal["shared"] | None]
    rnn: NotRequired[Callable[..., TensorDictModuleBase] | None]
    norm: NotRequired[Norm | None]
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
    init: str | None = None,
) -> TensorDictModuleBase:
    """What acts or judges by ``head``; the other arguments are those of :class:`NetworkOptions`.

    Args:
        env: gives, by its specs and one reset, the sizes of all layers.
        head: what it ends in.
        actor: whose encoder and memory lie before the head, where they are shared.
    """
    in_keys = in_keys or observation_keys(env)
    if actor is not None and rnn is not None:
        rnn = partial(rnn, state=CRITIC_STATE)
    before, read = (
        find_shared_modules(actor, in_keys)
        if encoder == "shared" or {*in_keys} & {*SHARED_KEYS}
        else ([], in_keys)
    )
    of_the_actor = bool(before)
    if not of_the_actor and encoder != "shared":
        before, read = make_encoder_and_rnn(env, in_keys, encoder, rnn)
    size = input_size(env, before, read) if norm or not before else 0
    if head.takes_action:
        read, size = [*read, "action"], size + env.action_spec_unbatched.shape[-1]
    layers = (ActionValueLayers if head.takes_action and norm is None else Layers)(
        num_cells, activation, norm, size
    )
    whole = materialise(head.build(layers, read, before), env)
    init_weights(
        whole[-1] if of_the_actor else whole, init, head.gain
    )  # what is shared is the actor's to draw
    return whole


def find_shared_modules(
    actor: nn.Module | None, in_keys: Sequence[NestedKey]
) -> tuple[list[TensorDictModuleBase], Sequence[NestedKey]]:
    """What lies before the head of ``actor``, and what is read of it.

    Files of older runs name that in ``in_keys``.
    """
    kinds = (Encoder,) if "features" in in_keys else (Encoder, RecurrentLayer)
    modules = [] if actor is None else [module for module in actor.modules() if isinstance(module, kinds)]
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
    """What lies before the layers, and which entries these then read."""
    before: list[TensorDictModuleBase] = []
    if encoder is not None and (built := encoder(env, in_keys)) is not None:
        before.append(Encoder(materialise(built, env)))
        in_keys = ["features"]
    if rnn is not None:
        before.append(rnn(in_keys, input_size(env, before, in_keys)))
        in_keys = ["memory"]
    return before, in_keys


def input_size(env: EnvBase, before: Sequence[TensorDictModuleBase], in_keys: Sequence[NestedKey]) -> int:
    """How many numbers the layers read: of entries of the environment, or of what is made of them before.

    Raises:
        UserError: for entries that are not there.
    """
    if not before:
        return total_size(env.observation_spec, in_keys)
    written = initial_observation(env)
    with torch.no_grad():
        for module in before:
            written = module.to(env.device).eval()(written)
    return sum(written[key].shape[-1] for key in in_keys)


def materialise(module: TensorDictModuleBase, env: EnvBase) -> TensorDictModuleBase:
    """Gives lazy layers their sizes by one forward pass over a reset, as the TorchRL tutorials do.

    That leaves no trace in the statistics of a normalisation, for it is made in ``eval()`` mode, in which the
    module acts and plays; updates are made in ``train()``.

    Raises:
        UserError: if the environment does not give what the module reads.
        DivergedError: if what it gives is no number.
    """
    actions = env.action_keys
    in_keys = [key for key in module.in_keys if key not in (*actions, *STATE_KEYS, *mask_keys(env).values())]
    require_entries(env.observation_spec, in_keys)
    module.to(env.device).eval()
    with torch.no_grad():
        start = initial_observation(env)
        check_finite(start.unsqueeze(-1), in_keys)
        module(env.rand_action(start) if set(actions) & set(module.in_keys) else start)
    return module


def initial_observation(env: EnvBase) -> TensorDictBase:
    """What is observed when all episodes begin."""
    start = env.reset()
    start["is_init"] = torch.ones(*env.batch_size, 1, dtype=torch.bool, device=env.device)
    return start
