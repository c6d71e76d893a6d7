"""Guards of hydrl's that keep rows right, and what stands in their place when they are taken out."""

from types import SimpleNamespace

import numpy as np
from gymnasium.vector import AutoresetMode
from torchrl.envs import VmasEnv

from hydrl.envs.checked_env import CheckedEnv
from hydrl.envs.dm_control import ControlEnv
from hydrl.envs.envpool import EnvPoolEnv, Task
from hydrl.envs.gymnasium import GymVector
from hydrl.envs.jax_env import JaxState, Outcome
from hydrl.envs.jumanji import JumanjiSimulator
from hydrl.envs.open_spiel import OpenSpielEnv, SpielGame
from hydrl.envs.pettingzoo import MultiAgentEnv
from hydrl.envs.self_play import SelfPlayEnv
from hydrl.envs.transforms import CopyTensors
from hydrl.networks.heads import masked_categorical
from tests.envs.families.case import Guard

reset_together = VmasEnv._reset
reset_pool, convert_pool, make_pool = EnvPoolEnv._reset, EnvPoolEnv.to_tensordict, Task.make_pool
reset_states, seed_states, end_states = JaxState.reset, JaxState.seed, JaxState.outcome
end_jumanji = JumanjiSimulator.outcome
reset_vector, convert_vector = GymVector._reset, GymVector.to_tensordict
step_checked, step_control, reset_control = CheckedEnv.checked_step, ControlEnv.step, ControlEnv.reset
advance_spiel, reset_spiel, move_spiel = SpielGame.advance, SpielGame.reset, OpenSpielEnv.apply_move
convert_team, step_team, reply = MultiAgentEnv.to_tensordict, MultiAgentEnv._step, SelfPlayEnv.play_opponents


class Uncopied(np.ndarray):
    """Array whose copy is the array itself."""

    def copy(self):
        return self


class Unchanged(CopyTensors):
    """Transform that passes tensors on."""

    def _step(self, tensordict, next_tensordict):
        return next_tensordict

    def _reset(self, tensordict, tensordict_reset):
        return tensordict_reset

    def _inv_call(self, tensordict):
        return tensordict


def reset_all(self, tensordict=None, **kwargs):
    return reset_vector(self, None, **kwargs)


def reset_all_together(self, tensordict=None, **kwargs):
    return reset_together(self, None, **kwargs)


def reset_whole_pool(self, tensordict=None, **kwargs):
    return reset_pool(self, None, **kwargs)


def terminate_in_the_pool(self, terminated, truncated, **columns):
    return convert_pool(self, terminated | truncated, truncated & False, **columns)


def make_unseeded_pool(self, num_envs, num_threads, seed):
    return make_pool(self, num_envs, num_threads, 0)


def reset_all_states(self, mask):
    reset_states(self, None)


def seed_states_with_zero(self, seed):
    seed_states(self, 0)


def seed_states_alike(self, seed):
    seed_states(self, seed)
    self.keys = self.keys[:1].repeat(self.num_envs, 0)


def terminate_states(self):
    entries = end_states(self)
    done = entries["terminated"] | entries["truncated"]
    return entries | {"terminated": done, "truncated": done & False}


def truncate_jumanji(self, state):
    reward, terminated, truncated = end_jumanji(self, state)
    return Outcome(reward, terminated & False, terminated | truncated)


def reshape_entry(name, array):
    shape = (*array.shape[:1], *array.shape[:0:-1]) if array.ndim == 4 else (len(array), -1)
    return name, array.reshape(shape).astype(np.float32)


def terminate_at_the_limit(self, observation, terminated, truncated, **more_entries):
    return convert_vector(self, observation, terminated | truncated, truncated & False, **more_entries)


def pass_action(self, action):
    return step_checked(self, action.view(Uncopied) if isinstance(action, np.ndarray) else action)


def begin_game(self, *, seed=None, options=None):
    self.lives, self.goes_on = 3, False
    return self.env.reset(seed=seed, options=options)


