"""What the learner sees: rows of a case's environments, by hydrl's own path from words to batches."""

from contextlib import closing
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch.nn.functional import one_hot
from torchrl.data import OneHot
from torchrl.envs import TransformedEnv

from hydrl import envs
from hydrl.experience.collectors import make_collector
from hydrl.specs import INFO
from tests.conftest import settings
from tests.envs.families.case import Case, Entries, Rows

STEPS_OF_BATCH = 128
MAX_STEPS = 8_000  # in which three ends of each kind must come


class ScriptedPolicy(TensorDictModuleBase):
    """Policy that follows a case's script or plan, and another policy where these have no action.

    Args:
        policy: the other one.
        case: see :class:`Case`.
        env: says how actions are written.
    """

    def __init__(self, policy: TensorDictModuleBase, case: Case, env: TransformedEnv) -> None:
        super().__init__()
        self.policy, self.case, self.shape = policy, case, env.action_spec_unbatched.shape
        self.is_one_hot = isinstance(env.action_spec, OneHot)
        self.in_keys, self.out_keys = [*policy.in_keys, "step_count"], policy.out_keys
        self.episodes = [-1] * env.numel()

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict = self.policy(tensordict)
        for index, row in enumerate(tensordict.reshape(-1)):
            self.episodes[index] += int(row["step_count"]) == 0
            if (action := self.choose(index, row)) is not None:
                choice = torch.as_tensor(action)
                choice = one_hot(choice, self.shape[-1]) if self.is_one_hot else choice
                tensordict["action"].reshape(-1, *self.shape)[index] = choice
        return tensordict

    def choose(self, index: int, row: TensorDictBase) -> Any:
        """The action in one environment, or ``None``."""
        if self.case.plan is not None:
            return self.case.plan({key: row[key].numpy() for key in row.keys(True, True)})
        return self.case.script(max(self.episodes[index], 0), int(row["step_count"]))


def collect(case: Case, num_envs: int, seed: int, steps: int | None = None) -> Rows:
    """Rows of training: half of random actions, then of an untrained actor and the case's script.

    Args:
        case: says the environment.
        num_envs: environments.
        seed: of the environment, the actor and the random actions.
        steps: of each environment; ``None``: the case's, and until it has had three ends of each kind.
    """
    torch.manual_seed(seed)  # of the weights
    chosen = settings("algo=ppo", "transforms=plain", "~tuned", *case.overrides)
    make = chosen.build("env")
    with closing(envs.make_env(make, chosen.transform_builders, num_envs=num_envs)) as env:
        policy = chosen.build("actor")(env)
        policy = ScriptedPolicy(policy, case, env) if case.script or case.plan else policy
        torch.manual_seed(seed)
        env.set_seed(seed)  # again: networks are made from a first observation
        collector = make_collector(
            env,
            None,
            policy,
            frames_per_batch=STEPS_OF_BATCH * num_envs,
            init_random_frames=case.steps // 2 * num_envs,
            num_envs=num_envs,
            seed=seed,
            device="cpu",
        )
        with torch.no_grad():
            return read_rows(env, collector, case, steps)


def read_rows(env: TransformedEnv, collector: Any, case: Case, steps: int | None) -> Rows:
    """The rows of a collector's batches."""
    batches: list[TensorDictBase] = []
    counts = dict.fromkeys(case.ends, 0)
    for batch in collector:
        batches.append(batch.clone() if batch.ndim > 1 or env.batch_size else batch.clone().unsqueeze(0))
        collected = len(batches) * STEPS_OF_BATCH
        for name in counts:
            counts[name] += int(read_flags(batch, name).sum())
        if collected >= (steps or case.steps) and (steps or min(counts.values()) >= 3):
            break
        assert collected < MAX_STEPS, f"{case.name}: {counts} in {collected} steps of {env.batch_size}"
    data = torch.cat(batches, 1)
    observed = [key for key in env.observation_spec.keys(True, True) if not is_bookkeeping(key)]
    spaces = {key: env.observation_spec_unbatched[key].space for key in observed}
    actions = to_arrays(data, env.action_keys)
    if isinstance(env.action_spec, OneHot):
        actions = {key: array.argmax(-1) for key, array in actions.items()}
    return Rows(
        before=to_arrays(data, observed),
        actions=actions,
        after=to_arrays(data["next"], observed),
        rewards=to_arrays(data["next"], env.reward_keys),
        ends={name: read_flags(data, name).numpy() for name in ("terminated", "truncated", "done")},
        bounds={
            key: (space.low.numpy(), space.high.numpy())
            for key, space in spaces.items()
            if hasattr(space, "low")
        },
    )


def read_flags(data: TensorDictBase, name: str) -> torch.Tensor:
    """An end's flags ``[envs, time]``; an environment may have no ``truncated``."""
    done = data["next", "done"]
    return data["next"].get(name, torch.zeros_like(done)).squeeze(-1)


def is_bookkeeping(key: Any) -> bool:
    """Whether an entry is the run's own: step counts, returns so far, followed values of ``info``."""
    names = (key,) if isinstance(key, str) else key
    return names[0] == INFO or names[-1] in ("step_count", "episode_reward")


def to_arrays(data: TensorDictBase, keys: Any) -> Entries:
    """Entries as arrays ``[envs, time, ...]``."""
    return {key: data[key].numpy() for key in keys}
