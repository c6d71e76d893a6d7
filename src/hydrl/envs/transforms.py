"""Transforms that TorchRL has not, or has otherwise: copies, statistics, random ends, units of actions."""

from math import inf
from typing import Any, Literal

import torch
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
from hydrl.specs import INFO, choice_sizes, vector_keys

CLIP = 10.0  # what is standardised is cut off there, as Stable-Baselines3 and CleanRL do
NEVER = 2**62  # the longest horizon where there is none


class CopyTensors(Transform):
    """Hands copies to an environment and copies of what it gives on, so that neither changes the other's.

    One of TorchRL's kind may give the tensor it goes on writing to, and write to the action it is given.
    """

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        return next_tensordict.clone()

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return tensordict_reset.clone()

    def _inv_call(self, tensordict: TensorDictBase) -> TensorDictBase:
        return tensordict.clone()


class MeanAgentReturn(Transform):
    """Writes ``episode_reward``, the mean of all agents' returns so far, which everything else reads.

    Of several groups each has its own mean among what is told of an episode, ``GROUP/return``.

    Args:
        in_keys: of each group the agents' returns so far, ``[..., agents, 1]``.
    """

    def __init__(self, in_keys: list[NestedKey]) -> None:
        of_groups = [(INFO, f"{key[0]}/return") for key in in_keys] if len(in_keys) > 1 else []
        super().__init__(in_keys=in_keys, out_keys=["episode_reward", *of_groups])

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        returns = [next_tensordict.get(key) for key in self.in_keys]
        whole, *groups = self.out_keys
        next_tensordict.set(whole, torch.cat(returns, -2).mean(-2))
        for key, values in zip(groups, returns, strict=False):
            next_tensordict.set(key, values.mean(-2))
        return next_tensordict

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        return self._call(tensordict_reset)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds them."""
        shape = (*observation_spec.shape, 1)
        for key in self.out_keys:
            observation_spec[key] = Unbounded(shape, device=observation_spec.device)
        return observation_spec


def normalizer(
    in_keys: list[NestedKey] | None,
    frames: int | None,
    settle: float = 1.0,
    over: int | None = None,
    constants: Literal["centred", "scaled"] = "centred",
    env: EnvBase | None = None,
) -> Transform | None:
    """Standardises observations, by statistics of random frames or by running ones.

    Args:
        in_keys: observation entries; ``None``: all vectors that ``env`` shows, and where it shows pictures
            alone there is nothing to standardise.
        frames: of random play, see :func:`hydrl.envs.init_normalizers`; ``None`` goes on
            updating while training collects.
        settle: the share of ``over`` after which running statistics stand still.
        over: frames; ``None`` lets them run for ever.
        constants: what never moved in the random frames of one environment; ``scaled`` is divided by the
            least deviation of TorchRL, a millionth, as in its tutorial.
    """
    if in_keys is None:
        in_keys = ["observation"] if env is None else vector_keys(env)
    if not in_keys:
        return None
    if frames is None:
        return RunningNorm(in_keys, inf if over is None else settle * over)
    kind = FixedNorm if constants == "centred" else ObservationNorm
    transforms = [kind(in_keys=[key]) for key in in_keys]
    return transforms[0] if len(transforms) == 1 else Compose(*transforms)


class FixedNorm(ObservationNorm):
    """TorchRL's, by whose statistics a constant is centred and not scaled: it may move later."""


