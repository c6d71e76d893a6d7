"""Gymnasium environments for TorchRL, one or several stepped together in this process."""

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

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
from torchrl.envs import EnvBase, GymWrapper

from hydrl.env_ids import find_option
from hydrl.envs.action_masks import MaskReader, MaskSetting, MaskTracker, find_mask_source, track_mask
from hydrl.envs.checked_env import copy_kwargs, is_env_error, seed_spaces, wrapper_chain
from hydrl.envs.episode_info import SUCCESS, EpisodeInfo, InfoReader, is_number
from hydrl.envs.objectives import objective_reductions, weigh_rewards
from hydrl.envs.self_play import SelfPlayEnv, batching_pool, find_games, prepare_resets, prepare_steps
from hydrl.envs.spaces import adapt_spaces, choice_sizes, sample_action
from hydrl.errors import UserError, warn_once
from hydrl.limits import Reduction

PROBE_STEPS = 200  # steps in which an environment is probed for success flags
PROBED: dict[tuple[Any, ...], "ProbeResult"] = {}
Wrappers = Mapping[str, partial[gymnasium.Env]]
MakeGymEnv = Callable[..., gymnasium.Env]
W = TypeVar("W", bound=gymnasium.Wrapper)


def gymnasium_env(
    id: str,
    num_envs: int = 1,
    device: str = "cpu",
    observe: list[int] | None = None,
    wrappers: dict[str, Any] | None = None,
    info_keys: list[str] | dict[str, Reduction] | None = None,
    make: MakeGymEnv | None = None,
    action_mask: MaskSetting = None,
    weights: list[float] | None = None,
    **kwargs: Any,
) -> EnvBase:
    """TorchRL environment of one Gymnasium environment, or of ``num_envs`` stepped together.

    TorchRL's cost per step is that of the whole vector, so ten environments cost little more than one.
    ``GymEnv(id, num_envs=k)`` resets inside ``step`` and returns all-zero observations at episode ends.

    Args:
        id: a registered Gymnasium id, such as ``CartPole-v1``.
        num_envs: 1 gives batch size ``[]``, more gives ``[num_envs]``.
        device: where observations and actions live; the simulator runs on the CPU.
        observe: indices of a vector's entries, or of an image's channels, to observe; ``None`` observes all.
            For environments that observe one vector or one image.
        wrappers: wrappers by name, the first innermost, each called with the environment;
            :func:`for_evaluation` leaves out those with ``training_only=true``.
        info_keys: values of ``info`` that are followed through each episode, see
            :class:`hydrl.envs.episode_info.EpisodeInfo`; a list takes their last values. Success flags are
            followed by default, unless the list is empty.
        make: makes the environment from its ``id`` and ``kwargs`` in place of ``gymnasium.make``.
        action_mask: the entry of the observation or of ``info`` that holds the action mask; ``None``: one
            named ``action_mask``, or the method ``action_masks``, if there is one. ``False`` ignores masks.
        weights: of several objectives; the reward is their weighted sum, above the wrappers.
        **kwargs: passed to the environment, each a copy of its own; none can have a name from above.

    Raises:
        UserError: for an unknown id, a missing package, a keyword, wrapper or weights that do not fit, or
            spaces that no algorithm here learns in.
        Exception: whatever the environment's own code raises.
    """
    maker = make

    # Checkpoints of older runs have a closure of this name and these three variables.
    def make() -> gymnasium.Env:  # type: ignore[no-redef]
        return adapt_spaces(make_tracked_env(id, **kwargs), observe, f"env.id={id}")

    with explain_make_errors(id, maker):
        kwargs.update(env_keywords(id, wrappers, info_keys, maker, action_mask, weights, kwargs))
        env = make_gym_wrapper(make, num_envs, device, keep_env_fns=not (wrappers or maker))
        return add_info_readers(env)


