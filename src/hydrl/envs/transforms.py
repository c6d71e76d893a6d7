"""Transforms that TorchRL lacks or implements differently: normalizers, reward and action scaling, masks."""

from math import inf
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from tensordict.utils import expand_as_right
from torch import Tensor
from torchrl import envs
from torchrl.data import Binary, Composite, MultiCategorical, TensorSpec, Unbounded
from torchrl.envs import (
    ClipTransform,
    Compose,
    EnvBase,
    ObservationNorm,
    RandomTruncationTransform,
    RewardScaling,
    Transform,
    TransformedEnv,
    VecNormV2,
)
from torchrl.envs.transforms.utils import _get_reset

from hydrl.envs.time_limits import time_limit
from hydrl.errors import UserError
from hydrl.limits import Fraction
from hydrl.specs import INFO, choice_sizes, vector_keys

CLIP = 10.0  # of standardised values, as in Stable-Baselines3 and CleanRL
NEVER = 2**62  # horizon in steps without a time limit


class CopyTensors(Transform):
    """Transform that copies tensors in both directions, so that environment and run share no memory.

    A TorchRL environment may return a tensor that it writes to later, or write to the given action.
    """

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.clone()

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset.clone()

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.clone()


class MeanAgentReturn(Transform):
    """Transform that writes ``episode_reward``, the mean return of all agents so far.

    With several groups it also writes each group's mean, ``GROUP/return``, for the log.

    Args:
        in_keys: each group's returns so far, ``[..., agents, 1]``.
    """

    def __init__(self, in_keys: list[NestedKey]) -> None:
        group_keys = [(INFO, f"{key[0]}/return") for key in in_keys] if len(in_keys) > 1 else []
        super().__init__(in_keys=in_keys, out_keys=["episode_reward", *group_keys])

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        returns = [next_tensordict.get(key) for key in self.in_keys]
        mean_key, *group_keys = self.out_keys
        next_tensordict.set(mean_key, torch.cat(returns, -2).mean(-2))
        for key, values in zip(group_keys, returns, strict=False):
            next_tensordict.set(key, values.mean(-2))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds its entries."""
        shape = (*observation_spec.shape, 1)
        for key in self.out_keys:
            observation_spec[key] = Unbounded(shape, device=observation_spec.device)
        return observation_spec


def normalizer(
    in_keys: list[NestedKey] | None,
    frames: int | None,
    settle: Annotated[float, Field(gt=0, le=1)] = 1.0,
    over: int | None = None,
    constants: Literal["centred", "scaled"] = "centred",
    env: EnvBase | None = None,
) -> Transform | None:
    """Builds normalizers of observations, with statistics of random frames or running ones.

    Args:
        in_keys: observation entries; ``None``: all vectors of ``env``. Without any, the result is ``None``.
        frames: random frames for the statistics, see :func:`hydrl.envs.init_normalizers`; ``None``: running
            statistics, updated during training.
        settle: the share of ``over`` after which running statistics stop.
        over: frames; ``None`` never stops them.
        constants: of components that did not vary in one environment's random frames; ``scaled`` divides them
            by TorchRL's smallest deviation, 1e-6, as in its tutorial.
    """
    if in_keys is None:
        in_keys = ["observation"] if env is None else vector_keys(env)
    if not in_keys:
        return None
    if frames is None:
        return RunningNorm(in_keys, inf if over is None else settle * over)
    norm_class = FixedNorm if constants == "centred" else ObservationNorm
    transforms = [norm_class(in_keys=[key]) for key in in_keys]
    return transforms[0] if len(transforms) == 1 else Compose(*transforms)


class FixedNorm(ObservationNorm):
    """TorchRL's ``ObservationNorm``, which does not scale constant components: they may vary later."""