class RunningNorm(VecNormV2):
    """TorchRL's, with one set of statistics for all environments and its output within ``LIMIT``.

    Once the learning rate has gone down, a policy can no longer follow statistics that move: one that runs
    well by some of them falls by others a per cent away. So they are given time to stand still.

    Args:
        in_keys: observation entries.
        until: observations after which they do.

    Attributes:
        earlier: observations that another run saw, whose statistics these go on from.
    """

    frozen: bool
    earlier = 0

    def __init__(self, in_keys: list[NestedKey], until: float = inf) -> None:
        super().__init__(in_keys, decay=1.0, reduce_batch_dims=True)  # the default decay's scale is biased
        self.until = until

    def _maybe_stateful_init(self, data: TensorDictBase) -> None:
        if set(self.in_keys) <= set(data.keys(True, True)):  # else initialise_normalisers tells what lacks
            super()._maybe_stateful_init(data)

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        frozen = self.frozen
        if self.num_observations:  # TorchRL takes in all environments once more where some are reset
            rows = tensordict_reset.select(*self.in_keys)[_get_reset("_reset", tensordict).squeeze(-1)]
            self._stateful_update(rows)
            self.frozen = True
        begun = super()._reset(tensordict, tensordict_reset)
        self.frozen = frozen
        return begun

    def _stateful_update(self, data: TensorDictBase) -> None:
        if self.num_observations - self.earlier < self.until:
            super()._stateful_update(data)
            # A constant's mean square may be rounded to less than its mean's square, whose root is no number.
            for mean, square in zip(self._loc.values(True, True), self._var.values(True, True), strict=True):
                torch.maximum(square, mean.square(), out=square)

    def get_extra_state(self) -> dict[str, Any]:
        """The statistics, with :attr:`earlier` where there is something of it."""
        state = super().get_extra_state()
        return {**state, "earlier": torch.tensor(self.earlier)} if self.earlier else state

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`get_extra_state`."""
        statistics = {name: value for name, value in state.items() if name != "earlier"}
        super().set_extra_state(statistics)
        self.earlier = int(state.get("earlier", 0))

    def to_observation_norm(self) -> Compose:
        """The same by its present statistics, without an environment."""
        return Compose(super().to_observation_norm(), ClipTransform(self.out_keys, low=-CLIP, high=CLIP))

    @property
    def num_observations(self) -> int:
        """Observations that the statistics are of, those that an episode begins with among them."""
        return 0 if self._count is None else int(max(self._count.values(True, True)))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        following = super()._step(tensordict, next_tensordict)
        for key in self.out_keys:
            if (value := following.get(key, None)) is not None:
                following.set(key, value.clamp(-CLIP, CLIP))
        return following


def transforms_read_by(policy: TensorDictModuleBase, env: TransformedEnv) -> list[Transform]:
    """The transforms of an environment whose outputs a policy reads, in order."""
    read, transforms = set(policy.in_keys), list[Transform]()
    for transform in reversed(list(env.transform)):
        if read & set(transform.out_keys):
            transforms.insert(0, transform)
            read |= set(transform.in_keys)
    return transforms


def detach_transform(transform: Transform) -> Transform:
    """A transform without its environment; one of running statistics is another one, by those of now."""
    return getattr(transform, "to_observation_norm", transform.clone)()


def reward_scaling(scale: float | None = None, gamma: float = 0.99) -> Transform:
    """By ``scale``, or :class:`RunningRewardScaling` where that is ``None``."""
    return RunningRewardScaling(gamma) if scale is None else FixedRewardScaling(loc=0.0, scale=scale)


class FixedRewardScaling(RewardScaling):
    """TorchRL's, for rewards that have bounds, too, as their signs have."""

    def transform_reward_spec(self, reward_spec: TensorSpec) -> TensorSpec:
        """Without bounds."""
        return super().transform_reward_spec(without_bounds(reward_spec))


def without_bounds(spec: TensorSpec) -> TensorSpec:
    """A spec of numbers that may be any, entry by entry."""
    if isinstance(spec, Composite):
        entries = {key: without_bounds(subspec) for key, subspec in spec.items()}
        return Composite(entries, shape=spec.shape, device=spec.device)
    return Unbounded(spec.shape, device=spec.device, dtype=spec.dtype)


