"""Builder of environments: a base environment under its transforms, seeded before any reset."""

import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import (
    Compose,
    EnvBase,
    RandomTruncationTransform,
    RewardSum,
    SerialEnv,
    Transform,
    TransformedEnv,
)
from torchrl.envs.utils import check_env_specs
from torchrl.modules.utils import get_env_transforms_from_module

from hydrl.envs.action_masks import NOT_DISCRETE, warn_mask_ignored
from hydrl.envs.checked_env import copy_kwargs, is_env_error
from hydrl.envs.envpool import envpool_env, gym_maker
from hydrl.envs.evaluation import Evaluation, play_episodes
from hydrl.envs.gymnasium import for_evaluation, gymnasium_env
from hydrl.envs.nash_conv import make_measure
from hydrl.envs.normalization import init_normalizers, load_normalizer, normalizer_state
from hydrl.envs.pettingzoo import PettingZooIO, pettingzoo_env
from hydrl.envs.transforms import ActionMask, CopyTensors, MeanAgentReturn
from hydrl.errors import RunError, UserError
from hydrl.library_setup import warn_of_mujoco
from hydrl.specs import AGENTS, MASK, action_kind, mask_keys, needs_episode_starts

MakeEnv = Callable[..., EnvBase]
MakeTransform = Callable[..., Transform | None]


def make_env(
    make: MakeEnv,
    transforms: Sequence[MakeTransform],
    *,
    num_envs: int = 1,
    device: str = "cpu",
    normalizer: dict[str, Any] | None = None,
    seed: int | None = None,
    render: str | None = None,
    policy: TensorDictModuleBase | None = None,
) -> TransformedEnv:
    """Builds an environment under its transforms.

    Args:
        make: builds the base environment.
        transforms: builders, applied in order; ``RewardSum`` always comes first, so that returns are raw, and
            is added if missing. Builders may return ``None``. With several agents ``episode_reward`` is the
            mean of their returns, and each group's mean is logged, too.
        num_envs: environments stepped together.
        device: where the tensors live.
        normalizer: the state of another environment's normalizers (see :func:`normalizer_state`), which are
            then loaded instead of initialised.
        seed: seeds the environment before anything can reset it.
        render: a Gymnasium render mode: ``rgb_array`` returns images, ``human`` opens a window.
        policy: of an evaluation. Adds the transforms it needs, such as an RNN's primers, and leaves out
            those for training only.
    """
    family = find_family(make)
    if policy is not None:
        make = family.for_evaluation(make)
    base = family.make(make, num_envs, device, render)
    training_only = () if policy is None else RandomTruncationTransform
    built = [
        transform
        for builder in transforms
        for transform in build_transforms(base, builder)
        if not isinstance(transform, training_only)
    ]
    stack = stack_transforms(base, make, built)
    if not family.copies_arrays:
        stack.append(CopyTensors())
    if policy is not None and needs_episode_starts(policy):
        stack.append(get_env_transforms_from_module(policy))
    env = TransformedEnv(base, Compose(*stack))
    if normalizer is not None:
        load_normalizer(env, normalizer)
    if seed is not None:
        env.set_seed(seed)
    return env


def stack_transforms(base: EnvBase, make: MakeEnv, transforms: Sequence[Transform]) -> list[Transform]:
    """Transforms in order, ``RewardSum`` first, with those for action masks and several agents."""
    stack = sorted(transforms, key=lambda transform: not isinstance(transform, RewardSum))
    if not (stack and isinstance(stack[0], RewardSum)):
        stack.insert(0, RewardSum())
    stack[1:1] = mask_transforms(base, make)  # below transforms that take statistics of random frames
    if agent_reward_keys := [key for key in base.reward_keys if isinstance(key, tuple)]:
        stack.insert(1, MeanAgentReturn([(*key[:-1], f"episode_{key[-1]}") for key in agent_reward_keys]))
    return stack


@contextmanager
def explain_spec_errors(target: str) -> Iterator[None]:
    """Explains errors in the block that come from an environment violating its own specs.

    Args:
        target: the dotted name of its maker. Errors of hydrl's own makers and of the environment's own code
            keep their traceback.

    Raises:
        UserError: in place of an error of TorchRL's, for example in a turn-based game.
    """
    try:
        yield
    except (UserError, RunError):
        raise
    except Exception as error:
        if target.startswith("hydrl.") or is_env_error(error):
            raise
        reason = " ".join(str(error).split())
        raise UserError(
            f"env._target_={target}: it violates its own specs under TorchRL's transforms: {reason}. "
            "Check it by torchrl.envs.utils.check_env_specs(ENV); for turn-based games write env=self_play."
        ) from error