class RunningNorm(VecNormV2):
    """TorchRL's ``VecNormV2`` with statistics shared by all environments and its output clipped to ``CLIP``.

    With a low learning rate a policy cannot follow changing statistics, and a change of one per cent can make
    it fail; they stop changing after ``until`` observations.

    Args:
        in_keys: observation entries.
        until: observations after which the statistics are frozen.

    Attributes:
        earlier: observations of another run that the statistics began with.
    """

    frozen: bool
    earlier = 0

    def __init__(self, in_keys: list[NestedKey], until: float = inf) -> None:
        super().__init__(in_keys, decay=1.0, reduce_batch_dims=True)  # the default decay's scale is biased
        self.until = until

    def _maybe_stateful_init(self, data: TensorDictBase) -> None:
        if set(self.in_keys) <= set(data.keys(True, True)):  # else init_normalizers names what is missing
            super()._maybe_stateful_init(data)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        frozen = self.frozen
        if self.num_observations:  # TorchRL would count all environments again if some are reset
            rows = tensordict_reset.select(*self.in_keys)[_get_reset("_reset", tensordict).squeeze(-1)]
            self._stateful_update(rows)
            self.frozen = True
        result = super()._reset(tensordict, tensordict_reset)
        self.frozen = frozen
        return result

    def _stateful_update(self, data: TensorDictBase) -> None:
        if self.num_observations - self.earlier < self.until:
            super()._stateful_update(data)
            # Rounding may make a constant's mean square less than its squared mean, and the deviation NaN.
            for mean, square in zip(self._loc.values(True, True), self._var.values(True, True), strict=True):
                torch.maximum(square, mean.square(), out=square)

    def get_extra_state(self) -> dict[str, Any]:
        """The statistics, and :attr:`earlier` if not 0."""
        state = super().get_extra_state()
        return {**state, "earlier": torch.tensor(self.earlier)} if self.earlier else state

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores :meth:`get_extra_state`."""
        statistics = {name: value for name, value in state.items() if name != "earlier"}
        super().set_extra_state(statistics)
        self.earlier = int(state.get("earlier", 0))

    def to_observation_norm(self) -> Compose:
        """The same transform with the current statistics, without an environment."""
        return Compose(super().to_observation_norm(), ClipTransform(self.out_keys, low=-CLIP, high=CLIP))

    @property
    def num_observations(self) -> int:
        """Observations in the statistics, including the first of each episode."""
        return 0 if self._count is None else int(max(self._count.values(True, True)))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        result = super()._step(tensordict, next_tensordict)
        for key in self.out_keys:
            if (value := result.get(key, None)) is not None:
                result.set(key, value.clamp(-CLIP, CLIP))
        return result


def transforms_read_by(policy: TensorDictModuleBase, env: TransformedEnv) -> list[Transform]:
    """The transforms of ``env`` whose output a policy reads, in order."""
    read_keys, transforms = set(policy.in_keys), list[Transform]()
    for transform in reversed(list(env.transform)):
        if read_keys & set(transform.out_keys):
            transforms.insert(0, transform)
            read_keys |= set(transform.in_keys)
    return transforms


def detach_transform(transform: Transform) -> Transform:
    """A transform without its environment; running statistics are frozen as they are."""
    return getattr(transform, "to_observation_norm", transform.clone)()


def reward_scaling(scale: float | None = None, gamma: Fraction = 0.99) -> Transform:
    """Scales rewards by ``scale``, or by :class:`RunningRewardScaling` if ``None``."""
    return RunningRewardScaling(gamma) if scale is None else FixedRewardScaling(loc=0.0, scale=scale)


class FixedRewardScaling(RewardScaling):
    """TorchRL's ``RewardScaling``, also for reward specs with bounds, such as signs."""

    def transform_reward_spec(self, reward_spec: TensorSpec) -> TensorSpec:
        """The spec without bounds."""
        return super().transform_reward_spec(without_bounds(reward_spec))


def without_bounds(spec: TensorSpec) -> TensorSpec:
    """A spec without bounds, entry by entry."""
    if isinstance(spec, Composite):
        entries = {key: without_bounds(subspec) for key, subspec in spec.items()}
        return Composite(entries, shape=spec.shape, device=spec.device)
    return Unbounded(spec.shape, device=spec.device, dtype=spec.dtype)


