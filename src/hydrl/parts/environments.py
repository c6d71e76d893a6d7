"""Environments: one maker per choice, one stack of transforms, seeded before anything looks at them."""

from collections.abc import Callable, Sequence
from functools import partial
from inspect import signature
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from tensordict import NestedKey, TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch.nn import UninitializedBuffer
from torchrl.data import Bounded, Categorical, Composite, OneHot, TensorSpec
from torchrl.envs import (
    Compose,
    EnvBase,
    GymWrapper,
    ObservationNorm,
    RandomTruncationTransform,
    RewardSum,
    SerialEnv,
    Transform,
    TransformedEnv,
    UnaryTransform,
    VecNorm,
    VecNormV2,
)
from torchrl.modules.utils import get_env_transforms_from_module

from hydrl.errors import UserError
from hydrl.parts.tasks import adapted, copies, has_room, is_of_the_task, tell_of_mask, tell_of_masks
from hydrl.parts.transforms import CopiedTensors, FixedNorm

MakeEnv = Callable[..., EnvBase]
MakeTransform = Callable[[], Transform | None]


def gymnasium_env(
    id: str, num_envs: int = 1, device: str = "cpu", observe: list[int] | None = None, **kwargs: Any
) -> EnvBase:
    """A Gymnasium task: one environment, or ``num_envs`` of them stepped together in this process.

    TorchRL pays its cost per step of the whole vector, so ten environments cost little more than one.
    ``GymEnv(id, num_envs=k)`` is not used: it resets inside ``step`` and returns all-zero observations
    at episode ends.

    Args:
        id: a registered Gymnasium id, such as ``CartPole-v1``.
        num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``.
        device: where observations and actions live; the simulator itself runs on the CPU.
        observe: the places of the numbers that are seen, others being hidden; ``None`` shows all.
        **kwargs: passed on to ``gymnasium.make``, to each environment copies of its own.

    Raises:
        UserError: for an id Gymnasium does not know, a missing package, a keyword the task refuses or spaces
            that nothing here learns in.
        Exception: whatever the task's own code raises, as it raised it.
    """

    def make() -> gymnasium.Env:
        task = gymnasium.make(id, **copies(kwargs))
        tell_of_masks(task, f"env.id={id}")
        return adapted(task, observe, f"env.id={id}")

    try:
        if num_envs == 1:
            return GymWrapper(make(), device=device)
        vector = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
        return GymVector(vector, device=device)
    except (gymnasium.error.Error, ImportError, TypeError) as error:
        if is_of_the_task(error):
            raise
        reason = " ".join(str(error).split())
        if id.startswith("ALE/"):  # which importing the package registers
            reason = f"Atari is a package of its own; pip install ale-py, and write env.id=ale_py:{id}"
        elif isinstance(error, gymnasium.error.NameNotFound):
            module, _, name = id.rpartition(":")
            reason += (
                f' {module} does not register it, as gymnasium.register("{name}", CLASS) would'
                if module
                else f" One of your own is env.id=MODULE:{id}, whose module registers it"
            )
        elif "gymnasium[box2d]" in reason:
            reason = "it needs Box2D; pip install 'hydrl[box2d]'"
        raise UserError(f"env.id={id} could not be made: {reason}") from error


