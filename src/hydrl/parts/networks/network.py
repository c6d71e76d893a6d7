"""The one builder of networks: encoder, memory, hidden layers, head, sized from the environment's specs.

What does nothing is not there, so that a network of hidden layers alone is just these.
"""

from collections.abc import Callable, Sequence
from typing import NotRequired, TypedDict

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase, TensorDictSequential
from torch import nn
from torchrl.envs import EnvBase

from hydrl.parts.finite import check_finite
from hydrl.parts.networks.heads import Head
from hydrl.parts.networks.layers import JointLayers, Layers, Norm, initialise
from hydrl.parts.networks.memory import STATES, Memory
from hydrl.parts.specs import require_entries, size_of


class Net(TypedDict):
    """What lies before a head; each network takes these keywords, and hands them to :func:`network`.

    Attributes:
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
        in_keys: observation entries that it reads. A critic may read the actor's ``features`` or ``memory``:
            a memory of its own would need hidden states while acting, which costs as much as an actor.
        encoder: builds, from the environment and ``in_keys``, what reads these and writes ``features``,
            ``[..., size]``; ``None``: hidden layers read them, vectors that are joined.
        memory: builds what keeps something of them, as :class:`hydrl.parts.networks.memory.Memory` does.
        norm: see :func:`hydrl.parts.networks.layers.mlp`.
        init: see :func:`hydrl.parts.networks.layers.initialise`.
    """

    num_cells: list[int]
    activation: str
    in_keys: list[str]
    encoder: NotRequired[Callable[..., TensorDictModuleBase] | None]
    memory: NotRequired[Callable[..., TensorDictModuleBase] | None]
    norm: NotRequired[Norm | None]
    init: NotRequired[str | None]


class Features(TensorDictSequential):
    """What an encoder makes of observations, ``features``."""


def network(
    env: EnvBase,
    head: Head,
    actor: nn.Module | None = None,
    *,
    num_cells: list[int],
    activation: str,
    in_keys: list[str],
    encoder: Callable[..., TensorDictModuleBase] | None = None,
    memory: Callable[..., TensorDictModuleBase] | None = None,
    norm: Norm | None = None,
    init: str | None = None,
) -> TensorDictModuleBase:
    """What acts or judges by ``head``; the other arguments are those of :class:`Net`.

    Args:
        env: gives, by its specs and one reset, the sizes of all layers.
        head: what it ends in.
        actor: whose encoder and memory it reads, where ``in_keys`` name what they write.
    """
    shared = bodies_of(actor, in_keys)
    before, read = (shared, in_keys) if shared else reading(env, in_keys, encoder, memory)
    size = width(env, before, read) if norm or not before else 0
    if head.of_actions:
        read, size = [*read, "action"], size + env.action_spec_unbatched.shape[-1]
    layers = (JointLayers if head.of_actions and norm is None else Layers)(num_cells, activation, norm, size)
    whole = materialise(head.over(layers, read, before), env)
    initialise(whole[-1] if shared else whole, init, head.gain)  # what is shared is the actor's to draw
    return whole


def bodies_of(actor: nn.Module | None, in_keys: Sequence[NestedKey]) -> list[TensorDictModuleBase]:
    """The encoder and the memory of ``actor`` that write what is read of them."""
    kinds = (Features, Memory) if "memory" in in_keys else Features
    found = [] if actor is None or not {*in_keys} & {"features", "memory"} else actor.modules()
    return [each for each in found if isinstance(each, kinds)]


def reading(
    env: EnvBase,
    in_keys: list[str],
    encoder: Callable[..., TensorDictModuleBase] | None,
    memory: Callable[..., TensorDictModuleBase] | None,
) -> tuple[list[TensorDictModuleBase], list[str]]:
    """What lies before the layers, and which entries these then read."""
    before: list[TensorDictModuleBase] = []
    if encoder is not None:
        before.append(Features(materialise(encoder(env, in_keys), env)))
        in_keys = ["features"]
    if memory is not None:
        before.append(memory(in_keys, width(env, before, in_keys)))
        in_keys = ["memory"]
    return before, in_keys


def width(env: EnvBase, before: Sequence[TensorDictModuleBase], in_keys: Sequence[NestedKey]) -> int:
    """How many numbers the layers read: of entries of the environment, or of what is made of them before.

    Raises:
        UserError: for entries that are not there.
    """
    if not before:
        return size_of(env.observation_spec, in_keys)
    written = start_of(env)
    with torch.no_grad():
        for each in before:
            written = each.to(env.device).eval()(written)
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
    in_keys = [key for key in module.in_keys if key not in (*actions, *STATES)]
    require_entries(env.observation_spec, in_keys)
    module.to(env.device).eval()
    with torch.no_grad():
        start = start_of(env)
        check_finite(start.unsqueeze(-1), in_keys)
        module(env.rand_action(start) if set(actions) & set(module.in_keys) else start)
    return module


def start_of(env: EnvBase) -> TensorDictBase:
    """What is observed when all episodes begin."""
    start = env.reset()
    start["is_init"] = torch.ones(*env.batch_size, 1, dtype=torch.bool, device=env.device)
    return start