def mask_transforms(base: EnvBase, make: MakeEnv) -> list[Transform]:
    """Transforms that keep random actions valid, if the environment gives action masks."""
    maker: Any = getattr(make, "func", make)
    id = getattr(make, "keywords", {}).get("id")
    label = f"env.id={id}" if id else getattr(type(base), "entry_label", maker.__name__)
    if masks := mask_keys(base):
        return [ActionMask(action, mask, label) for action, mask in masks.items()]
    if any(MASK in (key, key[-1]) for key in base.observation_spec.keys(True, True)):
        warn_mask_ignored(label, ("entry", MASK), NOT_DISCRETE)
    return []


def build_transforms(base: EnvBase, builder: MakeTransform) -> list[Transform]:
    """Builds a transform, if any, as a list; builders with a parameter ``env`` get the base environment."""
    built = builder(env=base) if "env" in signature(builder).parameters else builder()
    if built is None:
        return []
    return [*built.transforms] if type(built) is Compose else [built]


class EnvFamily:
    """Interface of a family of environments; this class is the one for TorchRL environments.

    Your own family is a subclass, which its maker (``env._target_``) names as an attribute:
    ``make_prompts.env_family = Prompts()``.

    Attributes:
        copies_arrays: whether its environments already copy their arrays.
        takes_render_mode: whether its makers have a parameter ``render_mode``.
    """

    copies_arrays = takes_render_mode = False

    def make(self, make: MakeEnv, num_envs: int, device: str, render: str | None = None) -> EnvBase:
        """Builds ``num_envs`` environments without transforms.

        Args:
            make: the maker with its keywords. One with a parameter ``num_envs``, as VMAS', steps all itself.
            num_envs: environments stepped together.
            device: where the tensors live.
            render: a render mode, see :func:`make_env`; ignored unless ``takes_render_mode``.
        """
        make = partial(make, render_mode=render) if render and self.takes_render_mode else make
        mujoco.set_mju_user_warning(warn_of_mujoco)  # else MuJoCo writes MUJOCO_LOG.TXT
        maker: Any = getattr(make, "func", make)
        is_class = isinstance(maker, type)
        constructor = maker.__init__ if is_class else maker  # TorchRL's metaclass hides a class's signature
        if "num_envs" in signature(constructor).parameters:
            env = build_env(make, num_envs=num_envs, device=device)
            agents = [*getattr(env, "group_map", {}).values()]
            if len(agents) == 1 and AGENTS not in env.group_map:  # VMAS' football has agent_blue_0 only
                env.close()
                env = build_env(make, num_envs=num_envs, device=device, group_map={AGENTS: agents[0]})
            return env
        build_one = partial(build_env, make, device=device)
        return build_one() if num_envs == 1 else SteadySerialEnv(num_envs, build_one)

    def for_evaluation(self, make: MakeEnv) -> MakeEnv:
        """The maker without what is for training only."""
        return make

    def gym_maker(self, make: MakeEnv) -> MakeEnv | None:
        """A partial of ``gymnasium_env`` with the same spaces, whose observations ``predict`` takes."""
        return None

    def policy_io(self, make: MakeEnv, env: TransformedEnv) -> Any:
        """Conversion between tensordicts and the values of ``predict``; ``None``: by Gymnasium's spaces.

        It has ``read(observation, mask)`` and ``write(tensordict)``.
        """
        return None

    def export(self, env: TransformedEnv, actor: TensorDictModuleBase, path: Path) -> str | None:
        """Exports a policy in the family's own format, described in a line; ``None``: it has none."""
        return None

    def action_kind(self, env: EnvBase) -> str:
        """The kind of actions, see :func:`hydrl.specs.action_kind`."""
        return action_kind(env)

    def prepare(
        self,
        env: TransformedEnv,
        seed: int,
        init_frames: int | None,
        statistics: dict[str, Any] | None,
        target: str,
    ) -> Callable[[], dict[str, Any]]:
        """Seeds a training environment, gives its normalizers their statistics, and checks it.

        Args:
            env: the environment before any reset.
            seed: of the environment.
            init_frames: random frames from which normalizers take statistics.
            statistics: of a checkpoint, to use instead.
            target: see :func:`explain_spec_errors`.

        Returns:
            A function that returns the statistics of its normalizers, see :func:`normalizer_state`.

        Raises:
            UserError: if the environment violates its specs.
        """
        env.set_seed(seed)
        with explain_spec_errors(target):
            init_normalizers(env, init_frames, statistics)
            self.check(env)
        return partial(normalizer_state, env)

    def check(self, env: TransformedEnv) -> None:
        """Raises if an environment violates its specs."""
        check_env_specs(env)

    def evaluate(
        self, env: TransformedEnv, actor: TensorDictModuleBase, *, max_steps: int, is_final: bool = False
    ) -> Evaluation:
        """Plays one episode in each environment, see :func:`hydrl.envs.evaluation.play_episodes`.

        ``is_final``: whether nothing is chosen by the result, as it is by evaluations during training.
        """
        return play_episodes(env, actor, max_steps=max_steps, is_final=is_final)

    def make_measure(
        self, env: TransformedEnv, actor: TensorDictModuleBase, *, nash: bool
    ) -> Callable[[], dict[str, float]]:
        """A function that measures the present policy without episodes, as its NashConv with ``nash``."""
        return make_measure(env, actor, wanted=nash)


