"""Gymnasium environments for TorchRL, one or several stepped together in this process."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Literal, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import load_env_creator
from gymnasium.spaces import MultiDiscrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import AtariPreprocessing
from tensordict import TensorDict, TensorDictBase
from torchrl.checkpoint import GlobalRNGState
from torchrl.data import MultiCategorical
from torchrl.envs import (
    EnvBase,
    GymWrapper,
)

from hydrl.envs.action_masks import MaskReader, MaskSetting, MaskTracker, find_mask_source, track_mask
from hydrl.envs.checked_env import copy_kwargs, is_env_error, seed_spaces, wrapper_chain
from hydrl.envs.episode_info import SUCCESS, EpisodeInfo, InfoReader, is_number
from hydrl.envs.spaces import adapt_spaces, choice_sizes, sample_action
from hydrl.errors import UserError
from hydrl.library_setup import warn_once

PROBE_STEPS = 200  # steps in which a task of one's own is tried for what it says of success
PROBED: dict[tuple[Any, ...], "ProbeResult"] = {}
FAMILIES = {"ALE": "atari", "MinAtar": "minatar"}  # choices of env, by how the ids begin
Wrappers = Mapping[str, partial[gymnasium.Env]]
MakeGymEnv = Callable[..., gymnasium.Env]


def gymnasium_env(
    id: str,
    num_envs: int = 1,
    device: str = "cpu",
    observe: list[int] | None = None,
    wrappers: dict[str, Any] | None = None,
    info_keys: list[str] | dict[str, Literal["last", "mean", "sum"]] | None = None,
    make: MakeGymEnv | None = None,
    action_mask: MaskSetting = None,
    **kwargs: Any,
) -> EnvBase:
    """A Gymnasium environment, or ``num_envs`` of them stepped together in this process.

    TorchRL's cost per step is that of the whole vector, so ten environments cost little more than one.
    ``GymEnv(id, num_envs=k)`` is not used: it resets inside ``step`` and returns all-zero observations
    at episode ends.

    Keywords named here cannot be passed to the environment itself.

    Args:
        id: a registered Gymnasium id, such as ``CartPole-v1``.
        num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``.
        device: where observations and actions live; the simulator runs on the CPU.
        observe: indices of the observed vector's entries, or of an image's channels, that are kept; ``None``
            keeps all. For environments that observe one vector or one image.
        wrappers: wrappers by name, the first innermost, each called with the environment;
            :func:`for_evaluation` leaves out those with ``training_only=true``.
        info_keys: values of ``info`` that are followed through each episode, see
            :class:`hydrl.envs.episode_info.EpisodeInfo`; a list takes their last values. Success flags are
            followed anyway, unless the list is empty.
        make: makes the environment from its ``id`` and ``kwargs`` in place of ``gymnasium.make``.
        action_mask: the entry of the observation or of ``info`` that holds the action mask; ``None``: one
            named ``action_mask``, or the method ``action_masks``, if there is one. ``False`` ignores masks.
        **kwargs: passed to the environment, each a copy of its own.

    Raises:
        UserError: for an unknown id, a missing package, a keyword or wrapper that does not fit, or spaces
            that no algorithm here learns in.
        Exception: whatever the environment's own code raises.
    """
    maker = make

    # Of these three alone, and by this name: checkpoints of older runs know it so.
    def make() -> gymnasium.Env:  # type: ignore[no-redef]
        return adapt_spaces(make_tracked_env(id, **kwargs), observe, f"env.id={id}")

    with explain_make_errors(id, maker):
        kwargs.update(env_keywords(id, wrappers, info_keys, maker, action_mask, kwargs))
        return add_info_readers(make_gym_wrapper(make, num_envs, device, plain=not (wrappers or maker)))


def env_keywords(
    id: str,
    wrappers: Wrappers | None,
    info_keys: Any,
    maker: MakeGymEnv | None,
    action_mask: MaskSetting,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """The keyword arguments of :func:`make_tracked_env` that are set."""
    required = info_keys if isinstance(info_keys, dict) else dict.fromkeys(info_keys or [], "last")
    success = [] if info_keys == [] else find_success_keys(id, wrappers, maker, **kwargs)
    how = dict.fromkeys(success, "last") | required
    keywords = {"make": maker, "info_keys": (how, [*required]) if how else None, "wrappers": wrappers}
    mask_keyword = {} if action_mask is None else {"action_mask": action_mask}
    return {name: value for name, value in keywords.items() if value} | mask_keyword


def make_gym_wrapper(make: Any, num_envs: int, device: str, *, plain: bool) -> GymWrapper:
    """One environment or a vector of them for TorchRL; ``plain`` ones hold nothing but numbers and names."""
    if num_envs == 1:
        task = make()
        return with_integer_choices(GymWrapper(task, device=device), task.action_space)
    vector = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
    if not plain:
        vector.env_fns = ()  # what made them is no state of theirs, and could not be read as one
    return with_integer_choices(GymVector(vector, device=device), vector.single_action_space)


def with_integer_choices(env: GymWrapper, actions: gymnasium.Space) -> GymWrapper:
    """Gives multi-discrete actions an integer spec, ``[*batch_size, choices]``.

    TorchRL has them one-hot in a row, for which it has no distribution, and of a vector as a box.
    """
    if isinstance(actions, MultiDiscrete):
        spec = MultiCategorical(actions.nvec, device=env.device)
        env.action_spec = spec.expand(*env.batch_size, len(actions.nvec))
    return env


@contextmanager
def explain_make_errors(id: str, maker: MakeGymEnv | None) -> Iterator[None]:
    """Explains why an environment cannot be made, unless its own code failed.

    It also warns of an Atari or MinAtar game that is made without its family's preprocessing.

    Raises:
        UserError: in place of the error.
    """
    family = FAMILIES.get(id.rpartition("/")[0])
    if family and maker is None and id in gymnasium.registry:
        warn_once(
            f"env.id={id}: env=gym skips the usual preprocessing. Write env={family} env.id={id} for it."
        )
    try:
        yield
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        if isinstance(error, UserError) or is_env_error(error):
            raise
        raise UserError(f"env.id={id}: cannot be created: {explain_make_error(error, id)}") from error


def explain_make_error(error: Exception, id: str) -> str:
    """Why an environment cannot be made, and what to do if that is known."""
    reason = " ".join(str(error).split())
    family = FAMILIES.get(id.rpartition("/")[0])
    if family and isinstance(error, gymnasium.error.NamespaceNotFound):  # which it registers
        reason = f"it is a game of another option. Write env={family} env.id={id}."
    elif id.startswith("hydrl/"):  # see hydrl.api.python_classes
        reason = "it was a class of the process that trained it. Pass it again: hydrl.train(env=CLASS)."
    elif isinstance(error, gymnasium.error.NameNotFound):
        module, _, name = id.rpartition(":")
        reason += (
            f' Register it in {module}: gymnasium.register("{name}", CLASS).'
            if module
            else f" For your own environment, write env.id=MODULE:{id}; MODULE registers it."
        )
    elif unasked := re.search(r"unexpected keyword argument '(\w+)'", reason):
        reason = f"it takes no {unasked[1]}. Leave env.{unasked[1]} out."
    elif "gymnasium[box2d]" in reason:
        reason = "it needs Box2D. Run pip install 'hydrl[box2d]'."
    return reason


def make_tracked_env(
    id: str,
    info_keys: tuple[dict[str, str], list[str]] | None = None,
    action_mask: MaskSetting = None,
    **kwargs: Any,
) -> gymnasium.Env:
    """Makes an environment in its wrappers, its ``info`` values followed and its action mask read.

    Args:
        id: as for :func:`gymnasium_env`, as the others.
        info_keys: how each value is followed, and the keys the user named.
    """
    task, label = make_wrapped_env(id, **kwargs), f"env.id={id}"
    actions = sum(choice_sizes(task.action_space))
    task = track_mask(task, action_mask, label, actions, lambda: info_keys_at_reset(id, **kwargs))
    return EpisodeInfo(task, info_keys[0], label, info_keys[1]) if info_keys else task


def make_wrapped_env(
    id: str, wrappers: Wrappers | None = None, make: MakeGymEnv | None = None, **kwargs: Any
) -> gymnasium.Env:
    """Makes an environment in its wrappers, the first one innermost, as in Gymnasium.

    Raises:
        UserError: for a wrapper that does not fit, or one for training alone that changes the spaces.
    """
    task = (plain_partial(make) or gymnasium.make)(id, **copy_kwargs(kwargs))
    for name, wrapper in copy_kwargs(dict(wrappers or {})).items():
        keywords = {key: plain_partial(value) for key, value in wrapper.keywords.items()}
        alone, wrapper_key = keywords.pop("training_only", False), f"env.wrappers.{name}"
        try:
            wrapped = wrapper.func(task, **keywords)
        except Exception as error:
            if is_env_error(error):
                raise
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            if wrapper.func is AtariPreprocessing and "Disable frame-skipping" in reason:
                reason = f"it skips frames, and {id} does, too. Write env=atari, or +env.frameskip=1."
            raise UserError(f"{wrapper_key}: cannot wrap env.id={id}: {reason}") from error
        if not isinstance(wrapped, gymnasium.Env):
            raise UserError(
                f"{wrapper_key}: it returned a {type(wrapped).__name__}. Write a gymnasium.Wrapper."
            )
        for space_name in ("observation_space", "action_space") if alone else ():
            if getattr(wrapped, space_name) != getattr(task, space_name):
                raise UserError(
                    f"{wrapper_key}.training_only=true: it changes the {space_name}, and the policy could "
                    "not be evaluated without it. Leave training_only out."
                )
        task = wrapped
    return task


def find_success_keys(
    id: str, wrappers: Wrappers | None = None, make: MakeGymEnv | None = None, **kwargs: Any
) -> list[str]:
    """Which keys of ``info`` are success flags, found once a process in an environment of its own.

    Gymnasium's own environments and families have none. Others are stepped with random actions until a flag
    appears, for one episode or ``PROBE_STEPS`` steps at most; errors there appear again in the run itself.
    """
    spec = gymnasium.registry.get(id)
    modules = [wrapper.func.__module__ for wrapper in evaluation_wrappers(wrappers).values()]
    modules += [getattr(spec and spec.entry_point, "__module__", None) or str(spec and spec.entry_point)]
    if make or all(module.startswith("gymnasium.") for module in modules):
        return []
    return probe_env(id, wrappers, None, kwargs, PROBE_STEPS).success


def info_keys_at_reset(
    id: str, wrappers: Wrappers | None = None, make: MakeGymEnv | None = None, **kwargs: Any
) -> list[str]:
    """The names in ``info`` after a reset; none for hydrl's own families."""
    family = getattr(getattr(make, "func", make), "__module__", "").startswith("hydrl.")
    return [] if family else probe_env(id, wrappers, make, kwargs, 0).info


