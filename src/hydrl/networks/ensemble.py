"""Ensemble of probabilistic networks that predict an environment, and the policy that plans with it."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModule, TensorDictModuleBase, TensorDictSequential
from torch import Tensor, nn
from torch.nn.functional import softplus
from torchrl.data import Bounded, Composite, Unbounded
from torchrl.envs import EnvBase, TensorDictPrimer
from torchrl.envs.model_based import ModelBasedEnvBase
from torchrl.envs.utils import ExplorationType, exploration_type
from torchrl.modules.planners import MPCPlannerBase

from hydrl.limits import Activation, PositiveInt
from hydrl.networks.layers import activation_class
from hydrl.specs import PLAN, observation_keys, total_size

MIN_LOG_VAR, MAX_LOG_VAR = -10.0, 0.5  # initial bounds, of changes in units of their root mean square
TINY = 1e-6  # a deviation below it is a constant's
PREDICTED_KEYS = ("loc", "scale", "end_logit")  # entries that an ensemble writes


def ensemble(
    env: EnvBase,
    *,
    planner: Callable[..., MPCPlannerBase],
    members: PositiveInt,
    num_cells: list[PositiveInt],
    activation: Activation,
    in_keys: list[str] | None = None,
) -> "PlanningActor":
    """Policy that plans with an ensemble of learned models (PETS, Chua et al. 2018).

    Args:
        env: gives the sizes of observations and actions.
        planner: builds a planner over an environment, see :class:`hydrl.networks.planners.PlanSearch`.
        members: networks in the ensemble.
        num_cells: units of each hidden layer of a member.
        activation: a class name of ``torch.nn``.
        in_keys: observation entries, vectors; ``None``: all that the environment has.
    """
    in_keys = in_keys or observation_keys(env)
    size = total_size(env.observation_spec, in_keys, "an ensemble of models")
    network = Ensemble(members, size, env.action_spec_unbatched.shape[-1], num_cells, activation)
    model = TensorDictModule(network, in_keys=["particles", "action"], out_keys=[*PREDICTED_KEYS])
    imagined = ImaginedEnv(model.to(env.device), env.device)
    return PlanningActor(model, planner(imagined), in_keys).eval()


class Ensemble(nn.Module):
    """Networks that predict how observations change, the reward, and whether the episode terminates.

    Changes and rewards have a Gaussian distribution, whose log-variances stay between learned bounds.

    Args:
        members: number of networks, which are independent of each other.
        size: of an observation.
        action_size: of an action.
        num_cells: units of each hidden layer.
        activation: a class name of ``torch.nn``.
    """

    mean: Tensor
    std: Tensor
    unit: Tensor
    is_fitted: Tensor

    def __init__(
        self, members: int, size: int, action_size: int, num_cells: Sequence[int], activation: str
    ) -> None:
        super().__init__()
        self.members, self.size, self.action_size = members, size, action_size
        self.activation = activation_class(activation)()
        sizes = [size + action_size, *num_cells, 2 * (size + 1) + 1]
        shapes = [(members, inputs, outputs) for inputs, outputs in pairwise(sizes)]
        self.weights = nn.ParameterList(torch.randn(shape) / shape[1] ** 0.5 for shape in shapes)
        self.biases = nn.ParameterList(torch.zeros(members, 1, shape[2]) for shape in shapes)
        self.min_log_var = nn.Parameter(torch.full((size + 1,), MIN_LOG_VAR))
        self.max_log_var = nn.Parameter(torch.full((size + 1,), MAX_LOG_VAR))
        self.register_buffer("mean", torch.zeros(size))  # of observations
        self.register_buffer("std", torch.ones(size))
        self.register_buffer("unit", torch.ones(size + 1))  # of changes and rewards
        self.register_buffer("is_fitted", torch.tensor(False))

    def forward(self, particles: Tensor, action: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Distribution of change and reward, and the logit of termination.

        Args:
            particles: ``[..., members, size]``, an observation for each member.
            action: ``[..., action_size]``.

        Returns:
            Mean and standard deviation, ``[..., members, size + 1]``, and the logit, ``[..., members, 1]``.
        """
        action = action.unsqueeze(-2).expand(*particles.shape[:-1], -1)
        inputs = torch.cat([(particles - self.mean) / self.std, action], -1)
        hidden = inputs.reshape(-1, *inputs.shape[-2:]).transpose(0, 1)  # [members, rows, inputs]
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            hidden = torch.baddbmm(bias, self.activation(hidden) if layer else hidden, weight)
        outputs = hidden.transpose(0, 1).reshape(*particles.shape[:-1], -1).float()
        loc, log_var, end_logit = outputs.split([self.size + 1, self.size + 1, 1], -1)
        log_var = self.max_log_var - softplus(self.max_log_var - log_var)
        log_var = self.min_log_var + softplus(log_var - self.min_log_var)
        return loc * self.unit, (0.5 * log_var).exp() * self.unit, end_logit

    @torch.no_grad()
    def fit(self, observation: Tensor, change: Tensor) -> None:
        """Takes the units of inputs and outputs from the first call's data; later calls change nothing.

        Statistics that moved with the data would spoil what the networks have learned.

        Args:
            observation: ``[rows, size]``.
            change: of observations, and rewards, ``[rows, size + 1]``.
        """
        std, unit = observation.std(0, unbiased=False), change.square().mean(0).sqrt()
        for buffer, value in ((self.mean, observation.mean(0)), (self.std, std), (self.unit, unit)):
            if buffer is not self.mean:
                value = torch.where(value > TINY, value, 1.0)  # an entry that is constant
            buffer.copy_(torch.where(self.is_fitted, buffer, value))
        self.is_fitted.fill_(True)


