"""Episodes that a finished run plays, as a set of transitions in the task's own units."""

import json
import math
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Space
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule
from torch import Tensor
from torchrl.data import Categorical, Composite, OneHot
from torchrl.envs import EnvBase, RenameTransform, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl import envs
from hydrl.config.settings import Settings
from hydrl.datasets import files
from hydrl.datasets.convert import ABOUT, FORMAT, name_of
from hydrl.datasets.files import NEXT, Columns
from hydrl.envs.time_limits import episode_limit
from hydrl.envs.transforms import ActionScaling
from hydrl.envs.transitions import (
    TransitionRecorder,
    action_entries,
    entry_paths,
    find_recorders,
    flat_arrays,
    mask_entry,
    record_transitions,
    stack_values,
)
from hydrl.errors import SaveError, UserError
from hydrl.library_setup import seed_generators
from hydrl.run.atomic_files import atomically
from hydrl.specs import INFO, MASK, random_action
from hydrl.training.evaluator import PolicyEvaluator, episode_seed, without_log_probabilities

SIDE_BY_SIDE = 8  # environments at most
RAW = "raw_"  # what names of copies begin with
LISTED = 64  # bounds of an entry that are written down
ENDLESS = 1e38  # which TorchRL has for no bound at all
Transition = tuple[Any, Any, Any]  # what was observed, done, and observed then


def entries(env: EnvBase) -> list[NestedKey]:
    """What a task shows, by its own names."""
    return [key for key in env.observation_spec.keys(True, True) if INFO not in (key, key[0])]


def copied(env: EnvBase) -> RenameTransform:
    """Keeps copies of what a task gives, before its transforms change that."""
    keys = [*entries(env), env.reward_keys[0]]
    return RenameTransform(keys, [RAW + name_of(key) for key in keys], create_copy=True)


def play(
    settings: Settings,
    evaluator: PolicyEvaluator,
    trained: int,
    *,
    frames: int,
    sampled: bool,
    stream: int,
    random: float = 0.0,
) -> Columns:
    """Plays whole episodes, ``frames`` steps of them or more.

    Args:
        settings: of the run.
        evaluator: has its policy and normaliser.
        trained: frames that the policy was trained for.
        frames: to be played.
        sampled: draws each action from the policy's distribution, and takes its greatest else.
        stream: of episodes, as for an evaluation.
        random: share of the frames, in episodes that follow the policy's, whose actions are drawn evenly
            from all that are allowed.

    Returns:
        ``observations``, ``actions``, ``rewards``, ``terminals``, ``timeouts`` and ``next_observations``.

    Raises:
        UserError: where actions are to be drawn by a policy that has no distribution.
    """
    parts = evaluator.actor.modules()
    if sampled and not any(isinstance(each, ProbabilisticTensorDictModule) for each in parts):
        raise UserError(
            f"sampled=true: the policy of algo={settings.algo} has no distribution to draw from; leave it "
            "out, or let a share be played at random, as random=0.5"
        )
    drawn = round(frames * random)
    shares = [(frames - drawn, trained, False), (drawn, 0, True)]  # at random acts who has learned nothing
    made = [
        episodes(
            settings,
            evaluator,
            share,
            seed=episode_seed(settings.seed, learned, stream),
            sampled=sampled,
            random=at_random,
        )
        for share, learned, at_random in shares
        if share
    ]
    return {name: np.concatenate([each[name] for each in made]) for name in made[0]}