def env_keywords(
    id: str,
    wrappers: Wrappers | None,
    info_keys: Any,
    maker: MakeGymEnv | None,
    action_mask: MaskSetting,
    weights: list[float] | None,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """The keyword arguments of :func:`make_tracked_env` that are not defaults."""
    required = info_keys if isinstance(info_keys, dict) else dict.fromkeys(info_keys or [], "last")
    success_keys = [] if info_keys == [] else find_success_keys(id, wrappers, maker, **kwargs)
    reductions = dict.fromkeys(success_keys, "last") | objective_reductions(weights) | required
    followed = (reductions, [*required]) if reductions else None
    keywords = {"make": maker, "info_keys": followed, "wrappers": wrappers}
    optional = {"action_mask": action_mask, "weights": weights}
    settings = {name: value for name, value in optional.items() if value is not None}
    return {name: value for name, value in keywords.items() if value} | settings


def make_gym_wrapper(make: Any, num_envs: int, device: str, *, keep_env_fns: bool) -> GymWrapper:
    """TorchRL environment of one made environment or a vector; ``keep_env_fns`` keeps a vector's makers."""
    if num_envs == 1:
        env = make()
        return with_integer_choices(GymWrapper(env, device=device), env.action_space)
    vector = SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
    if not keep_env_fns:
        vector.env_fns = ()  # makers are no state, and might not be readable in checkpoints
    env = with_integer_choices(GymVector(vector, device=device), vector.single_action_space)
    env.games = find_games(vector.envs)
    return env


def with_integer_choices(env: GymWrapper, actions: gymnasium.Space) -> GymWrapper:
    """Gives multi-discrete actions an integer spec, ``[*batch_size, choices]``.

    TorchRL makes a concatenated one-hot spec, for which it has no distribution, or a box for a vector.
    """
    if isinstance(actions, MultiDiscrete):
        spec = MultiCategorical(actions.nvec, device=env.device)
        env.action_spec = spec.expand(*env.batch_size, len(actions.nvec))
    return env


@contextmanager
def explain_make_errors(id: str, maker: MakeGymEnv | None) -> Iterator[None]:
    """Explains why an environment cannot be made, unless its own code failed.

    It also warns of an environment without its family's preprocessing, such as an Atari game.

    Raises:
        UserError: in place of the error.
    """
    family = find_option(id)
    if family and family != "robotics" and maker is None and id in gymnasium.registry:
        warn_once(
            f"env.id={id}: env=gym skips the usual preprocessing. Write env={family} env.id={id} for it."
        )
    try:
        yield
    except (gymnasium.error.Error, ImportError, TypeError, ValueError) as error:
        if isinstance(error, UserError) or is_env_error(error):
            raise
        raise UserError(f"env.id={id}: cannot be created: {explain_make_error(error, id)}") from error
    except AssertionError as error:
        if family != "robotics":
            raise
        name = id.rpartition(":")[2]
        raise UserError(
            f"env.id={id}: Gymnasium-Robotics fails with this MuJoCo. Write env=robotics env.id={name}."
        ) from error


def explain_make_error(error: Exception, id: str) -> str:
    """Why an environment cannot be made, with advice if known."""
    reason = " ".join(str(error).split())
    family, name = find_option(id), id.rpartition(":")[2]
    missing = gymnasium.error.NamespaceNotFound if "/" in id else gymnasium.error.NameNotFound
    if family and isinstance(error, missing):  # the family registers it
        reason = f"it is a game of another option. Write env={family} env.id={id}."
    elif family and "MissionSpace" in reason:
        reason = f"its observation mission is text. Write env={family} env.id={name}."
    elif id.startswith("hydrl/"):  # see hydrl.api.python_classes
        reason = "it was a class of the process that trained it. Pass it again: hydrl.train(env=CLASS)."
    elif isinstance(error, gymnasium.error.NameNotFound):
        module, _, name = id.rpartition(":")
        reason += (
            f' Register it in {module}: gymnasium.register("{name}", CLASS).'
            if module
            else f" For your own environment, write env.id=MODULE:{id}; MODULE registers it."
        )
    elif (absent := getattr(error.__cause__, "name", None)) and id.startswith(absent):
        reason = (
            f"no module {absent}. If it is yours, start with PYTHONPATH=DIR, its folder; else install it."
        )
    elif keyword_match := re.search(r"unexpected keyword argument '(\w+)'", reason):
        reason = f"it takes no {keyword_match[1]}. Leave env.{keyword_match[1]} out."
    elif "gymnasium[box2d]" in reason:
        reason = "it needs Box2D. Run pip install 'hydrl[box2d]'."
    return reason


def make_tracked_env(
    id: str,
    info_keys: tuple[dict[str, str], list[str]] | None = None,
    action_mask: MaskSetting = None,
    weights: list[float] | None = None,
    **kwargs: Any,
) -> gymnasium.Env:
    """Makes an environment in its wrappers: rewards weighed, ``info`` values followed, the action mask read.

    Args:
        id: as for :func:`gymnasium_env`, like the others.
        info_keys: the reduction of each value, and the keys that the user named.
    """
    label = f"env.id={id}"
    env = weigh_rewards(make_wrapped_env(id, **kwargs), weights, label)
    num_actions = sum(choice_sizes(env.action_space))
    env = track_mask(env, action_mask, label, num_actions, lambda: info_keys_at_reset(id, **kwargs))
    return EpisodeInfo(env, info_keys[0], label, info_keys[1]) if info_keys else env


def make_wrapped_env(
    id: str, wrappers: Wrappers | None = None, make: MakeGymEnv | None = None, **kwargs: Any
) -> gymnasium.Env:
    """Makes an environment in its wrappers, the first one innermost, as in Gymnasium.

    Raises:
        UserError: for a wrapper that does not fit, or a training-only one that changes the spaces.
    """
    env = (plain_partial(make) or gymnasium.make)(id, **copy_kwargs(kwargs))
    for name, wrapper in copy_kwargs(dict(wrappers or {})).items():
        keywords = {key: plain_partial(value) for key, value in wrapper.keywords.items()}
        training_only, wrapper_key = keywords.pop("training_only", False), f"env.wrappers.{name}"
        try:
            wrapped = wrapper.func(env, **keywords)
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
        for space_name in ("observation_space", "action_space") if training_only else ():
            if getattr(wrapped, space_name) != getattr(env, space_name):
                raise UserError(
                    f"{wrapper_key}.training_only=true: it changes the {space_name}, and the policy could "
                    "not be evaluated without it. Leave training_only out."
                )
        env = wrapped
    return env


def find_success_keys(
    id: str, wrappers: Wrappers | None = None, make: MakeGymEnv | None = None, **kwargs: Any
) -> list[str]:
    """The keys of ``info`` that are success flags, by a separate environment, once a process.

    Gymnasium's own environments have none, and a family's ``make`` may know its own as ``make.success_keys``.
    Others are stepped with random actions until a flag appears, for one episode and ``PROBE_STEPS`` steps at
    most; errors are left to the run itself.
    """
    if family_keys := getattr(getattr(make, "func", make), "success_keys", None):
        return family_keys(id)
    spec = gymnasium.registry.get(id)
    modules = [wrapper.func.__module__ for wrapper in evaluation_wrappers(wrappers).values()]
    modules += [getattr(spec and spec.entry_point, "__module__", None) or str(spec and spec.entry_point)]
    if make or all(module.startswith("gymnasium.") for module in modules):
        return []
    return probe_env(id, wrappers, None, kwargs, PROBE_STEPS).success


def info_keys_at_reset(
    id: str, wrappers: Wrappers | None = None, make: MakeGymEnv | None = None, **kwargs: Any
) -> list[str]:
    """The keys of ``info`` after a reset; none for hydrl's own families."""
    family = getattr(getattr(make, "func", make), "__module__", "").startswith("hydrl.")
    return [] if family else probe_env(id, wrappers, make, kwargs, 0).info


class ProbeResult(NamedTuple):
    """Keys of ``info`` in a probed environment, stepped at most ``steps`` times."""

    steps: int
    info: list[str]
    success: list[str]


def probe_env(
    id: str, wrappers: Wrappers | None, make: MakeGymEnv | None, kwargs: dict[str, Any], steps: int
) -> ProbeResult:
    """Steps an environment with random actions, once a process; errors are left to the run itself."""
    keywords = {key: value for key, value in kwargs.items() if key != "render_mode"}
    eval_wrappers = evaluation_wrappers(wrappers)
    # By the classes themselves: a notebook may define others of the same names.
    classes = (entry_point_of(id), *(wrapper.func for wrapper in eval_wrappers.values()))
    key = (repr((id, eval_wrappers, make, keywords)), *classes)
    if key not in PROBED or PROBED[key].steps < steps:
        rng, result = GlobalRNGState(), ProbeResult(steps, [], [])
        state = rng.state_dict()
        try:
            wrapped = make_wrapped_env(id, eval_wrappers, make, **keywords)
            with warnings.catch_warnings(action="ignore"), closing(wrapped) as env:
                seed_spaces(env, 0)
                result = ProbeResult(steps, [*env.reset(seed=0)[1]], [])
                result.success.extend(find_success_in_episode(env, result))
        except Exception:
            pass
        finally:
            rng.load_state_dict(state)
        PROBED[key] = result
    return PROBED[key]


def entry_point_of(id: str) -> Any:
    """The class or function by which Gymnasium makes an environment; ``None`` if unknown."""
    try:
        entry_point = gymnasium.spec(id).entry_point
        return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
    except Exception:  # reported when the run makes it
        return None


def find_success_in_episode(env: gymnasium.Env, probe: ProbeResult) -> list[str]:
    """The success flags in ``info`` while random valid actions are taken."""
    num_actions = sum(choice_sizes(env.action_space))
    source = find_mask_source(env, None, lambda: probe.info) if num_actions else None
    tracker = MaskTracker(env, source, "it", num_actions) if source else None
    env = tracker or env
    _, info = env.reset(seed=0)
    done, keys = False, list[str]()
    for _ in range(probe.steps):
        keys = [name for name in SUCCESS if name in info and is_number(info[name])]
        if keys or done:
            break
        action = sample_action(env.action_space, tracker.mask if tracker else None)
        _, _, terminated, truncated, info = env.step(action)
        done = terminated or truncated
    return keys


def add_info_readers(env: GymWrapper) -> EnvBase:
    """Adds TorchRL readers for the followed values and the action masks of an environment."""
    if info_wrappers := find_wrappers(env, EpisodeInfo):
        env.set_info_dict_reader(InfoReader(info_wrappers, env.batch_size))
    if mask_trackers := find_wrappers(env, MaskTracker):
        env.set_info_dict_reader(MaskReader(mask_trackers, env.batch_size))
    return env


def find_wrappers(env: EnvBase, wrapper_class: type[W]) -> list[W]:
    """The wrappers of a class below a TorchRL environment, one for each Gymnasium environment."""
    gym_envs = env._env.envs if isinstance(env, GymVector) else [getattr(env, "_env", None)]
    wrappers = [wrapper for gym_env in gym_envs for wrapper in wrapper_chain(gym_env)]
    return [wrapper for wrapper in wrappers if isinstance(wrapper, wrapper_class)]


def plain_partial(value: Any) -> Any:
    """A value; a partial of Hydra's as a plain one, as Hydra's checks its target at each call."""
    return partial(value.func, *value.args, **value.keywords) if isinstance(value, partial) else value


def for_evaluation(make: partial[EnvBase]) -> partial[EnvBase]:
    """A partial of :func:`gymnasium_env` without opponents and training-only wrappers."""
    wrappers = make.keywords.get("wrappers") or {}
    eval_wrappers = evaluation_wrappers(wrappers)
    if make.keywords.get("opponents") is not None:
        make = partial(make, opponents=None)
    return partial(make, wrappers=eval_wrappers) if eval_wrappers != wrappers else make


def evaluation_wrappers(wrappers: Wrappers | None) -> dict[str, Any]:
    """The wrappers that are not training-only."""
    return {
        name: wrapper
        for name, wrapper in (wrappers or {}).items()
        if not wrapper.keywords.get("training_only")
    }


class GymVector(GymWrapper):
    """TorchRL wrapper of a vector of environments with one reward each and array observations.

    TorchRL's own two methods inspect every space at each step; with these acting takes 7 % (ten double
    pendulums) to 14 % (16 CartPoles) less time, with the same results.
    """

    has_consecutive_seeds = True  # Gymnasium seeds environment ``k`` with the seed + ``k``
    games: Sequence[SelfPlayEnv] = ()

    def _step(self, tensordict: TensorDictBase) -> TensorDictBase:
        action = self.read_action(tensordict.get(self.action_key))
        if (pool := batching_pool(self.games)) is not None:
            prepare_steps(pool, self._env.envs, self.games, action)
        observation, reward, terminated, truncated, _ = self._env.step(action)
        return self.to_tensordict(observation, terminated, truncated, reward=torch.as_tensor(reward).float())

    def _reset(self, tensordict: TensorDictBase | None = None, **kwargs: Any) -> TensorDictBase:
        if tensordict is not None and (reset_mask := tensordict.get("_reset", None)) is not None:
            kwargs["options"] = {"reset_mask": reset_mask.view(self.batch_size).numpy(force=True)}
        if (pool := batching_pool(self.games)) is not None:
            mask = (kwargs.get("options") or {}).get("reset_mask")
            prepare_resets(pool, self.games, kwargs.get("seed"), mask)
        observation, _ = self._env.reset(**kwargs)
        return self.to_tensordict(observation, *np.zeros((2, *self.batch_size), dtype=bool))

    def to_tensordict(
        self, observation: Any, terminated: np.ndarray, truncated: np.ndarray, **more_entries: torch.Tensor
    ) -> TensorDictBase:
        """Gymnasium's arrays, ``[num_envs, ...]``, as a tensordict; scalars are ``[num_envs, 1]``."""
        done_flags = {"terminated": terminated, "truncated": truncated, "done": terminated | truncated}
        entries = {name: torch.as_tensor(flags) for name, flags in done_flags.items()} | more_entries
        entries = {name: values.unsqueeze(-1) for name, values in entries.items()}
        observations = observation if isinstance(observation, dict) else {"observation": observation}
        entries |= {name: torch.as_tensor(values) for name, values in observations.items()}
        tensordict_out = TensorDict(entries, self.batch_size, device=self.device)
        for reader in self.info_dict_reader:
            tensordict_out = reader({}, tensordict_out)
        return tensordict_out