def reset_game_only(self, *, seed=None, options=None):
    return self.env.reset(seed=seed, options=options)


def seed_alike(self, seed):
    self.seeds = [seed] * len(self.envs)


def end_for_good(self, rewards, **done_flags):
    for arrays in self.arrays.values():
        arrays["gone"] = ~arrays["alive"]
    return convert_team(self, rewards, **done_flags)


def step_as_terminated(self, tensordict):
    result = step_team(self, tensordict)
    return result.set("terminated", result["done"]).set("truncated", result["done"] & False)


def reply_unpaid(self):
    reward = self.reward
    yield from reply(self)
    self.reward = reward


def terminate_control(self, action):
    observation, reward, terminated, truncated, info = step_control(self, action)
    return observation, reward, terminated or truncated, False, info


def truncate_control(self, action):
    observation, reward, terminated, truncated, info = step_control(self, action)
    return observation, reward, False, terminated or truncated, info


def reply_unseeded(self, player):
    yield from ()
    mask = self.game.observe(player)["action_mask"]
    return int(UNSEEDED.choice(np.flatnonzero(mask)))


def pay_returns(self):
    self.returns = np.zeros(len(self.possible_agents))
    advance_spiel(self)


def draw_unseeded(self, seed=None):
    reset_spiel(self, int(UNSEEDED.integers(2**31)))


def drop_early_reward(self, action):
    self.early_reward = 0.0
    move_spiel(self, action)


def reset_unseeded(self, *, seed=None, options=None):
    self.np_random  # noqa: B018 - made, so that nothing is seeded below
    return reset_control(self)


def reshaped(image):
    return image.reshape(image.shape[::-1])