class ProbeResult(NamedTuple):
    """What ``info`` held in an environment of its own, stepped at most ``steps`` times."""

    steps: int
    info: list[str]
    success: list[str]


def probe_env(
    id: str, wrappers: Wrappers | None, make: MakeGymEnv | None, kwargs: dict[str, Any], steps: int
) -> ProbeResult:
    """Steps an environment with random actions, once a process; errors are left to the run itself."""
    keywords = {key: value for key, value in kwargs.items() if key != "render_mode"}
    known = evaluation_wrappers(wrappers)
    # By the classes themselves: a notebook's next cell, or a reload, defines others of the same names.
    classes = (entry_point_of(id), *(wrapper.func for wrapper in known.values()))
    key = (repr((id, known, make, keywords)), *classes)
    if key not in PROBED or PROBED[key].steps < steps:
        rng, result = GlobalRNGState(), ProbeResult(steps, [], [])
        state = rng.state_dict()
        try:
            wrapped = make_wrapped_env(id, known, make, **keywords)
            with warnings.catch_warnings(action="ignore"), closing(wrapped) as task:
                seed_spaces(task, 0)
                result = ProbeResult(steps, [*task.reset(seed=0)[1]], [])
                result.success.extend(find_success_in_episode(task, result))
        except Exception:
            pass
        finally:
            rng.load_state_dict(state)
        PROBED[key] = result
    return PROBED[key]


