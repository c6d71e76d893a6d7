"""Memories: what a network keeps of the observations since an episode began."""

from collections.abc import Sequence

from tensordict import NestedKey
from tensordict.nn import TensorDictModule
from torchrl.modules import GRUModule, LSTMModule

from hydrl.errors import UserError
from hydrl.parts.networks.layers import Joined
from hydrl.parts.networks.sharing import Shared
from hydrl.parts.specs import HIDDEN

CELLS = {"lstm": LSTMModule, "gru": GRUModule}
PARTS = {"lstm": ("_h", "_c"), "gru": ("",)}  # of a hidden state
OF_A_CRITIC = "critic_state"
# What they read beside the observation; the environment's InitTracker and primers write it, but for a
# critic's hidden state, which nobody keeps: in each sequence it begins with zeros.
STATES = ("is_init", *HIDDEN, *(OF_A_CRITIC + each for each in ("_h", "_c", "")))


class Memory(Shared):
    """What was observed since the episode began, as the entry ``memory``, ``[..., units]``.

    While acting, TorchRL's module takes one step from the hidden state in the tensordict, which the
    environment's primer sets to zero at resets; within losses it runs through whole sequences ``[..., time]``
    from the hidden state at their beginning, and anew wherever ``is_init`` says that an episode begins.

    Args:
        in_keys: observation entries, or what an encoder makes of them.
        size: how many numbers these are together.
        lstm: units of a long short-term memory (Hochreiter and Schmidhuber 1997).
        gru: units of a gated recurrent one (Cho et al. 2014), in its place.
        state: what its hidden state is called; an actor's and a critic's need two names.

    Raises:
        UserError: for none or both.
    """

    made = "memory"

    def __init__(
        self,
        in_keys: Sequence[NestedKey],
        size: int,
        *,
        lstm: int | None = None,
        gru: int | None = None,
        state: str = "recurrent_state",
    ) -> None:
        units = {kind: given for kind, given in (("lstm", lstm), ("gru", gru)) if given}
        if len(units) != 1:
            raise UserError(f"memory.lstm={lstm} and memory.gru={gru}: give units to one of them")
        ((kind, hidden),) = units.items()
        states = [state + each for each in PARTS[kind]]
        cell = CELLS[kind](
            input_size=size,
            hidden_size=hidden,
            in_keys=["joined", *states],
            out_keys=["memory", *(("next", each) for each in states)],
        )
        super().__init__(TensorDictModule(Joined(), in_keys=in_keys, out_keys=["joined"]), cell)