UNSEEDED = np.random.default_rng(0)  # of no environment
GYM, ZOO = "hydrl.envs.gymnasium:", "hydrl.envs.pettingzoo:MultiAgentEnv."
SAME_STEP = SimpleNamespace(DISABLED=AutoresetMode.SAME_STEP)
POOL, JAX = "hydrl.envs.envpool:", "hydrl.envs.jax_env:"
GUARDS = [
    Guard(
        "only ended ones of a pool begin anew",
        f"{POOL}EnvPoolEnv._reset",
        reset_whole_pool,
        "envpool-cartpole",
        "observations",
    ),
    Guard(
        "a limit of a pool truncates",
        f"{POOL}EnvPoolEnv.to_tensordict",
        terminate_in_the_pool,
        "envpool-cartpole",
        "ends",
    ),
    Guard("a pool is seeded", f"{POOL}Task.make_pool", make_unseeded_pool, "envpool-cartpole", "seeds"),
    Guard(
        "cells of a pool are one-hot",
        f"{POOL}one_hot_cells",
        lambda codes, sizes: np.zeros((*codes.shape[:3], 20), np.uint8),
        "envpool-minigrid",
        "observations",
        1,
    ),
    Guard(
        "only ended robots of Brax begin anew",
        f"{JAX}JaxState.reset",
        reset_all_states,
        "brax",
        "observations",
    ),
    Guard("a limit of Brax truncates", f"{JAX}JaxState.outcome", terminate_states, "brax", "ends", 1),
    Guard("Brax is seeded", f"{JAX}JaxState.seed", seed_states_with_zero, "brax", "seeds", 1),
    Guard(
        "only ended games of Jumanji begin anew",
        f"{JAX}JaxState.reset",
        reset_all_states,
        "jumanji-maze",
        "observations",
    ),
    Guard("keys of Jumanji differ", f"{JAX}JaxState.seed", seed_states_alike, "jumanji", "seeds"),
    Guard(
        "a game of Jumanji terminates",
        "hydrl.envs.jumanji:JumanjiSimulator.outcome",
        truncate_jumanji,
        "jumanji",
        "ends",
        1,
    ),
    Guard("channels of Jumanji come first", f"{JAX}adapt_entry", reshape_entry, "jumanji", "observations", 1),
    Guard(
        "only ended environments begin anew", f"{GYM}GymVector._reset", reset_all, "cartpole", "observations"
    ),
    Guard("no reset inside a step", f"{GYM}AutoresetMode", SAME_STEP, "cartpole", "last_observation"),
    Guard("a limit truncates", f"{GYM}GymVector.to_tensordict", terminate_at_the_limit, "cartpole", "ends"),
    Guard(
        "observations are copied",
        "hydrl.envs.checked_env:CheckedEnv.copy_observation",
        lambda self, observation: observation,
        "sharing-arrays",
        "observations",
        1,
    ),
    Guard(
        "actions are copied",
        "hydrl.envs.checked_env:CheckedEnv.checked_step",
        pass_action,
        "sharing-arrays",
        "bounds",
        1,
    ),
    Guard(
        "tensors are copied", "hydrl.envs.build:CopyTensors", Unchanged, "sharing-tensors", "observations", 1
    ),
    Guard("random actions are valid", "hydrl.envs.build:mask_transforms", lambda *_: [], "taxi", "masks"),
    Guard(
        "a policy's actions are valid",
        "hydrl.networks.heads:masked_categorical",
        lambda logits, mask, one_hot: masked_categorical(logits, mask | True, one_hot),
        "taxi",
        "masks",
    ),
    Guard("channels come first", "hydrl.envs.spaces:channels_first", reshaped, "minatar", "observations"),
    Guard(
        "no action of the episode before",
        "hydrl.envs.minatar:MinAtarWrapper.reset",
        reset_game_only,
        "minatar",
        "observations",
    ),
    Guard(
        "the next life goes on", "hydrl.envs.atari:EpisodicLife.reset", begin_game, "atari", "observations", 1
    ),
    Guard("environments' seeds differ", f"{ZOO}_set_seed", seed_alike, "pettingzoo", "seeds"),
    Guard("a limit truncates agents", f"{ZOO}_step", step_as_terminated, "pettingzoo", "ends"),
    Guard(
        "a truncated agent is not gone",
        f"{ZOO}to_tensordict",
        end_for_good,
        "agents-are-truncated",
        "last_observation",
    ),
    Guard(
        "only ended environments of VMAS begin anew",  # TorchRL's own
        "torchrl.envs:VmasEnv._reset",
        reset_all_together,
        "vmas",
        "observations",
        3,
    ),
    Guard(
        "a defeat is paid",
        "hydrl.envs.self_play:SelfPlayEnv.play_opponents",
        reply_unpaid,
        "tictactoe",
        "rewards",
        1,
    ),
    Guard(
        "a control task is seeded",
        "hydrl.envs.dm_control:ControlEnv.reset",
        reset_unseeded,
        "dm-control",
        "seeds",
        1,
    ),
    Guard(
        "a control task's limit truncates",
        "hydrl.envs.dm_control:ControlEnv.step",
        terminate_control,
        "dm-control",
        "ends",
        1,
    ),
    Guard(
        "a control task terminates",
        "hydrl.envs.dm_control:ControlEnv.step",
        truncate_control,
        "dm-control-terminates",
        "ends",
        1,
    ),
    Guard(
        "an opponent's draws follow the seed",
        "hydrl.envs.self_play:SelfPlayEnv.opponent_action",
        reply_unseeded,
        "tictactoe",
        "observations",
        1,
    ),
    Guard(
        "a reward is the change of returns",
        "hydrl.envs.open_spiel:SpielGame.advance",
        pay_returns,
        "hanabi",
        "rewards",
        1,
    ),
    Guard(
        "rewards before the first move are paid",
        "hydrl.envs.open_spiel:OpenSpielEnv.apply_move",
        drop_early_reward,
        "hanabi",
        "rewards",
        1,
    ),
    Guard(
        "chance moves follow the seed",
        "hydrl.envs.open_spiel:SpielGame.reset",
        draw_unseeded,
        "leduc",
        "observations",
        1,
    ),
]
