"""Mixers: networks from each agent's action value to the value of their joint action."""

import math
from collections.abc import Sequence

import torch
from tensordict import NestedKey
from tensordict.nn import TensorDictModule, TensorDictModuleBase
from torch import Tensor, nn
from torchrl.envs import EnvBase
from torchrl.modules import MLP
from torchrl.modules.models.multiagent import Mixer, QMixer, VDNMixer

from hydrl.limits import PositiveInt
from hydrl.specs import action_spec, require_vectors, sibling_key

CHOSEN_VALUE = "chosen_action_value"  # of each agent as its action's sibling, of all agents at the root


def vdn(env: EnvBase, actor: nn.Module | None = None) -> TensorDictModuleBase:
    """VDN's mixer: the sum of the agents' values, ``[..., 1]`` (Sunehag et al. 2018), without parameters.

    Args:
        env: gives the agents.
        actor: ignored; all networks are built from the same two.
    """
    return make_mixer(VDNMixer(n_agents=action_spec(env).shape[0], device=env.device), env, [])


def qmix(
    env: EnvBase,
    actor: nn.Module | None = None,
    *,
    mixing_embed_dim: PositiveInt,
    in_keys: list[NestedKey] | None = None,
    state_cells: list[PositiveInt] | None = None,
) -> TensorDictModuleBase:
    """QMIX's mixer: monotonic in each agent's value, with weights from the state (Rashid et al. 2018).

    Args:
        env: gives the agents and the state.
        actor: ignored; all networks are built from the same two.
        mixing_embed_dim: units of its hidden layer.
        in_keys: entries of the state; ``None``: ``state`` if there is one, else all agents' observations.
        state_cells: units of layers between the state and the weights, which keep these bounded; ``None``:
            the weights are linear in the state and grow with it.
    """
    spec = env.observation_spec
    observation_key = sibling_key(env.action_key, "observation")
    in_keys = in_keys or (["state"] if "state" in spec.keys(True, True) else [observation_key])
    require_vectors(spec, in_keys, "a mixer")
    size = sum(math.prod(spec[key].shape[spec.ndim :]) for key in in_keys)
    reader = None
    if state_cells:
        # Bounded, else the weights grow with the state: far from the start, where episodes are truncated and
        # targets bootstrap, values would grow without end.
        kwargs = {"activation_class": nn.Tanh, "activate_last_layer": True, "device": env.device}
        reader, size = MLP(size, state_cells[-1], num_cells=state_cells[:-1], **kwargs), state_cells[-1]
    mixer = QMixer(
        state_shape=(size,),
        mixing_embed_dim=mixing_embed_dim,
        n_agents=action_spec(env).shape[0],
        device=env.device,
    )
    return make_mixer(mixer, env, in_keys, reader)


def make_mixer(
    mixer: Mixer, env: EnvBase, in_keys: Sequence[NestedKey], reader: nn.Module | None = None
) -> TensorDictModule:
    """Module of a mixer over the chosen actions' values and the entries ``in_keys`` of the state."""
    sizes = [len(env.observation_spec[key].shape) - env.observation_spec.ndim for key in in_keys]
    mixer_keys = [sibling_key(env.action_key, CHOSEN_VALUE), *in_keys]
    return TensorDictModule(StateMixer(mixer, sizes, reader), in_keys=mixer_keys, out_keys=[CHOSEN_VALUE])


class StateMixer(nn.Module):
    """Mixer whose state has several entries.

    Args:
        mixer: TorchRL's.
        dims: number of last dimensions of each entry that are its own, agents among them.
        reader: a network between the state and the mixer; ``None`` for none.
    """

    def __init__(self, mixer: Mixer, dims: Sequence[int], reader: nn.Module | None = None) -> None:
        super().__init__()
        self.mixer, self.dims, self.reader = mixer, list(dims), reader

    def forward(self, chosen: Tensor, *entries: Tensor) -> Tensor:
        """``[..., agents, 1]`` and entries to ``[..., 1]``."""
        flat = [entry.flatten(-dims) for entry, dims in zip(entries, self.dims, strict=True)]
        if not flat:
            return self.mixer(chosen)
        state = torch.cat(flat, -1)
        return self.mixer(chosen, state if self.reader is None else self.reader(state))
