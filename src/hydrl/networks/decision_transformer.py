"""A transformer that acts for a return: what it is asked to reach, what it has seen and done, what to do."""

from collections.abc import Sequence

import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Unbounded
from torchrl.envs import EnvBase, TensorDictPrimer
from torchrl.modules import DTActor

from hydrl.errors import UserError
from hydrl.library_setup import warn_once
from hydrl.specs import CONTEXT_KEYS, observation_keys, total_size

TARGET_QUANTILE = (
    0.9  # share of the data's episodes that return less than what is asked for where nobody says it
)


def decision_transformer(
    env: EnvBase,
    *,
    context: int,
    width: int,
    layers: int,
    heads: int,
    dropout: float,
    target_return: float | None = None,
    in_keys: list[str] | None = None,
) -> "DecisionTransformer":
    """Acts for a return (Chen et al. 2021), for continuous actions; TorchRL's network, which is a GPT-2.

    Args:
        env: gives the action bounds and the size of the observation.
        context: steps that it sees, this one among them.
        width: numbers that a token is.
        layers: of attention.
        heads: of attention, which divide ``width``.
        dropout: share of numbers that are left out while it learns.
        target_return: what it is asked to reach, in the task's own units; ``None``: what one in ten of the
            data's episodes does.
        in_keys: observation entries that it reads, vectors; ``None``: all that the environment shows.

    Raises:
        UserError: for heads that do not divide the width.
    """
    if width % heads:
        raise UserError(f"actor.heads={heads} does not divide actor.width={width}")
    in_keys = in_keys or observation_keys(env)
    size, spec = (
        total_size(env.observation_spec, in_keys, "a decision transformer"),
        env.action_spec_unbatched,
    )
    config = DTActor.default_config()
    config.n_embd, config.n_layer, config.n_head, config.n_inner = width, layers, heads, 4 * width
    config.n_positions, config.resid_pdrop, config.attn_pdrop = 3 * context, dropout, dropout
    network = DTActor(size + 1, spec.shape[-1], config)
    actor = DecisionTransformer(
        network, in_keys, size, context, spec.space.low, spec.space.high, target_return
    )
    return actor.to(env.device).eval()


