"""Encoders: what actors and critics read observations with, memoryless or with a memory."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from tensordict import NestedKey
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn
from torchrl import modules
from torchrl.envs import EnvBase
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules import BatchRenorm1d, GRUModule, LSTMModule

from hydrl.errors import UserError
from hydrl.parts.specs import require_entries

NEEDING_MORE = (nn.MultiheadAttention, nn.Threshold)  # cannot be built without arguments
CELLS = {"lstm": LSTMModule, "gru": GRUModule}
# What they read beside the observation; the environment's InitTracker and primers write it.
STATES = ("is_init", *LSTMModule.DEFAULT_IN_KEYS, *GRUModule.DEFAULT_IN_KEYS)

Norm = Callable[[int], nn.Module] | None
Memory = dict[str, int] | None


def mlp(
    num_cells: Sequence[int], out_features: int, activation: str, norm: Norm = None, in_features: int = 0
) -> nn.Sequential:
    """Hidden layers of ``num_cells`` and a linear output; input sizes come with the first batch.

    Args:
        num_cells: units of each hidden layer.
        out_features: size of the output.
        activation: a class name of ``torch.nn``.
        norm: builds what normalises so many features, before the first layer and after each hidden one.
        in_features: size of the input, which ``norm`` must know.
    """
    layers: list[nn.Module] = [] if norm is None else [norm(in_features)]
    for cells in num_cells:
        layers += [nn.LazyLinear(cells), activation_class(activation)()]
        if norm is not None:
            layers.append(norm(cells))
    return Joined(*layers, nn.LazyLinear(out_features))


def initialise(module: TensorDictModuleBase, init: str | None, last_gain: float) -> TensorDictModuleBase:
    """Draws the weights of the linear layers anew.

    Args:
        module: with sizes; changed in place and given back.
        init: ``orthogonal``, with zero biases and a gain of sqrt(2) (Saxe et al. 2014; for PPO,
            Andrychowicz et al. 2021), or ``None``, which leaves PyTorch's.
        last_gain: that of the last layer.
    """
    if init == "orthogonal":
        layers = [each for each in module.modules() if isinstance(each, nn.Linear)]
        for layer in layers:
            nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else math.sqrt(2))
            nn.init.zeros_(layer.bias)
    return module


class BatchRenorm(BatchRenorm1d):
    """TorchRL's (Ioffe 2017), for a batch of any shape, and done with its warm-up where that ends."""

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., num_features]``, standardised; in ``train()`` mode by their own batch."""
        self.num_batches_tracked.clamp_max_(self.warmup_steps)  # TorchRL's own would count on: 2, 3, ...
        return super().forward(x.reshape(-1, x.shape[-1])).reshape(x.shape)


class NoisyLinear(modules.NoisyLinear):
    """TorchRL's (Fortunato et al. 2018), which draws its noise anew at each use and learns how much of it.

    That is their algorithm 1: each action, and in each update the values, the target and the choice of its
    action, have noise of their own. TorchRL's keeps what it drew until it is told, which never reaches a
    loss's copy of the weights, and leaves noise out of losses, so that its scale is not learned.
    """

    def forward(self, x: Tensor) -> Tensor:
        """Entries ``[..., in_features]``; noisy in ``train()`` mode and where actions are explored."""
        if not self.training and exploration_type() is not ExplorationType.RANDOM:
            return nn.functional.linear(x, self.weight_mu, self.bias_mu)
        into, out = self._scale_noise(self.in_features), self._scale_noise(self.out_features)
        weight = self.weight_mu + self.weight_sigma * out.outer(into)
        return nn.functional.linear(x, weight, self.bias_mu + self.bias_sigma * out)


def noisy_layers(module: TensorDictModuleBase, deviation: float | None) -> TensorDictModuleBase:
    """Puts a :class:`NoisyLinear` in the place of each linear layer.

    Args:
        module: with sizes; changed in place and given back.
        deviation: of the noise at the start, times the square root of a layer's inputs (a bias's: outputs);
            ``None`` changes nothing.
    """
    for parent in list(module.modules()) if deviation else []:
        for name, layer in parent.named_children():
            if isinstance(layer, nn.Linear):
                sizes, device = (layer.in_features, layer.out_features), layer.weight.device
                noisy = NoisyLinear(*sizes, device=device, std_init=deviation)
                setattr(parent, name, noisy.train(layer.training))
    return module


def size_of(env: EnvBase, in_keys: Sequence[NestedKey]) -> int:
    """How many numbers the observation entries have together.

    Raises:
        UserError: if the environment does not give them.
    """
    require_entries(env.observation_spec, in_keys)
    return sum(env.observation_spec[key].shape[-1] for key in in_keys)


class Joined(nn.Sequential):
    """Reads several entries as one, joined along the last dimension."""

    def forward(self, *entries: Tensor) -> Any:
        """Entries ``[..., size]``, each of its own size."""
        return super().forward(entries[0] if len(entries) == 1 else torch.cat(entries, -1))


def activation_class(name: str) -> type[nn.Module]:
    """``"Tanh"`` to ``torch.nn.Tanh``.

    Raises:
        UserError: if ``torch.nn`` has no activation of that name that is built without arguments.
    """
    found = getattr(nn, name, None)
    if (
        not isinstance(found, type)
        or found.__module__ != "torch.nn.modules.activation"
        or found in NEEDING_MORE
    ):
        raise UserError(
            f"activation={name} is not an activation of torch.nn; try Tanh, ReLU, ELU, SiLU or GELU"
        )
    return found


class Remembering(TensorDictSequential):
    """What was observed since the episode began, as the entry ``memory``, ``[..., size]``.

    While acting, TorchRL's module takes one step from the hidden state in the tensordict, which the
    environment's primer sets to zero at resets; within losses it runs through whole sequences ``[..., time]``
    from the hidden state at their beginning, and anew wherever ``is_init`` says that an episode begins.

    Args:
        env: gives the sizes of the entries.
        in_keys: observation entries it reads.
        **units: of the memory, by its kind: ``lstm=64`` or ``gru=64``.
    """

    def __init__(self, env: EnvBase, in_keys: list[str], **units: int) -> None:
        ((kind, hidden),) = units.items()
        inputs = size_of(env, in_keys)
        super().__init__(
            TensorDictModule(Joined(), in_keys=in_keys, out_keys=["joined"]),
            CELLS[kind](input_size=inputs, hidden_size=hidden, in_key="joined", out_key="memory"),
        )


def reading(
    net: nn.Module, out_keys: list[str], env: EnvBase, in_keys: list[str], memory: Memory = None
) -> TensorDictModuleBase:
    """``net`` over the entries ``in_keys``, or over what it remembers of them.

    Args:
        net: one tensor for each of ``in_keys`` to one for each of ``out_keys``.
        out_keys: what it gives.
        env: gives the sizes of a memory's inputs.
        in_keys: observation entries.
        memory: its kind with its units; ``None`` sees the present alone.
    """
    if memory is None:
        return TensorDictModule(net, in_keys=in_keys, out_keys=out_keys)
    head = TensorDictModule(net, in_keys=["memory"], out_keys=out_keys)
    return TensorDictSequential(Remembering(env, in_keys, **memory), head)


def sharing_memory(critic: TensorDictModuleBase, actor: nn.Module | None) -> TensorDictModuleBase:
    """The critic, after the actor's memory where it reads that.

    One of its own would need hidden states of its own while acting, which costs as much as a second actor.
    """
    if actor is None or "memory" not in critic.in_keys:
        return critic
    return TensorDictSequential(*(each for each in actor.modules() if isinstance(each, Remembering)), critic)