class GymnasiumFamily(EnvFamily):
    """Gymnasium environments, with Atari, MinAtar, the Control Suite, robotics and self-play."""

    copies_arrays = takes_render_mode = True

    def for_evaluation(self, make: MakeEnv) -> MakeEnv:
        """The maker without opponents and training-only wrappers."""
        return for_evaluation(make) if isinstance(make, partial) else make

    def gym_maker(self, make: MakeEnv) -> MakeEnv | None:
        """The maker itself."""
        return make


class EnvPoolFamily(EnvFamily):
    """EnvPool's environments, which one environment of TorchRL's steps together."""

    copies_arrays = takes_render_mode = True

    def for_evaluation(self, make: MakeEnv) -> MakeEnv:
        """The maker of whole Atari games."""
        return partial(make, whole_games=True)

    def gym_maker(self, make: MakeEnv) -> MakeEnv | None:
        """A maker of the same environments one by one."""
        return gym_maker(make)


class PettingZooFamily(EnvFamily):
    """PettingZoo environments of several agents that act at once."""

    takes_render_mode = True

    def policy_io(self, make: MakeEnv, env: TransformedEnv) -> Any:
        """Conversion of dictionaries by agent."""
        return PettingZooIO(make)


FAMILIES: dict[Any, EnvFamily] = {
    gymnasium_env: GymnasiumFamily(),
    pettingzoo_env: PettingZooFamily(),
    envpool_env: EnvPoolFamily(),
}


def find_family(make: MakeEnv) -> EnvFamily:
    """The family of the environments that a maker, maybe a partial of one, builds."""
    maker: Any = getattr(make, "func", make)
    family = FAMILIES.get(maker) if isinstance(maker, Hashable) else None
    return family or getattr(maker, "env_family", None) or EnvFamily()


def build_env(make: MakeEnv, **kwargs: Any) -> EnvBase:
    """Builds one base environment from a copy of its keywords, which it may change.

    Raises:
        UserError: for a ``gymnasium.Env``, or keywords that VMAS ignores.
    """
    if isinstance(make, partial):
        make = partial(make.func, *make.args, **copy_kwargs(make.keywords))
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Scenario kwargs")
        try:
            env = make(**kwargs)
        except UserWarning as error:
            details = str(error).removeprefix("Scenario kwargs: ").partition(". This")[0]
            raise UserError(f"env.scenario_kwargs: {details}. VMAS' source has their names.") from None
    if isinstance(env, gymnasium.Env):
        raise UserError(
            f"env: it makes {type(env).__name__}, a Gymnasium environment. Register it and write env=gym "
            "env.id=MODULE:NAME, or pass its class: hydrl.train(env=CLASS)."
        )
    return env


class SteadySerialEnv(SerialEnv):
    """``SerialEnv`` that leaves PyTorch's number of threads alone when it closes.

    TorchRL's raises it, and more threads round sums differently. The garbage collector may close an
    environment in the middle of a later run.
    """

    def close(self, *, raise_if_closed: bool = True) -> None:
        """Closes every environment."""
        threads = torch.get_num_threads()
        super().close(raise_if_closed=raise_if_closed)
        torch.set_num_threads(threads)