class RunningRewardScaling(Transform):
    """Divides rewards by the running deviation of their discounted return, as Gymnasium's NormalizeReward.

    The return of each environment begins anew with its episodes, and the variance is that of all of them
    together, merged step by step (Chan et al. 1979). The mean stays where it is, as the sign of a reward
    tells good from bad. All it knows is in its ``state_dict``.

    Args:
        gamma: the discount.
        limit: what is scaled is cut off there.
    """

    count: Tensor
    mean: Tensor
    variance: Tensor
    discounted: Tensor

    def __init__(self, gamma: float = 0.99, limit: float = CLIP) -> None:
        super().__init__(in_keys=["reward"], out_keys=["reward"])
        self.gamma, self.limit = gamma, limit
        start = {"count": 1e-4, "mean": 0.0, "variance": 1.0, "discounted": 0.0}  # of Gymnasium
        for name, value in start.items():
            self.register_buffer(name, torch.tensor(value, dtype=torch.float64))

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if self.discounted.ndim:
            begun = _get_reset("_reset", tensordict)
            self.discounted = torch.where(expand_as_right(begun, self.discounted), 0.0, self.discounted)
        return tensordict_reset

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        reward = next_tensordict.get("reward")
        self.discounted = self.discounted * self.gamma + reward
        self.update(self.discounted)
        scaled = reward / (self.variance + 1e-8).sqrt().to(reward.dtype)
        return next_tensordict.set("reward", scaled.clamp(-self.limit, self.limit))

    def update(self, returns: Tensor) -> None:
        """Merges the mean and variance of ``returns``, one of each environment, into the running ones."""
        size, total = returns.numel(), self.count + returns.numel()
        apart = returns.mean() - self.mean
        squares = self.variance * self.count + returns.var(unbiased=False) * size
        self.variance = (squares + apart.square() * self.count * size / total) / total
        self.mean = self.mean + apart * size / total
        self.count = total


def random_truncation(prob: float | None, longest: int | None = None) -> Transform | None:
    """:class:`RandomHorizon`, or none where ``prob`` is ``None``."""
    return None if prob is None else RandomHorizon(prob, longest)


class RandomHorizon(RandomTruncationTransform):
    """Cuts episodes short at random, so that environments stepped together do not begin theirs at once.

    They do where all learn to last until the task's time limit, and where nothing else ends an episode: for
    many updates no beginning is seen then, and what to do there is forgotten. It is TorchRL's transform for
    tasks whose limit Gymnasium knows; others it leaves alone, and evaluations do without it. Values bootstrap
    at a cut as at the limit. ``cut_short`` tells it from an end of the task's own: returns count whole
    episodes.

    Args:
        prob: of each episode, that its end is drawn evenly from all steps; first ones always are.
        longest: steps that it is drawn from, where fewer than the time limit. What is seen is then how
            episodes begin, where these are soon lost for good and what follows would fill a memory.
    """

    def __init__(self, prob: float, longest: int | None = None) -> None:
        super().__init__(1, NEVER, prob)
        self.longest = longest
        for name in ("_horizons", "_first_episode"):  # buffers, so that they are in checkpoints
            delattr(self, name)
            self.register_buffer(name, None)

    def set_container(self, container: Transform | EnvBase) -> None:
        """Looks for the time limit."""
        super().set_container(container)
        if isinstance(self.parent, EnvBase) and (limit := time_limit(self.parent)):
            self.max_horizon = limit if self.longest is None else min(limit, self.longest)

    def _validate_step_counter_registration(self) -> None:
        """Left to the first reset: a normaliser without statistics yet hides the specs above it."""

    def _reset(self, tensordict: TensorDictBase, tensordict_reset: TensorDictBase) -> TensorDictBase:
        if "step_count" not in tensordict_reset:
            raise UserError("transforms.random_truncation needs the transform StepCounter before it")
        begun = super()._reset(tensordict, tensordict_reset)
        return begun.set("cut_short", torch.zeros_like(begun.get("done")))

    def _step(self, tensordict: TensorDictBase, next_tensordict: TensorDictBase) -> TensorDictBase:
        done = next_tensordict.get("done").clone()
        following = super()._step(tensordict, next_tensordict)
        return following.set("cut_short", following.get("done") & ~done)

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Adds ``cut_short``."""
        shape = (*observation_spec.shape, 1)
        observation_spec["cut_short"] = Binary(1, shape, device=observation_spec.device, dtype=torch.bool)
        return observation_spec


class ActionMask(envs.ActionMask):
    """TorchRL's, by which random actions are allowed ones, for a task that allows one while it goes on.

    Where none is as an episode ends, all are: nobody acts there, and what is made of it stays a number.
    What is allowed is in the ``state_dict``, for a resumed run that draws at random.

    Args:
        action_key: of the action.
        mask_key: of the entry that says of each whether it is allowed.
        named: what a message calls the task.
    """

    def __init__(self, action_key: NestedKey, mask_key: NestedKey, named: str) -> None:
        super().__init__(action_key, mask_key)
        self.label = named

    def _call(self, next_tensordict: TensorDictBase) -> TensorDictBase:
        key, spec = self.in_keys[1], self.action_spec
        mask = next_tensordict.get(key).bool()
        several = isinstance(spec, MultiCategorical)
        choices = mask.split(choice_sizes(spec), -1) if several else [mask]
        nothing = torch.stack([~choice.any(-1) for choice in choices]).any(0).unsqueeze(-1)
        if nothing.any():
            done = next_tensordict.get("done", torch.zeros_like(nothing))
            ended = done.reshape(*done.shape[:-1], *[1] * (mask.ndim - done.ndim + 1))
            if (nothing & ~ended).any():
                raise UserError(
                    f"{self.label} forbids every {'option of a choice' if several else 'action'}, and the "
                    "episode goes on; let it end there, or allow one that does nothing"
                )
            mask = mask | nothing
        return super()._call(next_tensordict.set(key, mask))

    def transform_observation_spec(self, observation_spec: Composite) -> Composite:
        """Truth values, in place of zeros and ones."""
        spec = observation_spec[self.in_keys[1]]
        mask_spec = Binary(spec.shape[-1], spec.shape, device=spec.device, dtype=torch.bool)
        observation_spec[self.in_keys[1]] = mask_spec
        return observation_spec

    def get_extra_state(self) -> dict[str, Any]:
        """What is allowed, once an episode has begun."""
        mask = self.action_spec.mask
        return {} if mask is None else {"mask": mask}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Goes on from :meth:`get_extra_state`."""
        self.action_spec.update_mask(state.get("mask"))