def imagine(
    particles: Tensor, alive: Tensor, loc: Tensor, scale: Tensor, end_logit: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The next particles and probabilities, and the mean reward of the members.

    Each particle stays with its member (the paper's trajectory sampling TS-infinity) and samples the member's
    distribution; with ``ExplorationType.DETERMINISTIC`` it takes the mean. Rewards after an imagined end do
    not count.

    Args:
        particles: ``[..., members, size]``, observations.
        alive: ``[..., members, 1]``, probabilities that their episodes have not terminated.
        loc: of the ensemble, as the others.
        scale: likewise.
        end_logit: likewise.
    """
    change = loc
    if exploration_type() is not ExplorationType.DETERMINISTIC:
        change = loc + scale * torch.randn_like(loc)
    reward = (alive * change[..., -1:]).mean(-2)
    return particles + change[..., :-1], alive * (-end_logit).sigmoid(), reward


class ImaginedEnv(ModelBasedEnvBase):
    """TorchRL environment that a model imagines, for planners; any batch size.

    Its states are ``particles``, ``[..., members, size]``, and ``alive``, ``[..., members, 1]``, see
    :func:`imagine`. Actions are those of the replay buffer's samples, in [-1, 1].

    Args:
        model: writes :data:`PREDICTED_KEYS`.
        device: of the model.
    """

    def __init__(self, model: TensorDictModule, device: torch.device) -> None:
        states = ["particles", "alive"]
        step = TensorDictModule(imagine, in_keys=[*states, *PREDICTED_KEYS], out_keys=[*states, "reward"])
        super().__init__(TensorDictSequential(model, step), device=device)
        members, size = model.module.members, model.module.size
        shapes = {"particles": (members, size), "alive": (members, 1)}
        self.observation_spec = Composite({name: Unbounded(shape) for name, shape in shapes.items()})
        self.state_spec = self.observation_spec.clone()
        self.action_spec = Bounded(-1.0, 1.0, (model.module.action_size,))
        self.reward_spec = Unbounded((1,))

    def start(self, observation: Tensor) -> TensorDict:
        """States ``[...]`` of observations ``[..., size]``."""
        shape = observation.shape[:-1]
        members = self.observation_spec["particles"].shape[0]
        particles = observation.unsqueeze(-2).expand(*shape, members, -1)
        alive = torch.ones(*shape, members, 1, device=observation.device)
        return TensorDict({"particles": particles, "alive": alive}, shape, device=observation.device)

    def _reset(self, tensordict: TensorDictBase, **_: Any) -> TensorDictBase:
        return tensordict.copy()


class PlanningActor(TensorDictModuleBase):
    """Policy that plans its actions and continues the last plan.

    It reads the last plan, moved on by a step, from the entry ``plan``, zeros at the beginning of episodes.

    Args:
        model: what the planner imagines with; a loss learns it.
        planner: over states of an :class:`ImaginedEnv`.
        in_keys: observation entries.
    """

    def __init__(
        self, model: TensorDictModule, planner: MPCPlannerBase, in_keys: Sequence[NestedKey]
    ) -> None:
        super().__init__()
        self.model, self.observation_keys = model, [*in_keys]
        self.planners = (planner,)  # in a tuple, as its parameters are the model's
        self.in_keys, self.out_keys = [*in_keys, PLAN, "is_init"], ["action", ("next", PLAN)]

    def make_tensordict_primer(self) -> TensorDictPrimer:
        """The transform that adds an empty plan at the beginning of episodes."""
        (planner,) = self.planners
        shape = (planner.planning_horizon, *planner.action_spec.shape)
        return TensorDictPrimer({PLAN: Unbounded(shape, device=planner.env.device)}, expand_specs=True)

    @torch.no_grad()
    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        """Writes the action and the next plan."""
        (planner,) = self.planners
        states = planner.env.start(concat_entries(tensordict, self.observation_keys))
        plan = tensordict[PLAN].masked_fill(tensordict["is_init"].unsqueeze(-1), 0.0)
        planned = planner(states.set(PLAN, plan))
        tensordict.set("action", planned["action"])
        return tensordict.set(("next", PLAN), planned["next", PLAN])


def concat_entries(tensordict: TensorDictBase, keys: Sequence[NestedKey]) -> Tensor:
    """Entries as one vector, ``[..., size]``."""
    return torch.cat([tensordict.get(key) for key in keys], -1)
