"""Decision transformer: a policy conditioned on the return to reach and the steps so far."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch import Tensor, nn
from torchrl.data import Unbounded
from torchrl.envs import EnvBase, TensorDictPrimer
from torchrl.modules import DTActor

from hydrl.errors import UserError, warn_once
from hydrl.limits import PositiveInt
from hydrl.specs import CONTEXT_KEYS, observation_keys, total_size

TARGET_QUANTILE = 0.9  # of the dataset's episode returns, the default target


def decision_transformer(
    env: EnvBase,
    *,
    context: PositiveInt,
    width: PositiveInt,
    layers: PositiveInt,
    heads: PositiveInt,
    dropout: Annotated[float, Field(ge=0, lt=1)],
    target_return: float | None = None,
    in_keys: list[str] | None = None,
) -> "DecisionTransformer":
    """Decision transformer for continuous actions (Chen et al. 2021): TorchRL's network, a GPT-2.

    Args:
        env: gives the action bounds and the size of the observation.
        context: steps it attends to, with the current one.
        width: embedding size of a token.
        layers: of attention.
        heads: of attention, which divide ``width``.
        dropout: dropout probability in training.
        target_return: the return to reach, in the environment's units; ``None``: the 90th percentile of the
            dataset's episode returns.
        in_keys: observation entries, vectors; ``None``: all that the environment has.

    Raises:
        UserError: if ``heads`` does not divide ``width``.
    """
    if width % heads:
        raise UserError(f"actor.heads={heads}: should divide actor.width={width}.")
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
    """Policy that predicts actions from returns to go, observations and earlier actions.

    In training it reads windows of episodes, ``[..., time]``, with their ``return_to_go``. In acting it reads
    one step, ``[...]``, and earlier ones from the entry ``context``; the return to go is the target return
    minus the unscaled ``episode_reward``. A shorter episode fills the beginning of the context; attention is
    causal, so nothing reads the padding. TorchRL's ``DecisionTransformerInferenceWrapper`` would read padding
    zeros as steps.

    ``step_count`` is read with the observation, in place of the paper's embedding of time, which TorchRL's
    network lacks: a small return to go may mean success, or that the episode is nearly over.

    Args:
        network: of observations, actions and returns ``[batch, time, ...]``.
        in_keys: observation entries.
        size: of these together.
        context: steps it attends to.
        low: lower bounds of actions.
        high: upper bounds.
        target_return: the return to reach; ``None``: set by :meth:`fit`.

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
        """Sets the scale of returns and the episode length from a dataset, ``[rows]`` of whole episodes."""
        returns_to_go = rows["return_to_go"]
        self.loc.copy_(returns_to_go.mean())
        self.scale.copy_(returns_to_go.std(unbiased=False).clamp_min(1e-6))
        self.length.copy_(rows["step_count"].max() + 1)
        if not self.has_target_return:
            counts = rows["episode"].unique_consecutive(return_counts=True)[1]
            returns = (returns_to_go + rows["episode_reward"])[counts.cumsum(0) - 1]
            self.target_return.copy_(returns.quantile(TARGET_QUANTILE))
            text = f"{self.target_return.item():,.1f}"
            warn_once(f"eval.target_return={text}, the 90th percentile of the dataset's episode returns.")

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The transform that adds an empty context at the beginning of episodes."""
        context, steps = CONTEXT_KEYS
        context_spec = Unbounded((self.context, sum(self.sizes)), device=self.low.device)
        count_spec = Unbounded((1,), dtype=torch.int64, device=self.low.device)
        return TensorDictPrimer({context: context_spec, steps: count_spec}, expand_specs=True)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the action; in acting also the context of the next step."""
        if "return_to_go" in tensordict.keys():  # noqa: SIM118 - a tensordict's keys
            observations = self.concat_observation(tensordict, tensordict["step_count"])
            inputs = self.scale_returns(tensordict["return_to_go"]), observations, tensordict["action"]
            return tensordict.set("action", self.predict_actions(*inputs))
        return self.step(tensordict)

    def step(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Acts at a step ``[...]``, and updates the context."""
        shape = tensordict.shape
        tokens, steps = (tensordict[key] for key in CONTEXT_KEYS)
        return_to_go = self.scale_returns(self.target_return - tensordict["episode_reward"])
        token = torch.cat([return_to_go, self.concat_observation(tensordict, steps)], -1).reshape(
            -1, sum(self.sizes[:2])
        )
        tokens, steps = tokens.reshape(-1, *tokens.shape[-2:]), steps.reshape(-1)
        tokens = torch.where((steps >= self.context)[:, None, None], tokens.roll(-1, 1), tokens)
        position = steps.clamp_max(self.context - 1)
        rows = torch.arange(len(position), device=position.device)
        token = torch.cat([token, token.new_zeros(len(token), self.sizes[2])], -1)
        tokens = tokens.index_put((rows, position), token)
        action = self.predict_actions(*tokens.split(self.sizes, -1))[rows, position]
        tokens[rows, position, sum(self.sizes[:2]) :] = action
        tensordict.set("action", action.reshape(*shape, -1))
        context, count = CONTEXT_KEYS
        tensordict.set(("next", context), tokens.reshape(*shape, *tokens.shape[1:]))
        return tensordict.set(("next", count), (steps + 1).reshape(*shape, 1))

    def predict_actions(self, returns_to_go: Tensor, observations: Tensor, actions: Tensor) -> Tensor:
        """Actions at each of ``[..., time]`` steps, within the bounds, from earlier ones."""
        squashed = self.network(observations, actions, returns_to_go).tanh()
        return self.low + (squashed + 1) / 2 * (self.high - self.low)

    def scale_returns(self, returns: Tensor) -> Tensor:
        """Returns standardised by the dataset's."""
        return (returns - self.loc) / self.scale

    def concat_observation(self, tensordict: TensorDictBase, steps: Tensor) -> Tensor:
        """Observation entries and time, from -1 to 1 at the longest episode's end, ``[..., size + 1]``.

        Args:
            tensordict: has the entries.
            steps: since the episode began, ``[..., 1]``.
        """
        time = 2 * steps / self.length - 1
        return torch.cat([*(tensordict[key] for key in self.observation_keys), time], -1)