def entry_point_of(id: str) -> Any:
    """The class or function Gymnasium makes an environment with now; ``None`` if it knows none."""
    try:
        point = gymnasium.spec(id).entry_point
        return load_env_creator(point) if isinstance(point, str) else point
    except Exception:  # of which making it tells
        return None


def find_success_in_episode(task: gymnasium.Env, known: ProbeResult) -> list[str]:
    """The success flags in ``info`` while random valid actions are taken."""
    actions = sum(choice_sizes(task.action_space))
    place = find_mask_source(task, None, lambda: known.info) if actions else None
    allowed = MaskTracker(task, place, "it", actions) if place else None
    task = allowed or task
    _, info = task.reset(seed=0)
    ended, keys = False, list[str]()
    for _ in range(known.steps):
        keys = [name for name in SUCCESS if name in info and is_number(info[name])]
        if keys or ended:
            break
        action = sample_action(task.action_space, allowed.mask if allowed else None)
        _, _, terminated, truncated, info = task.step(action)
        ended = terminated or truncated
    return keys


def add_info_readers(env: GymWrapper) -> EnvBase:
    """Adds TorchRL readers for the followed values and the action masks of an environment."""
    tasks = env._env.envs if isinstance(env, GymVector) else [env._env]
    below = [level for task in tasks for level in wrapper_chain(task)]
    if following := [level for level in below if isinstance(level, EpisodeInfo)]:
        env.set_info_dict_reader(InfoReader(following, env.batch_size))
    if masking := [level for level in below if isinstance(level, MaskTracker)]:
        env.set_info_dict_reader(MaskReader(masking, env.batch_size))
    return env


