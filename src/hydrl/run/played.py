"""Episodes that a finished run plays, as a set of transitions in the task's own units."""

import json
import math
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import NestedKey, TensorDictBase
from tensordict.nn import ProbabilisticTensorDictModule
from torchrl.data import Categorical, Composite, OneHot
from torchrl.envs import EnvBase, RenameTransform, TransformedEnv
from torchrl.envs.utils import ExplorationType, set_exploration_type

from hydrl.config.settings import Settings
from hydrl.errors import SaveError, UserError
from hydrl.loop.evaluation import Evaluator, episode_seed, without_log_probabilities
from hydrl.parts import environments
from hydrl.parts.libraries import seed_generators
from hydrl.parts.limits import episode_limit
from hydrl.parts.specs import INFO, random_action
from hydrl.parts.transforms import ActionScaling
from hydrl.run import columns
from hydrl.run.columns import NEXT, Columns
from hydrl.run.files import atomically
from hydrl.run.rows import ABOUT, name_of

SIDE_BY_SIDE = 8  # environments at most
RAW = "raw_"  # what names of copies begin with
LISTED = 64  # bounds of an entry that are written down
ENDLESS = 1e38  # which TorchRL has for no bound at all


def entries(env: EnvBase) -> list[NestedKey]:
    """What a task shows, by its own names."""
    return [key for key in env.observation_spec.keys(True, True) if INFO not in (key, key[0])]


def copied(env: EnvBase) -> RenameTransform:
    """Keeps copies of what a task gives, before its transforms change that."""
    keys = [*entries(env), env.reward_keys[0]]
    return RenameTransform(keys, [RAW + name_of(key) for key in keys], create_copy=True)


def play(
    settings: Settings,
    evaluator: Evaluator,
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
    settings: Settings, evaluator: Evaluator, frames: int, *, seed: int, sampled: bool, random: bool
) -> Columns:
    """Those of :func:`play`, by the policy alone or all at random.

    Environments are stepped side by side, and each is played until the episode is over in which its share of
    the frames was reached; of these episodes so many are kept as have the frames together. Only where a task
    has no time limit may one be cut short, which counts as one.
    """
    count = min(SIDE_BY_SIDE, frames)
    seed_generators(seed)
    env = environments.make_env(
        settings.build("env"),
        [copied, *settings.transform_builders],
        num_envs=count,
        device=str(evaluator.make_env.keywords["device"]),
        normaliser=evaluator.normaliser(),
        policy=evaluator.actor,
        seed=seed,
    )
    try:
        steps, lengths = stepped(env, evaluator, -(-frames // count), sampled=sampled, random=random)
        made = as_columns(env, torch.cat([steps[:length, place] for place, length in enumerate(lengths)]))
        last = np.cumsum(lengths) - 1
        made["timeouts"][last] |= ~made["terminals"][last]
        ends = np.flatnonzero(made["terminals"] | made["timeouts"])
        kept = ends[np.searchsorted(ends, frames - 1)] + 1
        return {name: each[:kept] for name, each in made.items()}
    finally:
        env.close(raise_if_closed=False)


@torch.no_grad()
def stepped(
    env: TransformedEnv, evaluator: Evaluator, share: int, *, sampled: bool, random: bool
) -> tuple[TensorDictBase, list[int]]:
    """Steps ``[time, envs]``, and how many of each environment's count: ``share`` and on to an end."""
    kept = [RAW + name_of(key) for key in (*entries(env.base_env), env.base_env.reward_keys[0])]
    count, longest = env.numel(), episode_limit(env)
    steps: list[TensorDictBase] = []
    lengths, begun = [0] * count, torch.zeros(count, dtype=torch.int64)
    kind = ExplorationType.RANDOM if sampled else ExplorationType.DETERMINISTIC
    with set_exploration_type(kind), without_log_probabilities(evaluator.actor):
        now = env.reset()
        while not all(lengths):
            acted = evaluator.actor(now)  # at random, too: a memory of the policy's is the task's to keep
            now, following = env.step_and_maybe_reset(random_action(env, acted) if random else acted)
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
    return torch.stack(steps), lengths


def as_columns(env: TransformedEnv, rows: TensorDictBase) -> Columns:
    """Rows ``[rows]`` of steps, environment after environment, as columns."""
    action = rows["action"]
    for each in env.transform:
        if isinstance(each, ActionScaling):
            action = each.of_rows()._inv_apply_transform(action)
    if type(env.base_env.action_spec_unbatched) is OneHot:  # and not several choices
        action = action.argmax(-1)
    keys, after = entries(env.base_env), rows["next"]
    terminal, done = (after[name].reshape(-1) for name in ("terminated", "done"))
    limits = after["truncated"].reshape(-1) if "truncated" in after else done & ~terminal
    made: dict[str, Any] = {"actions": action, "rewards": after[RAW + name_of(env.base_env.reward_keys[0])]}
    made["rewards"] = made["rewards"].reshape(-1)
    for column, of in (("observations", rows), (NEXT, after)):
        for key in keys:
            place = column if len(keys) == 1 else f"{column}/{name_of(key)}"
            made[place] = of[RAW + name_of(key)]
    made |= {"terminals": terminal, "timeouts": limits}
    return {name: each.numpy() for name, each in made.items()}


def specs(env: EnvBase) -> dict[str, Any]:
    """What a task shows and takes, as plain data."""
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
    told = columns.counted(made)
    over = columns.ends(told)
    return told["next_returns"][over], told["steps"][over]


def save(kind: str, out: Path, made: Columns, about: Mapping[str, Any]) -> None:
    """Writes a set to the new folder ``out``: the columns, and beside them what they are of."""
    out.mkdir(parents=True, exist_ok=True)
    try:
        with atomically(out / f"data.{kind}") as partial:
            columns.write(kind, partial, made)
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
    env = environments.make_env(settings.build("env"), [])
    told = specs(env.base_env)
    env.close()
    finite = [each for each in returns.tolist() if math.isfinite(each)]
    return {
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
