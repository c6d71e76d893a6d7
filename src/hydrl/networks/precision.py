"""Precision of networks: their layers in bfloat16, with float32 weights and outputs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, dispatch
from torch import Tensor, nn
from torchrl.modules import DTActor, SafeModule, ValueOperator

from hydrl.errors import UserError
from hydrl.networks.blocks import InitLinear, UnitLinear
from hydrl.networks.layers import NoisyLinear


class InBfloat16(TensorDictModule):
    """Module whose layers compute by autocast in bfloat16; what it writes is float32.

    Each call casts the weights anew: a cache would outlive ``no_grad``, ``vmap`` and CUDA graphs.
    """

    @dispatch(auto_batch_size=False)
    def forward(self, tensordict: TensorDictBase, *args: Any, **kwargs: Any) -> TensorDictBase:
        """Writes ``out_keys`` as without autocast, rounded."""
        device = tensordict.get(self.in_keys[0]).device.type
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            outputs = super().forward(tensordict, *args, **kwargs)
        for key in self.out_keys:
            if (output := outputs.get(key)).dtype == torch.bfloat16:
                outputs.set(key, output.float())
        return outputs


class SafeModuleInBfloat16(InBfloat16, SafeModule):
    """TorchRL's module that may project its outputs into their space."""


class ValueOperatorInBfloat16(InBfloat16, ValueOperator):
    """TorchRL's module of a value function."""


class DTActorInBfloat16(DTActor):
    """TorchRL's decision transformer, whose output layer stays float32."""

    def forward(self, observation: Tensor, action: Tensor, return_to_go: Tensor) -> Tensor:
        """Three times ``[..., time, size]`` to ``[..., time, size]``."""
        with torch.autocast(observation.device.type, torch.bfloat16, cache_enabled=False):
            hidden = self.transformer(observation, action, return_to_go)
        return self.action_layer(hidden.float())


class InFloat32(nn.Module):
    """Layer that computes in float32 within autocast, for outputs that bfloat16 would round to 1 in 256."""

    def forward(self, inputs: Tensor) -> Tensor:
        """``[..., in_features]`` to ``[..., out_features]``."""
        with torch.autocast(inputs.device.type, enabled=False):
            return super().forward(inputs.float())


class OutputLinear(InFloat32, nn.Linear):
    """Output layer in float32."""


class OutputNoisyLinear(InFloat32, NoisyLinear):
    """Noisy output layer in float32."""


class OutputInitLinear(InFloat32, InitLinear):
    """Output layer of SimBa in float32."""


class OutputUnitLinear(InFloat32, UnitLinear):
    """Output layer with rows of norm 1 in float32."""


MODULES: dict[type[nn.Module], type[nn.Module]] = {
    TensorDictModule: InBfloat16,
    SafeModule: SafeModuleInBfloat16,
    ValueOperator: ValueOperatorInBfloat16,
    DTActor: DTActorInBfloat16,
}
OUTPUT_LAYERS: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: OutputLinear,
    NoisyLinear: OutputNoisyLinear,
    InitLinear: OutputInitLinear,
    UnitLinear: OutputUnitLinear,
}
FLOAT32_CLASSES = {changed: plain for plain, changed in (MODULES | OUTPUT_LAYERS).items()}


def use_bf16(name: str, network: TensorDictModuleBase) -> TensorDictModuleBase:
    """Lets the layers of a network compute in bfloat16, in place.

    Output layers, RNNs and mixers stay in float32: values and RNN states are sums of many numbers. Modules
    change their class, as PyTorch's lazy layers do, so names and shapes of their parameters stay.

    Args:
        name: of the network, such as ``actor``.
        network: with known sizes; a critic may share modules with the actor.

    Raises:
        UserError: if it has no TensorDictModule with parameters.
    """
    if name == "mixer":
        return network
    modules = [module for module in network.modules() if has_layers(module)]
    if not modules:
        raise UserError(
            f"precision=bf16: the {name}, a {type(network).__name__}, has no TensorDictModule with "
            "parameters. Use precision=float32."
        )
    for module in modules:
        module.__class__ = MODULES[type(module)]
        for layer in output_layers(module):
            layer.__class__ = OUTPUT_LAYERS[type(layer)]
    return network


def has_layers(module: nn.Module) -> bool:
    """Whether a module is one of :data:`MODULES` and has layers of its own."""
    if type(module) not in MODULES or isinstance(getattr(module, "module", None), TensorDictModuleBase):
        return False
    return next(module.parameters(), None) is not None


def output_layers(module: nn.Module) -> Iterator[nn.Module]:
    """Linear layers that end a chain of layers without an activation after them."""
    for chain in module.modules():
        children = [*chain.children()] if isinstance(chain, nn.Sequential) else []
        for child in reversed(children):
            if type(child) in OUTPUT_LAYERS:
                yield child
            if type(child) in OUTPUT_LAYERS or type(child).__module__ == "torch.nn.modules.activation":
                break


@contextmanager
def in_float32(*networks: nn.Module) -> Iterator[None]:
    """Context manager in which networks compute in float32."""
    modules = [module for network in networks for module in network.modules()]
    changed = {module: type(module) for module in modules if type(module) in FLOAT32_CLASSES}
    for module, cls in changed.items():
        module.__class__ = FLOAT32_CLASSES[cls]
    try:
        yield
    finally:
        for module, cls in changed.items():
            module.__class__ = cls
