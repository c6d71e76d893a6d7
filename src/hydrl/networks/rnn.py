"""Recurrent networks: LSTM and GRU between encoder and hidden layers."""

from collections.abc import Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from tensordict import NestedKey
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.modules import GRUModule, LSTMModule

from hydrl.limits import PositiveInt
from hydrl.networks.layers import ConcatSequential
from hydrl.networks.shared_encoder import SharedModule
from hydrl.specs import RNN_STATE_KEYS

CELLS = {"lstm": LSTMModule, "gru": GRUModule}
STATE_SUFFIXES = {"lstm": ("_h", "_c"), "gru": ("",)}  # of a hidden state
CRITIC_STATE = "critic_state"
# What RNNs read in addition to observations. InitTracker and primers of the environment write it, except for
# a critic's hidden state, which is zero at the start of each sequence.
STATE_KEYS = ("is_init", *RNN_STATE_KEYS, *(CRITIC_STATE + suffix for suffix in ("_h", "_c", "")))


class RecurrentLayer(SharedModule):
    """LSTM or GRU over observations or features, which writes the entry ``memory``, ``[..., hidden_size]``.

    In acting, TorchRL's module takes one step from the hidden state in the tensordict, which the
    environment's primer zeroes at resets; in losses it runs through sequences ``[..., time]`` from their
    first hidden state, and restarts wherever ``is_init`` marks a new episode.

    Args:
        in_keys: observation entries, or an encoder's output.
        size: of the inputs together.
        cell: ``lstm`` (Hochreiter and Schmidhuber 1997) or ``gru`` (Cho et al. 2014).
        hidden_size: units of the hidden state.
        span: steps, 2 or more, of the longest initial time constant; ``None``: PyTorch's initialisation.
        state: name of the hidden state; an actor's and a critic's differ.
    """

    out_key = "memory"

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        size: int,
        *,
        cell: Literal["lstm", "gru"],
        hidden_size: PositiveInt,
        span: Annotated[int, Field(ge=2)] | None = None,
        state: str = "recurrent_state",
    ) -> None:
        states = [state + suffix for suffix in STATE_SUFFIXES[cell]]
        module = CELLS[cell](
            input_size=size,
            hidden_size=hidden_size,
            in_keys=["joined", *states],
            out_keys=["memory", *(("next", name) for name in states)],
        )
        if span is not None:
            init_forget_bias(getattr(module, cell), hidden_size, span)
        super().__init__(TensorDictModule(ConcatSequential(), in_keys=in_keys, out_keys=["joined"]), module)


@torch.no_grad()
def init_forget_bias(cell: nn.LSTM | nn.GRU, units: int, span: int) -> None:
    """Initialises gate biases for time constants of 1 to ``span`` steps.

    With PyTorch's a unit halves its state at each step, and gradients vanish within a hundred steps. These
    biases are ``log(u)``, with u uniform from 1 to ``span - 1`` (chrono initialisation, Tallec & Ollivier
    2018).
    """
    log_span = torch.empty(units).uniform_(1, span - 1).log()
    lstm = isinstance(cell, nn.LSTM)
    # PyTorch orders an LSTM's gates as input, forget, cell, output, and a GRU's as reset, update, new.
    gates = {0: -log_span, 1: log_span} if lstm else {1: log_span}
    for gate, bias in gates.items():
        rows = slice(gate * units, (gate + 1) * units)
        cell.get_parameter("bias_ih_l0")[rows], cell.get_parameter("bias_hh_l0")[rows] = bias, 0.0