def episodes(
    settings: Settings, evaluator: PolicyEvaluator, frames: int, *, seed: int, sampled: bool, random: bool
) -> Columns:
    """Those of :func:`play`, by the policy alone or all at random.

    Environments are stepped side by side, and each is played until the episode is over in which its share of
    the frames was reached; of these episodes so many are kept as have the frames together. Only where a task
    has no time limit may one be cut short, which counts as one.
    """
    count = min(SIDE_BY_SIDE, frames)
    seed_generators(seed)
    env = envs.make_env(
        record_transitions(settings.build("env")),
        [copied, *settings.transform_builders],
        num_envs=count,
        device=str(evaluator.make_env.keywords["device"]),
        normaliser=evaluator.normaliser(),
        policy=evaluator.actor,
        seed=seed,
    )
    try:
        share = -(-frames // count)
        steps, own, lengths = stepped(env, evaluator, share, sampled=sampled, random=random)
        made = as_columns(env, torch.cat([steps[:length, place] for place, length in enumerate(lengths)]))
        if find_recorders(env.base_env):
            in_order = [taken[place] for place, length in enumerate(lengths) for taken in own[:length]]
            made = in_own_spaces(env.base_env, in_order) | made
        last = np.cumsum(lengths) - 1
        made["timeouts"][last] |= ~made["terminals"][last]
        ends = np.flatnonzero(made["terminals"] | made["timeouts"])
        kept = ends[np.searchsorted(ends, frames - 1)] + 1
        return {name: each[:kept] for name, each in made.items()}
    finally:
        env.close(raise_if_closed=False)


@torch.no_grad()
def stepped(
    env: TransformedEnv, evaluator: PolicyEvaluator, share: int, *, sampled: bool, random: bool
) -> tuple[TensorDictBase, list[list[Transition]], list[int]]:
    """Steps ``[time, envs]``, and how many of each environment's count: ``share`` and on to an end.

    Between the two the same as the tasks' own values, of each step of each environment; empty where they are
    not known.
    """
    kept = [RAW + name_of(key) for key in (*converted(env.base_env), env.base_env.reward_keys[0])]
    tasks, own = find_recorders(env.base_env), list[list[Transition]]()
    count, longest = env.numel(), episode_limit(env)
    steps: list[TensorDictBase] = []
    lengths, begun = [0] * count, torch.zeros(count, dtype=torch.int64)
    kind = ExplorationType.RANDOM if sampled else ExplorationType.DETERMINISTIC
    with set_exploration_type(kind), without_log_probabilities(evaluator.actor):
        now = env.reset()
        while not all(lengths):
            acted = evaluator.actor(now)  # at random, too: a memory of the policy's is the task's to keep
            before = [task.now for task in tasks]
            now, following = env.step_and_maybe_reset(random_action(env, acted) if random else acted)
            own.append([(seen, task.action, task.after) for seen, task in zip(before, tasks, strict=True)])
            step = now.reshape(count).select(*kept, "action", strict=False).cpu().clone()
            after = now["next"].reshape(count).select(*kept, "terminated", "truncated", "done", strict=False)
            step.set("next", after.cpu().clone())
            steps.append(step)
            done, begun = step["next", "done"].reshape(count), begun + 1
            for place in range(count):
                over = done[place] or begun[place] >= longest
                if not lengths[place] and len(steps) >= share and over:
                    lengths[place] = len(steps)
            begun[done] = 0
            now = following
    return torch.stack(steps), own, lengths


def converted(env: EnvBase) -> list[NestedKey]:
    """What is written as it is observed here: all, or what a task says beside its own observation."""
    if not (tasks := find_recorders(env)):
        return entries(env)
    return [key for key in entries(env) if key == MASK and key not in entry_paths(*shown_by(env, tasks[0]))]


def shown_by(env: EnvBase, task: TransitionRecorder) -> tuple[Space, str | None]:
    """What a task itself shows, and the entry of it that is a mask of actions."""
    return task.observation_space, mask_entry(env)


def in_own_spaces(env: EnvBase, rows: list[Transition]) -> Columns:
    """Rows of steps as columns in the spaces of the task itself."""
    task = find_recorders(env)[0]
    before, actions, after = ([row[place] for row in rows] for place in range(3))
    seen, entry = shown_by(env, task)
    names = entry_paths(seen, entry)
    alone = len(names) == 1 and not converted(env)
    made: Columns = {}
    for column, values in (("observations", before), (NEXT, after)):
        arrays = flat_arrays(stack_values(values, seen), seen)
        made |= {column if alone else f"{column}/{name}": arrays[path] for name, (path, _) in names.items()}
    arrays = flat_arrays(stack_values(actions, task.action_space), task.action_space)
    taken = action_entries(task.action_space)
    return made | {
        "/".join(filter(None, ["actions", name])): arrays[path] for name, (path, _) in taken.items()
    }


def as_columns(env: TransformedEnv, rows: TensorDictBase) -> Columns:
    """Rows ``[rows]`` of steps, environment after environment, as columns.

    Where the tasks' own values are known they have none of what these are of.
    """
    keys, after = converted(env.base_env), rows["next"]
    terminal, done = (after[name].reshape(-1) for name in ("terminated", "done"))
    limits = after["truncated"].reshape(-1) if "truncated" in after else done & ~terminal
    made: dict[str, Any] = {"rewards": after[RAW + name_of(env.base_env.reward_keys[0])].reshape(-1)}
    for column, of in (("observations", rows), (NEXT, after)):
        for key in keys:
            place = column if len(entries(env.base_env)) == 1 else f"{column}/{name_of(key)}"
            made[place] = of[RAW + name_of(key)]
    made |= {"terminals": terminal, "timeouts": limits}
    if not find_recorders(env.base_env):
        made = {"actions": of_policy(env, rows["action"]), **made}
    return {name: each.numpy() for name, each in made.items()}


def of_policy(env: TransformedEnv, action: Tensor) -> Tensor:
    """Actions of a policy, ``[rows, ...]``, as the environment below its transforms takes them."""
    for each in env.transform:
        if isinstance(each, ActionScaling):
            action = each.of_rows()._inv_apply_transform(action)
    one_hot = type(env.base_env.action_spec_unbatched) is OneHot  # and not several choices
    return action.argmax(-1) if one_hot else action


def own_spaces(settings: Settings) -> tuple[Space, Space, str | None] | None:
    """What a run's task itself shows and takes, and its entry that is a mask of actions.

    ``None`` where it is none of Gymnasium's.
    """
    env = envs.make_env(record_transitions(settings.build("env")), [])
    tasks = find_recorders(env.base_env)
    found = (*shown_by(env.base_env, tasks[0]), tasks[0].action_space) if tasks else None
    env.close()
    return (found[0], found[2], found[1]) if found else None


def described(space: Space) -> dict[str, Any]:
    """A space of arrays as plain data."""
    told: dict[str, Any] = {"shape": list(space.shape or ()), "dtype": str(space.dtype)}
    if isinstance(space, Discrete):
        told |= {"choices": int(space.n)} | ({"start": int(space.start)} if space.start else {})
    elif isinstance(space, MultiDiscrete):
        told |= {"choices": space.nvec.tolist(), "start": space.start.tolist()}
    elif isinstance(space, Box) and space.low.size <= LISTED and space.is_bounded():
        told |= {"low": space.low.tolist(), "high": space.high.tolist()}
    return told


def specs(settings: Settings) -> dict[str, Any]:
    """What a run's task shows and takes, by the names of columns, as plain data."""
    env = envs.make_env(record_transitions(settings.build("env")), [])
    try:
        if not (tasks := find_recorders(env.base_env)):
            return of_specs(env.base_env)
        shown = entry_paths(*shown_by(env.base_env, tasks[0]))
        told = {f"observations/{name}": described(each) for name, (_, each) in shown.items()}
        beside = of_specs(env.base_env)
        told |= {place: beside[place] for key in converted(env.base_env) if (place := f"observations/{key}")}
        taken = action_entries(tasks[0].action_space)
        return told | {
            "/".join(filter(None, ["actions", name])): described(each) for name, (_, each) in taken.items()
        }
    finally:
        env.close()


def of_specs(env: EnvBase) -> dict[str, Any]:
    """What an environment of another kind shows and takes, as plain data."""
    shown = env.observation_spec_unbatched
    found = {f"observations/{name_of(key)}": shown[key] for key in entries(env)}
    found["actions"] = env.action_spec_unbatched
    told: dict[str, Any] = {}
    for name, spec in found.items():
        told[name] = {"shape": list(spec.shape), "dtype": str(spec.dtype).removeprefix("torch.")}
        if type(spec) in (OneHot, Categorical):
            told[name]["choices"] = int(spec.space.n)
        elif not isinstance(spec, Composite) and hasattr(spec.space, "low"):
            bounds = {end: getattr(spec.space, end) for end in ("low", "high")}
            said = all(
                each.numel() <= LISTED and each.double().abs().max() < ENDLESS for each in bounds.values()
            )
            told[name] |= {end: each.tolist() for end, each in bounds.items()} if said else {}
    return told


def returns_of(made: Columns) -> tuple[np.ndarray, np.ndarray]:
    """``[episodes]`` returns and lengths of the episodes that ended in a set."""
    told = files.counted(made)
    over = files.ends(told)
    return told["next_returns"][over], told["steps"][over]


def save(kind: str, out: Path, made: Columns, about: Mapping[str, Any]) -> None:
    """Writes a set to the new folder ``out``: the columns, and beside them what they are of."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with atomically(out / f"data.{kind}") as partial:
            files.write(kind, partial, made)
        with atomically(out / ABOUT) as partial:
            partial.write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    except SaveError:
        if not any(out.iterdir()):  # and may be named again
            out.rmdir()
        raise


def free(out: Path) -> None:
    """Nothing lies where a set is to be written, and a folder can.

    Raises:
        UserError: if something does, or none can.
    """
    if out.exists():
        if not (out.is_dir() and not any(out.iterdir())):
            raise UserError(f"out={out}: something lies there already; name another folder")
        return
    try:
        out.mkdir(parents=True)
        out.rmdir()  # until all is played
    except OSError as error:
        raise UserError(f"out={out}: no folder can be made there: {error.strerror}") from None


def about(
    settings: Settings,
    made: Columns,
    run: Path,
    which: str,
    trained: int,
    *,
    sampled: bool,
    random: float = 0.0,
) -> dict[str, Any]:
    """What a set is of, and what made it."""
    returns, lengths = returns_of(made)
    told = specs(settings)
    finite = [each for each in returns.tolist() if math.isfinite(each)]
    return {
        "format": FORMAT,
        "task": settings.task,
        "env": settings.shown["env"],
        "rows": len(made["rewards"]),
        "episodes": len(returns),
        "return_mean": float(np.mean(finite)) if finite else None,
        "return_std": float(np.std(finite)) if finite else None,
        "length_mean": float(lengths.mean()) if len(lengths) else None,
        "specs": told,
        "made_by": {
            "run": str(run.absolute()),
            "algo": settings.algo,
            "seed": settings.seed,
            "checkpoint": which,
            "frames": trained,
            "actions": "sampled" if sampled else "deterministic",
            "random": random,
            "hydrl": version("hydrl"),
        },
    }