def action_scaling(env: EnvBase | None = None) -> Transform | None:
    """:class:`ActionScaling` for numbers; the choices that ``env`` may take have no unit, and get none."""
    key = "action" if env is None else env.action_keys[0]
    numbers = env is None or env.full_action_spec_unbatched[key].dtype.is_floating_point
    return ActionScaling([key]) if numbers else None


def action_clipping(env: EnvBase | None = None) -> Transform | None:
    """:class:`ActionClipping` for continuous actions; discrete ones have no bounds, and get none."""
    scaling = action_scaling(env)
    return None if scaling is None else ActionClipping(scaling.in_keys_inv)


class ActionScaling(envs.ActionScaling):
    """TorchRL's: what acts, explores and judges has actions in [-1, 1], whatever the task's unit.

    The task is given none beyond its bounds, which rounding would lead past by a last bit.
    """

    def _init_from_spec(self, leaf_spec: TensorSpec) -> None:
        super()._init_from_spec(leaf_spec)
        self.bounds = leaf_spec.space.low, leaf_spec.space.high

    def _inv_apply_transform(self, action: Tensor) -> Tensor:
        inside = super()._inv_apply_transform(action)  # first, for it looks for the bounds
        return inside.clamp(*(bound.to(action.device) for bound in self.bounds))

    def for_rows(self) -> "ActionScaling":
        """The same without an environment, for rows ``[rows, ...]`` of single ones."""
        transform = type(self)(self.in_keys_inv)
        transform._init_from_spec(self.parent.full_action_spec_unbatched[self.in_keys_inv[0]])
        return transform


class ActionClipping(ActionScaling):
    """Clips actions to the environment's bounds on their way to it; the policy may act beyond them.

    For Gaussian policies that are not squashed, as Stable-Baselines3's and CleanRL's PPO have them: what is
    learned from is the action before it was clipped.
    """

    def _init_from_spec(self, leaf_spec: TensorSpec) -> None:
        super()._init_from_spec(leaf_spec)
        self.loc.zero_()
        self.scale.fill_(1.0)

    def _transform_leaf(self, leaf_spec: TensorSpec) -> TensorSpec:
        self._ensure_initialized()
        return leaf_spec.clone()  # bounded: random actions and squashed policies stay within