class GymVector(GymWrapper):
    """Tasks stepped together, of one observation vector and one reward each, as :func:`adapted` makes them.

    It gives TorchRL's numbers. The two methods of TorchRL's own class look anew at each step for the kind of
    every space; with these acting takes 7 % (ten double pendulums) to 14 % (16 CartPoles) less time.
    """

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = self.read_action(tensordict.get(self.action_key))
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self.told(observation, terminated, truncated, reward=torch.as_tensor(reward).float())

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if tensordict is not None and (chosen := tensordict.get("_reset", None)) is not None:
            kwargs["options"] = {"reset_mask": chosen.view(self.batch_size).numpy(force=True)}
        observation, _ = self._env.reset(**kwargs)
        return self.told(observation, *np.zeros((2, *self.batch_size), dtype=bool))

    def told(
        self, observation: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, **more: torch.Tensor
    ) -> TensorDictBase:
        """What Gymnasium says, ``[num_envs, ...]``, as TorchRL has it: a number is ``[num_envs, 1]``."""
        ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        entries = {name: torch.as_tensor(each) for name, each in ends.items()} | more
        entries = {name: each.unsqueeze(-1) for name, each in entries.items()}
        entries["observation"] = torch.as_tensor(observation)
        return TensorDict(entries, self.batch_size, device=self.device)