def plain_partial(value: Any) -> Any:
    """A value; of Hydra's partial the plain one, as Hydra's checks its target at each call."""
    return partial(value.func, *value.args, **value.keywords) if isinstance(value, partial) else value


def for_evaluation(make: partial[EnvBase]) -> partial[EnvBase]:
    """A partial of :func:`gymnasium_env` without opponents and wrappers that are for training alone."""
    wrappers = make.keywords.get("wrappers") or {}
    wrappers_left = evaluation_wrappers(wrappers)
    if make.keywords.get("opponents") is not None:
        make = partial(make, opponents=None)
    return partial(make, wrappers=wrappers_left) if wrappers_left != wrappers else make


def evaluation_wrappers(wrappers: Wrappers | None) -> dict[str, Any]:
    """The wrappers that are not for training alone."""
    return {
        name: wrapper
        for name, wrapper in (wrappers or {}).items()
        if not wrapper.keywords.get("training_only")
    }


class GymVector(GymWrapper):
    """TorchRL wrapper of a vector of environments with one reward each and array observations.

    Its numbers are TorchRL's. TorchRL's own two methods inspect every space at each step; with these acting
    takes 7 % (ten double pendulums) to 14 % (16 CartPoles) less time.
    """

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = self.read_action(tensordict.get(self.action_key))
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self.to_tensordict(observation, terminated, truncated, reward=torch.as_tensor(reward).float())

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if tensordict is not None and (chosen := tensordict.get("_reset", None)) is not None:
            kwargs["options"] = {"reset_mask": chosen.view(self.batch_size).numpy(force=True)}
        observation, _ = self._env.reset(**kwargs)
        return self.to_tensordict(observation, *np.zeros((2, *self.batch_size), dtype=bool))

    def to_tensordict(
        self, observation: Any, terminated: np.ndarray, truncated: np.ndarray, **more: torch.Tensor
    ) -> TensorDictBase:
        """Gymnasium's arrays, ``[num_envs, ...]``, as a tensordict; scalars are ``[num_envs, 1]``."""
        ends = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        entries = {name: torch.as_tensor(flags) for name, flags in ends.items()} | more
        entries = {name: values.unsqueeze(-1) for name, values in entries.items()}
        observations = observation if isinstance(observation, dict) else {"observation": observation}
        entries |= {name: torch.as_tensor(values) for name, values in observations.items()}
        tensordict_out = TensorDict(entries, self.batch_size, device=self.device)
        for reader in self.info_dict_reader:
            tensordict_out = reader({}, tensordict_out)
        return tensordict_out
