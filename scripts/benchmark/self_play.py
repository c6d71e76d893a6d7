"""Steps a second of self-play in Kuhn poker: opponents moved by one call, one after the other, and at random.

python -m scripts.benchmark.self_play       # 64 environments and a full pool of 50 policies, interleaved

The ratio to random moves, which need no network, is the most that a faster network call could give.
"""

import statistics
import time

import torch
from tensordict.nn import TensorDictModuleBase
from torchrl.envs import TransformedEnv

from hydrl import envs, specs
from hydrl.config.settings import load
from hydrl.config.tuned import compose_run

ENVS, POLICIES, STEPS, ROUNDS = 64, 50, 16, 7
MODES = ("one after the other", "together", "at random")
WORDS = ["algo=ppo", "env=open_spiel", "env.id=kuhn_poker", "transforms=plain", "run_dir=unused"]


def make_pool(mode: str) -> tuple[TransformedEnv, TensorDictModuleBase]:
    """Environments with a full pool, and the policy that acts in them."""
    words = [*WORDS, f"env.opponents.pool_size={POLICIES}"]
    words += ["env.opponents.random_prob=1.0"] * (mode == "at random")
    settings = load(compose_run(words))
    env = envs.make_env(settings.build("env"), settings.transform_builders, num_envs=ENVS, seed=0)
    actor, pool = settings.build("actor")(env), specs.opponent_pool(env)
    for number in range(1, POLICIES + 1):
        pool.maybe_add(actor, number * pool.every_frames, env)
    pool.batched = mode != "one after the other"
    return env, actor


def measure_speed(env: TransformedEnv, actor: TensorDictModuleBase) -> float:
    """Steps of all environments a second of processor time."""
    start = time.process_time()
    env.rollout(STEPS, actor, break_when_any_done=False)
    return ENVS * STEPS / (time.process_time() - start)


@torch.no_grad()
def main() -> None:
    """Measures each mode in each round, and prints the median speeds and ratios."""
    torch.set_num_threads(1)
    modes = {mode: make_pool(mode) for mode in MODES}
    rounds = [{mode: measure_speed(*pool) for mode, pool in modes.items()} for _ in range(1 + ROUNDS)][1:]
    for mode in MODES:
        speed = statistics.median(speeds[mode] for speeds in rounds)
        ratio = statistics.median(speeds[mode] / speeds["one after the other"] for speeds in rounds)
        print(f"{mode}: {speed:,.0f} steps a second of processor time, {ratio:.2f} times")


if __name__ == "__main__":
    main()