class RunningRewardScaling(Transform):
    """Transform that divides rewards by the running deviation of their discounted return.

    As Gymnasium's ``NormalizeReward``: returns restart with episodes, and the variance is over all
    environments (Chan et al. 1979). The mean is not subtracted, which keeps the sign of rewards.

    Args:
        gamma: the discount.
        limit: scaled rewards are clipped to it.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor
    discounted: Tensor

    def __init__(self, gamma: float = 0.99, limit: float = CLIP) -> None:
        super().__init__(in_keys=["reward"], out_keys=["reward"])
        self.gamma, self.limit = gamma, limit
        initial_values = {"count": 1e-4, "mean": 0.0, "variance": 1.0, "discounted": 0.0}  # of Gymnasium
        for name, value in initial_values.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if self.discounted.ndim:
            reset_mask = _get_reset("_reset", tensordict)
            self.discounted = torch.where(expand_as_right(reset_mask, self.discounted), 0.0, self.discounted)
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        reward = next_tensordict.get("reward")
        self.discounted = self.discounted * self.gamma + reward
        self.update(self.discounted)
        scaled = reward / (self.variance + 1e-8).sqrt().to(reward.dtype)
        return next_tensordict.set("reward", scaled.clamp(-self.limit, self.limit))

    def update(self, returns: Tensor) -> None:
        """Merges mean and variance of ``returns``, one for each environment, into the running ones."""
        size, total = returns.numel(), self.count + returns.numel()
        difference = returns.mean() - self.mean
        square_sum = self.variance * self.count + returns.var(unbiased=False) * size
        self.variance = (square_sum + difference.square() * self.count * size / total) / total
        self.mean = self.mean + difference * size / total
        self.count = total


def random_truncation(prob: float | None, longest: int | None = None) -> Transform | None:
    """:class:`RandomHorizon`; ``None`` if ``prob`` is ``None``."""
    return None if prob is None else RandomHorizon(prob, longest)


class RandomHorizon(RandomTruncationTransform):
    """TorchRL's random truncation, up to the environment's own time limit and with truncations marked.

    Environments that all reach the time limit restart at the same step, so that for many updates no batch
    has the beginning of an episode. Truncating some episodes at random spreads their beginnings. Without a
    time limit, and in evaluations, nothing is truncated. Values bootstrap as at the time limit. ``cut_short``
    marks these truncations; logged returns are those of whole episodes.

    Args:
        prob: probability that an episode is truncated, at a uniform step; first episodes always are.
        longest: greatest step of truncation, if below the time limit. Batches then have more beginnings, for
            environments whose episodes are soon lost and then long.
    """

    def __init__(self, prob: float, longest: int | None = None) -> None:
        super().__init__(1, NEVER, prob)
        self.longest = longest
        for name in ("_horizons", "_first_episode"):  # buffers, so that they are in checkpoints
            delattr(self, name)
            self.register_buffer(name, None)

    def set_container(self, container: Transform | EnvBase) -> None:
        """Reads the environment's time limit."""
        super().set_container(container)
        if isinstance(self.parent, EnvBase) and (limit := time_limit(self.parent)):
            self.max_horizon = limit if self.longest is None else min(limit, self.longest)

    def _validate_step_counter_registration(self) -> None:
        """Postponed to the first reset: a normalizer without statistics hides the specs above it."""

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if "step_count" not in tensordict_reset:
            raise UserError("transforms.random_truncation: add torchrl.envs.StepCounter before it.")
        result = super()._reset(tensordict, tensordict_reset)
        return result.set("cut_short", torch.zeros_like(result.get("done")))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        done = next_tensordict.get("done").clone()
        result = super()._step(tensordict, next_tensordict)
        return result.set("cut_short", result.get("done") & ~done)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds ``cut_short``."""
        shape = (*observation_spec.shape, 1)
        observation_spec["cut_short"] = Binary(1, shape, device=observation_spec.device, dtype=torch.bool)
        return observation_spec


class ActionMask(envs.ActionMask):
    """TorchRL's ``ActionMask`` for random actions, which also accepts empty masks at the end of an episode.

    An empty mask at an end becomes all valid, since nobody acts then. The mask is in the ``state_dict``, for
    resumed runs with random actions.

    Args:
        action_key: of the action.
        mask_key: of its mask.
        label: what a message calls the environment.
    """

    def __init__(self, action_key: NestedKey, mask_key: NestedKey, label: str) -> None:
        super().__init__(action_key, mask_key)
        self.label = label

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        key, spec = self.in_keys[1], self.action_spec
        mask = next_tensordict.get(key).bool()
        is_multi = isinstance(spec, MultiCategorical)
        choice_masks = mask.split(choice_sizes(spec), -1) if is_multi else [mask]
        is_empty = torch.stack([~choice.any(-1) for choice in choice_masks]).any(0).unsqueeze(-1)
        if is_empty.any():
            done = next_tensordict.get("done", torch.zeros_like(is_empty))
            is_done = done.reshape(*done.shape[:-1], *[1] * (mask.ndim - done.ndim + 1))
            if (is_empty & ~is_done).any():
                raise UserError(
                    f"{self.label}: every {'option of a choice' if is_multi else 'action'} is invalid, and "
                    "the episode continues. End it there, or allow an action that does nothing."
                )
            mask = mask | is_empty
        return super()._call(next_tensordict.set(key, mask))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Makes the mask's spec boolean."""
        spec = observation_spec[self.in_keys[1]]
        mask_spec = Binary(spec.shape[-1], spec.shape, device=spec.device, dtype=torch.bool)
        observation_spec[self.in_keys[1]] = mask_spec
        return observation_spec

    def get_extra_state(self) -> dict[str, Any]:
        """The current mask, once an episode has begun."""
        mask = self.action_spec.mask
        return {} if mask is None else {"mask": mask}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restores :meth:`get_extra_state`."""
        self.action_spec.update_mask(state.get("mask"))


def action_scaling(env: EnvBase | None = None) -> Transform | None:
    """:class:`ActionScaling` for continuous actions, ``None`` for discrete ones."""
    key = "action" if env is None else env.action_keys[0]
    is_continuous = env is None or env.full_action_spec_unbatched[key].dtype.is_floating_point
    return ActionScaling([key]) if is_continuous else None


def action_clipping(env: EnvBase | None = None) -> Transform | None:
    """:class:`ActionClipping` for continuous actions, ``None`` for discrete ones."""
    scaling = action_scaling(env)
    return None if scaling is None else ActionClipping(scaling.in_keys_inv)


class ActionScaling(envs.ActionScaling):
    """TorchRL's ``ActionScaling`` to [-1, 1], whose unscaled actions never exceed the bounds by rounding."""

    def _init_from_spec(self, leaf_spec: TensorSpec) -> None:
        super()._init_from_spec(leaf_spec)
        self.bounds = leaf_spec.space.low, leaf_spec.space.high

    def _inv_apply_transform(self, action: Tensor) -> Tensor:
        unscaled = super()._inv_apply_transform(action)  # first, as it sets the bounds
        return unscaled.clamp(*(bound.to(action.device) for bound in self.bounds))

    def for_rows(self) -> "ActionScaling":
        """The same transform without an environment, for rows ``[rows, ...]`` of single environments."""
        transform = type(self)(self.in_keys_inv)
        transform._init_from_spec(self.parent.full_action_spec_unbatched[self.in_keys_inv[0]])
        return transform


class ActionClipping(ActionScaling):
    """Transform that clips actions to the environment's bounds on their way to it.

    For Gaussian policies without squashing, as in Stable-Baselines3's and CleanRL's PPO: the loss reads the
    unclipped action.
    """

    def _init_from_spec(self, leaf_spec: TensorSpec) -> None:
        super()._init_from_spec(leaf_spec)
        self.loc.zero_()
        self.scale.fill_(1.0)

    def _transform_leaf(self, leaf_spec: TensorSpec) -> TensorSpec:
        self._ensure_initialized()
        return leaf_spec.clone()  # bounded: random actions and squashed policies stay within