class DecisionTransformer(TensorDictModuleBase):
    """Reads returns that are still to come, observations and actions in turn, and says the next action.

    Learning, it is given pieces of episodes, ``[..., time]``, with their ``return_to_go``. Acting, it is
    given a step, ``[...]``, and keeps those before in the entry ``context``: the return it is asked to reach,
    less ``episode_reward``, which no transform has scaled, is what is still to come. An episode that is
    shorter than its context stands at its beginning, and nothing looks at what lies behind: attention goes
    backwards alone. TorchRL's ``DecisionTransformerInferenceWrapper`` would read zeros before it as
    steps.

    When a step is, ``step_count``, is read beside the observation, as in the paper, whose embedding of it
    TorchRL's network has not: where little is still to come, an episode may have gone well, or be over soon.

    Args:
        network: of observations, actions and returns ``[batch, time, ...]``.
        in_keys: observation entries.
        size: how many numbers these are together.
        context: steps that it sees.
        low: least actions.
        high: greatest ones.
        target_return: what it is asked to reach; ``None`` is put there by :meth:`fit`.

    Attributes:
        target_return: the same, which may be set: ``actor.target_return.fill_(-200)``.
    """

    loc: Tensor
    scale: Tensor
    length: Tensor
    target_return: Tensor
    low: Tensor
    high: Tensor

    def __init__(
        self,
        network: nn.Module,
        in_keys: Sequence[NestedKey],
        size: int,
        context: int,
        low: Tensor,
        high: Tensor,
        target_return: float | None,
    ) -> None:
        super().__init__()
        self.network, self.observation_keys, self.sizes = network, [*in_keys], (1, size + 1, low.shape[-1])
        self.context, self.has_target_return = context, target_return is not None
        self.in_keys = [*in_keys, "episode_reward", *CONTEXT_KEYS, "is_init"]
        self.out_keys = ["action", *(("next", key) for key in CONTEXT_KEYS)]
        buffers = {"loc": 0.0, "scale": 1.0, "length": 1.0, "target_return": target_return or 0.0}
        for name, value in buffers.items():
            self.register_buffer(name, torch.tensor(value))
        for name, bound in (("low", low), ("high", high)):
            self.register_buffer(name, bound.clone())

    def fit(self, rows: TensorDictBase) -> None:
        """Learns how large returns are, and how long episodes, from a set, ``[rows]`` of whole episodes."""
        to_go = rows["return_to_go"]
        self.loc.copy_(to_go.mean())
        self.scale.copy_(to_go.std(unbiased=False).clamp_min(1e-6))
        self.length.copy_(rows["step_count"].max() + 1)
        if not self.has_target_return:
            counts = rows["episode"].unique_consecutive(return_counts=True)[1]
            returns = (to_go + rows["episode_reward"])[counts.cumsum(0) - 1]
            self.target_return.copy_(returns.quantile(TARGET_QUANTILE))
            reached = f"{self.target_return.item():,.1f}"
            warn_once(f"eval.target_return is {reached}, which one in ten of the data's episodes returned")

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """What an environment has of it where episodes begin."""
        context, steps = CONTEXT_KEYS
        context_spec = Unbounded((self.context, sum(self.sizes)), device=self.low.device)
        counted = Unbounded((1,), dtype=torch.int64, device=self.low.device)
        return TensorDictPrimer({context: context_spec, steps: counted}, expand_specs=True)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the action; of a step the context of the next one too."""
        if "return_to_go" in tensordict.keys():  # noqa: SIM118 - a tensordict's keys
            observations = self.concat_observation(tensordict, tensordict["step_count"])
            inputs = self.scale_returns(tensordict["return_to_go"]), observations, tensordict["action"]
            return tensordict.set("action", self.predict_actions(*inputs))
        return self.step(tensordict)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """The action of a step ``[...]``, and what is kept for the next."""
        shape = tensordict.shape
        tokens, steps = (tensordict[key] for key in CONTEXT_KEYS)
        to_go = self.scale_returns(self.target_return - tensordict["episode_reward"])
        now = torch.cat([to_go, self.concat_observation(tensordict, steps)], -1).reshape(
            -1, sum(self.sizes[:2])
        )
        tokens, steps = tokens.reshape(-1, *tokens.shape[-2:]), steps.reshape(-1)
        tokens = torch.where((steps >= self.context)[:, None, None], tokens.roll(-1, 1), tokens)
        place = steps.clamp_max(self.context - 1)
        row = torch.arange(len(place), device=place.device)
        now = torch.cat([now, now.new_zeros(len(now), self.sizes[2])], -1)
        tokens = tokens.index_put((row, place), now)
        action = self.predict_actions(*tokens.split(self.sizes, -1))[row, place]
        tokens[row, place, sum(self.sizes[:2]) :] = action
        tensordict.set("action", action.reshape(*shape, -1))
        context, count = CONTEXT_KEYS
        tensordict.set(("next", context), tokens.reshape(*shape, *tokens.shape[1:]))
        return tensordict.set(("next", count), (steps + 1).reshape(*shape, 1))

    def predict_actions(self, to_go: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """What is done at each of ``[..., time]`` steps, within the bounds; by the actions before it."""
        squashed = self.network(observations, actions, to_go).tanh()
        return self.low + (squashed + 1) / 2 * (self.high - self.low)

    def scale_returns(self, returns: Tensor) -> Tensor:
        """Returns of the task as they are learned from."""
        return (returns - self.loc) / self.scale

    def concat_observation(self, tensordict: TensorDictBase, steps: Tensor) -> Tensor:
        """The observation's entries and the time, from -1 to 1 at an end, as one vector ``[..., size + 1]``.

        Args:
            tensordict: has them.
            steps: since the episode began, ``[..., 1]``.
        """
        time = 2 * steps / self.length - 1
        return torch.cat([*(tensordict[key] for key in self.observation_keys), time], -1)
