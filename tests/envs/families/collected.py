"""What the learner sees: rows of a case's environments, by hydrl's own path from words to batches."""

from contextlib import closing
from typing import Any

import torch
from tensordict import TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torchrl.data import OneHot
from torchrl.envs import TransformedEnv

from hydrl import envs
from hydrl.experience.collectors import make_collector
from hydrl.specs import INFO
from tests.conftest import settings
from tests.envs.families.case import Case, Entries, Rows

STEPS_OF_BATCH = 128
MAX_STEPS = 8_000  # in which three ends of each kind must come
BOOKKEEPING = {"step_count", "episode_reward", INFO}


class ScriptedPolicy(TensorDictModuleBase):
    """Policy that follows a script and acts by another policy where the script has no action.

    Args:
        policy: the other one.
        script: see :class:`Case`.
        env: says how actions are written.
    """

    def __init__(self, policy: TensorDictModuleBase, script: Any, env: TransformedEnv) -> None:
        super().__init__()
        self.policy, self.script, self.env = policy, script, [env]
        self.in_keys, self.out_keys = [*policy.in_keys, "step_count"], policy.out_keys
        self.episodes = torch.full((*env.batch_size, 1), -1)

    def forward(self, tensordict: TensorDictBase) -> TensorDictBase:
        tensordict = self.policy(tensordict)
        self.episodes += tensordict["step_count"] == 0
        actions, steps = tensordict["action"], tensordict["step_count"].reshape(-1).tolist()
        rows = actions.reshape(len(steps), *self.env[0].action_spec_unbatched.shape)
        for row, episode, step in zip(rows, self.episodes.reshape(-1).tolist(), steps, strict=True):
            if (action := self.script(max(episode, 0), int(step))) is not None:
                if isinstance(self.env[0].action_spec, OneHot):
                    action = torch.arange(len(row)) == action
                row.copy_(torch.as_tensor(action))
        return tensordict.set("action", rows.reshape(actions.shape))


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
        policy = ScriptedPolicy(policy, case.script, env) if case.script else policy
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
            counts[name] += int(batch["next", name].sum())
        if collected >= (steps or case.steps) and (steps or min(counts.values()) >= 3):
            break
        assert collected < MAX_STEPS, f"{case.name}: {counts} in {collected} steps of {env.batch_size}"
    data = torch.cat(batches, 1)
    observed = [
        key
        for key in env.observation_spec.keys(True, True)
        if key not in BOOKKEEPING and (isinstance(key, str) or not BOOKKEEPING & {*key})
    ]
    return Rows(
        before=to_arrays(data, observed),
        actions=to_arrays(
            data.set("action", data["action"].long().argmax(-1))
            if isinstance(env.action_spec, OneHot)
            else data,
            env.action_keys,
        ),
        after=to_arrays(data["next"], observed),
        rewards=to_arrays(data["next"], env.reward_keys),
        ends={name: data["next", name].squeeze(-1).numpy() for name in ("terminated", "truncated", "done")},
    )


def to_arrays(data: TensorDictBase, keys: Any) -> Entries:
    """Entries as arrays ``[envs, time, ...]``."""
    return {key: data[key].numpy() for key in keys}
