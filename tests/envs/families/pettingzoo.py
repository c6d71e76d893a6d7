"""PettingZoo's parallel environments, with agents in groups."""

import re

import numpy as np

from tests.envs.families.case import Case
from tests.fakes.pettingzoo_env import HuntEnv


class Team:
    """A parallel environment with Gymnasium's methods; it notes which agents have terminated."""

    def __init__(self, env):
        self.env, self.gone = env, set()
        self.action_space = self

    def contains(self, actions):
        return all(self.env.action_space(agent).contains(action) for agent, action in actions.items())

    def reset(self, seed=None):
        self.gone = set()
        observations, infos = self.env.reset(seed=seed)
        return (self, observations, {*self.env.agents}, {*self.gone}), infos

    def step(self, actions):
        acting = {agent: actions[agent] for agent in self.env.agents}
        observations, rewards, terminated, truncated, infos = self.env.step(acting)
        self.gone |= {agent for agent in acting if terminated[agent] and not truncated[agent]}
        is_over, is_truncated = not self.env.agents, any(truncated.values())
        row = (self, observations, {*self.env.agents}, {*self.gone})
        return row, (self, rewards), is_over and not is_truncated, is_over and is_truncated, infos

    def close(self):
        self.env.close()


def groups_of(env):
    """Agents by their names without numbers; of only one kind they are called agents."""
    names = {}
    for agent in env.possible_agents:
        names.setdefault(re.sub(r"_\d+$", "", agent), []).append(agent)
    return names if len(names) > 1 else {"agents": env.possible_agents}


def read_team(row):
    team, observations, alive, gone = row
    entries = {}
    for group, agents in groups_of(team.env).items():
        size = team.env.observation_space(agents[0])
        size = size["observation"].shape if hasattr(size, "spaces") else size.shape
        values = [observations.get(agent, np.zeros(size)) for agent in agents]
        values = [value["observation"] if isinstance(value, dict) else value for value in values]
        entries[group, "observation"] = np.stack(values)
        entries[group, "alive"] = np.array([agent in alive for agent in agents])
        entries[group, "gone"] = np.array([agent in gone for agent in agents])
    return entries


def read_rewards(result):
    team, rewards = result
    return {
        (group, "reward"): np.array([rewards.get(agent, 0.0) for agent in agents])
        for group, agents in groups_of(team.env).items()
    }


def act_in(groups):
    def action(rows):
        return {
            agent: np.int64(choice)
            for group, agents in groups.items()
            for agent, choice in zip(agents, rows[group, "action"], strict=True)
        }

    return action


def make_tag():
    from mpe2 import simple_tag_v3

    return Team(simple_tag_v3.parallel_env())


def hunters_masks(team):
    alive = {*team.env.agents}
    masks = [team.env.masks(agent) if agent in alive else np.ones(3) for agent in ("hunter_0", "hunter_1")]
    return {("hunter", "action_mask"): np.stack(masks).astype(bool)}


def hunt_case(name, lives, limit, ends, fast_num_envs):
    overrides = [f"+env.lives={[*lives]}", f"+env.limit={limit}", "+env.says=observation"]
    return Case(
        name,
        ["algo=mappo", "env=pettingzoo", "env.id=tests.fakes.pettingzoo_env:HuntEnv", *overrides],
        lambda: Team(HuntEnv(lives, limit, "observation")),
        read=read_team,
        ends=ends,
        action=act_in({"hunter": ["hunter_0", "hunter_1"], "prey": ["prey_0"]}),
        reward=read_rewards,
        mask=hunters_masks,
        is_valid=lambda mask, actions: all(
            mask["hunter", "action_mask"][k][actions[f"hunter_{k}"]] for k in range(2)
        ),
        begin=lambda team, seed: team.reset(seed)[0],
        package="pettingzoo",
        random_starts=False,
        fast_num_envs=fast_num_envs,
    )


CASES = [
    Case(
        "pettingzoo",
        ["algo=mappo", "env=simple_tag"],
        make_tag,
        read=read_team,
        ends={"truncated"},
        action=act_in({"adversary": [f"adversary_{k}" for k in range(3)], "agent": ["agent_0"]}),
        reward=read_rewards,
        begin=lambda team, seed: team.reset(seed)[0],
        package="mpe2",
        fast_num_envs=(3,),
    ),
    hunt_case("agents-terminate", (2, 4, 3), 9, {"terminated"}, (1,)),
    hunt_case("agents-are-truncated", (2, 4, 3), 3, {"truncated"}, (3,)),
]