class SteadySerialEnv(SerialEnv):
    """Leaves PyTorch its number of threads: closing, TorchRL's takes more, and these round sums differently.

    One that nobody closed closes when it is collected, and that may be in the middle of a later run.
    """

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes every environment."""
        threads = torch.get_num_threads()
        super().close(raise_if_closed=raise_if_closed)
        torch.set_num_threads(threads)


def make_base_env(make: MakeEnv, num_envs: int, device: str, render: bool = False) -> EnvBase:
    """``num_envs`` environments without transforms; any TorchRL environment class will do as ``make``.

    One whose constructor takes ``num_envs``, as VMAS' does, steps them all itself.
    """
    maker: Any = getattr(make, "func", make)
    if maker is gymnasium_env and render:
        make = partial(make, render_mode="rgb_array")
    is_class = isinstance(maker, type)
    constructor = maker.__init__ if is_class else maker  # TorchRL's metaclass hides a class's own signature
    if "num_envs" in signature(constructor).parameters:
        return fresh(make, num_envs=num_envs, device=device)
    one = partial(fresh, make, device=device)
    return one() if num_envs == 1 else SteadySerialEnv(num_envs, one)


def fresh(make: MakeEnv, **given: Any) -> EnvBase:
    """An environment from a copy of its configuration, which it may change as it likes."""
    if isinstance(make, partial):
        make = partial(make.func, *make.args, **copies(make.keywords))
    return make(**given)


def make_env(
    make: MakeEnv,
    transforms: Sequence[MakeTransform],
    *,
    num_envs: int = 1,
    device: str = "cpu",
    normaliser: dict[str, Any] | None = None,
    seed: int | None = None,
    render: bool = False,
    policy: TensorDictModuleBase | None = None,
) -> TransformedEnv:
    """An environment under its transforms.

    Args:
        make: builds the base environment.
        transforms: builders, applied in order, except that ``RewardSum`` always stands first, and is added
            where none is named, because returns are reported raw; what builds ``None`` is left out. The
            return of several agents, which all else reads as ``episode_reward``, is the mean of theirs.
        num_envs: environments stepped together.
        device: where the tensors live.
        normaliser: state of an already initialised stack (see :func:`normaliser_state`); observation
            normalisers then use these statistics instead of collecting their own.
        seed: seeds the environment here, before anything can reset it.
        render: a Gymnasium task is made so that ``render()`` gives its picture.
        policy: what plays whole episodes in it, to evaluate; a memory finds its hidden states and the starts
            of episodes there.
    """
    left_out = type(None) if policy is None else (type(None), RandomTruncationTransform)
    made = [each for transform in transforms if not isinstance(each := transform(), left_out)]
    stack = sorted(made, key=lambda each: not isinstance(each, RewardSum))
    if not (stack and isinstance(stack[0], RewardSum)):
        stack.insert(0, RewardSum())
    base = make_base_env(make, num_envs, device, render)
    if any("action_mask" in (key, key[-1]) for key in base.observation_spec.keys(True, True)):
        tell_of_mask(f"{type(base).__name__}", "its observation's action_mask")
    if isinstance(key := base.reward_keys[0], tuple):
        return_key = (*key[:-1], f"episode_{key[-1]}")
        stack.insert(1, UnaryTransform([return_key], ["episode_reward"], fn=mean_over_agents))
    if getattr(make, "func", make) is not gymnasium_env:  # whose tasks are handed copies already
        stack.append(CopiedTensors())
    if policy is not None and restarts_with_episodes(policy):
        stack.append(get_env_transforms_from_module(policy))
    env = TransformedEnv(base, Compose(*stack))
    if normaliser is not None:
        load_normaliser(env, normaliser)
    if seed is not None:
        env.set_seed(seed)
    return env


def mean_over_agents(values: torch.Tensor) -> torch.Tensor:
    """``[..., agents, 1]`` to ``[..., 1]``."""
    return values.mean(-2)


def restarts_with_episodes(policy: TensorDictModuleBase) -> bool:
    """Whether it must be told where episodes begin, as a memory and Ornstein-Uhlenbeck noise must.

    TorchRL then adds what it needs to an environment: ``InitTracker``, and primers of hidden states.
    """
    return "is_init" in policy.in_keys or any(hasattr(each, "is_init_key") for each in policy.modules())


def initialise_normalisers(
    env: TransformedEnv, frames: int | None, known: dict[str, Any] | None = None
) -> None:
    """Takes every ``ObservationNorm``'s mean and deviation from at least ``frames`` random frames.

    One environment does it as the TorchRL tutorial does. Several are not left to ``init_stats``, which stops
    them all when the first episode ends: whatever comes late in an episode would look several times too wide.

    Args:
        env: seeded.
        frames: at least so many; needed where there is one.
        known: an earlier :func:`normaliser_state`, whose statistics are used instead.

    Raises:
        UserError: for an ``ObservationNorm`` over several entries, which need statistics of their own, or
            without frames.
    """
    for position, transform in enumerate(normalisers(env)):
        if not isinstance(transform, ObservationNorm):
            require_entries(transform.parent.observation_spec, transform.in_keys)
        elif known is not None:
            fill(transform, known[str(position)])
        elif not transform.initialized:
            if len(transform.in_keys) > 1:
                raise UserError(f"in_keys={transform.in_keys}: give each entry an ObservationNorm of its own")
            if frames is None:
                raise UserError("init_stats_frames=null: ObservationNorm takes statistics; use 1_000")
            require_entries(transform.parent.observation_spec, transform.in_keys)
            if env.batch_dims:
                standardise(transform, env.numel(), frames)
            else:
                transform.init_stats(num_iter=frames, reduce_dim=0, cat_dim=0)
                if isinstance(transform, FixedNorm):
                    leave_constants(transform)


def require_entries(spec: Composite, in_keys: Sequence[NestedKey]) -> None:
    """Refuses entries that are not there, or that normalisers and networks cannot read.

    Raises:
        UserError: naming those there are.
    """
    given = spec.keys(True, True)
    for key in in_keys:
        if key not in given:
            raise UserError(f"in_keys={in_keys}: the environment gives {', '.join(map(str, given))}")
        kind, shape = spec[key].dtype, list(spec[key].shape)
        if not kind.is_floating_point or len(shape) <= spec.ndim:
            raise UserError(
                f"in_keys={in_keys}: {key} is {kind} of shape {shape}, and vectors of floats are read; make "
                "it one with the transform DTypeCastTransform, OneHotTransform or UnsqueezeTransform"
            )


def standardise(transform: ObservationNorm, num_envs: int, frames: int) -> None:
    """Fits ``transform`` to ``frames`` random frames of the environment below it, episode after episode.

    A component that never moved is centred and not scaled.
    """
    rollout = transform.parent.rollout(-(-frames // num_envs), break_when_any_done=False)
    observation = rollout[transform.in_keys[0]].flatten(0, rollout.ndim - 1)
    mean, deviation = observation.mean(0), observation.std(0)
    scale = deviation.where(moved(mean, deviation, transform.eps), 1.0)
    if not transform.standard_normal:  # the transform multiplies by the scale and adds loc
        mean, scale = -mean / scale, 1 / scale
    fill(transform, {"loc": mean, "scale": scale})


def leave_constants(transform: ObservationNorm) -> None:
    """Unscales what never moved: TorchRL divides it by its least deviation, and it would move by millions."""
    loc, scale = transform.loc, transform.scale
    if not transform.standard_normal:  # the transform multiplies by the scale and adds loc
        loc, scale = -loc / scale, 1 / scale
    constant = ~moved(loc, scale, transform.eps)
    scale.copy_(scale.where(~constant, 1.0))
    if not transform.standard_normal:
        transform.loc.copy_(transform.loc.where(~constant, -loc))
        transform.scale.copy_(transform.scale.where(~constant, 1.0))


def moved(mean: torch.Tensor, deviation: torch.Tensor, eps: float) -> torch.Tensor:
    """Whether a component moved by more than rounding its mean would have it seem to."""
    return deviation > 1.001 * eps * mean.abs().clamp_min(1.0)


def fill(transform: ObservationNorm, statistics: dict[str, torch.Tensor]) -> None:
    """Writes ``loc`` and ``scale`` into a transform, giving them their shapes if they have none yet."""
    for name, value in statistics.items():
        buffer = getattr(transform, name)
        if isinstance(buffer, UninitializedBuffer):
            buffer.materialize(value.shape, dtype=value.dtype)
        buffer.copy_(value)


def normalisers(env: TransformedEnv) -> list[ObservationNorm | VecNorm | VecNormV2]:
    """The transforms that hold statistics, in order."""
    return [each for each in env.transform if isinstance(each, ObservationNorm | VecNorm | VecNormV2)]


def normaliser_state(env: TransformedEnv) -> dict[str, Any]:
    """The statistics of all normalisers, copied, keyed ``"0"``, ``"1"``, ... in order: tensors only."""
    state: dict[str, Any] = {}
    for position, transform in enumerate(normalisers(env)):
        if isinstance(transform, ObservationNorm):
            statistics = {"loc": transform.loc, "scale": transform.scale}
        else:
            statistics = transform.get_extra_state()
        state[str(position)] = {key: torch.as_tensor(value).clone() for key, value in statistics.items()}
    return state


def load_normaliser(env: TransformedEnv, state: dict[str, Any]) -> None:
    """Puts the statistics of :func:`normaliser_state` into ``env`` and freezes running normalisers."""
    for transform, statistics in zip(normalisers(env), state.values(), strict=True):
        if isinstance(transform, ObservationNorm):
            fill(transform, statistics)
        else:
            transform.set_extra_state(statistics)
            transform.freeze()


def action_spec(env: EnvBase) -> TensorSpec:
    """What one environment takes: ``[agents, ...]`` of several, a ``Composite`` of several groups of them."""
    try:
        spec = env.action_spec_unbatched
    except RuntimeError:  # a normaliser without statistics yet hides the specs above it
        spec = env.base_env.action_spec_unbatched
    keys = spec.keys(True, True) if isinstance(spec, Composite) else []
    return spec[next(iter(keys))] if len(keys) == 1 else spec


def action_kind(env: EnvBase) -> str:
    """``discrete``, ``continuous``, the same for several agents, or what no algorithm here can act in.

    It resets nothing.
    """
    spec = action_spec(env)
    if type(spec) in (OneHot, Categorical):  # their subclasses are several choices at once
        kind = "discrete"
    elif isinstance(spec, Bounded) and spec.dtype.is_floating_point:
        kind = "continuous" if has_room(spec.space.low, spec.space.high) else "not finitely bounded"
    else:
        kind = type(spec).__name__
    return f"multi-agent {kind}" if isinstance(env.base_env.action_keys[0], tuple) else kind
