"""Compares two checkouts of hydrl on this machine: python scripts/compare_checkouts.py --old PATH --new PATH

Two comparisons show that a change moved code and renamed things, and changed nothing else:

configs   the resolved configuration of every pair of configs/algo and configs/env, composed and checked
          without making an environment. Keys that are rules (fits, needs, compatible_with, requires, limits)
          are left out.
updates   the minibatches that each loss reads, and the gradients, parameters and optimizer state of the first
          updates of every algorithm, on a quick environment with small networks: all values in their order,
          equal to the last bit. Names are ignored.

Each checkout runs in processes of its own, with its src first on PYTHONPATH and its .venv/bin/python where it
has one. The exit code is 1 where anything differs, 2 where a checkout cannot be compared, else 0.

Options: --parts configs,updates (both); --algos and --envs (names, as ppo,dqn; all); --keep FOLDER (keeps
what the processes wrote). What is called otherwise in the new checkout stands in its config/migrations.yaml.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

RULES = ("fits", "needs", "compatible_with", "requires", "limits")
IN_ORDER = ("transforms", "env.wrappers", "before", "extra_learners")  # mappings whose order counts
ENVIRONMENTS = {  # what an environment cannot be composed without
    "gym": ["env.id=CartPole-v1"],
    "custom": ["env._target_=torchrl.envs.PendulumEnv"],
    "vmas": ["env.scenario=navigation"],
    "minatar": ["env.id=MinAtar/Breakout-v1"],
    "minigrid": ["env.id=MiniGrid-DoorKey-5x5-v0"],
    "atari": ["env.id=ALE/Pong-v5"],
    "dm_control": ["env.id=cartpole-swingup"],
    "robotics": ["env.id=FetchReach-v4"],
    "pettingzoo": ["env.id=mpe2/simple_spread_v3"],
    "self_play": ["env.id=classic/tictactoe_v3"],
    "open_spiel": ["env.id=kuhn_poker"],
    "envpool": ["env.id=CartPole-v1"],
    "prompts": ["env.task._target_=hydrl.contrib.language.tasks.Digits"],
}
QUICK = {  # the first kind of actions that an algorithm has decides
    "continuous": ["env=pendulum"],
    "discrete": ["env=cartpole"],
    "multi-agent continuous": ["env=simple_spread", "env.continuous_actions=true"],
    "multi-agent discrete": ["env=simple_spread"],
    "text": ["env=digits"],
}
SMALL = ["total_frames=512", "collector.frames_per_batch=128", "minibatches.size=64", "log_every_frames=128"]
SMALL += ["eval.every_frames=512", "eval.episodes=1", "eval.final_episodes=1", "eval.max_steps=5"]
SMALL += ["checkpoint_every_frames=512", "compile=false", "torch_threads=1", "device=cpu", "seed=0"]
LESS = {  # where an algorithm has the key, and it is not 0
    "minibatches.epochs": "2",
    "minibatches.sequence": "16",
    "minibatches.updates": "4",
    "minibatches.warmup_frames": "128",
    "collector.init_random_frames": "128",
    **{f"{network}.num_cells": "[16,16]" for network in ("actor", "critic", "value", "discriminator")},
    "actor.width": "16",
    "actor.layers": "1",
}
DATA = {  # what offline algorithms learn from, made by the old checkout
    "pendulum": ["algo=sac", "env=pendulum", "critic.num_cells=[16,16]", "collector.init_random_frames=128"],
    "cartpole": ["algo=dqn", "env=cartpole"],
}
DATA_SIZE = ["~tuned", *SMALL, "total_frames=1_024", "minibatches.warmup_frames=128", "minibatches.updates=1"]
DATA_SIZE += ["actor.num_cells=[16,16]"]

# Runs in a process of a checkout: reads a task as JSON from stdin and writes what came of it where that says.
COMPOSE = '''
import importlib, json, sys
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

def import_first(*names):
    """The first of some names, MODULE:NAME, that this checkout has; add one where a module moves."""
    for name in names:
        module, _, name = name.partition(":")
        try:
            return getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            pass
    sys.exit(f"this checkout has none of {names}; add its name to scripts/compare_checkouts.py")

composed = import_first("hydrl.config.tuned:compose_run", "hydrl.config.tuned:composed")
load = import_first("hydrl.config.settings:load")
UserError = import_first("hydrl.errors:UserError")

task = json.load(sys.stdin)
outcomes = {}
for name, words in task["runs"].items():
    try:
        cfg = composed([*words, "run_dir=unused"])
        outcomes[name] = {"config": load(cfg).model_dump(mode="json")}
    except (UserError, HydraException, OmegaConfBaseException) as error:
        outcomes[name] = {"refused": " ".join(str(error).split())}
json.dump(outcomes, open(task["out"], "w"))
'''
TRAIN = """
import json, sys
import hydrl
import torch
from tensordict import TensorDictBase
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torchrl.objectives import LossModule

task = json.load(sys.stdin)
records = {}

def plain(value):
    return [tensor.detach().cpu().clone() for tensor in value if isinstance(tensor, torch.Tensor)]

def minibatch(module, arguments):
    if isinstance(module, LossModule) and arguments and isinstance(arguments[0], TensorDictBase):
        rows = records["minibatches"]
        if len(rows) < task["updates"]:
            rows.append(plain(arguments[0].values(True, True)))

def stepped(optimizer, *_):
    if len(records["parameters"]) == task["updates"]:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    records["parameters"].append(plain(parameters))
    records["gradients"].append(plain(parameter.grad for parameter in parameters))
    states = [optimizer.state[parameter] for parameter in parameters if parameter in optimizer.state]
    records["optimizer"].append(plain(value for state in states for value in state.values()))

register_module_forward_pre_hook(minibatch)
register_optimizer_step_post_hook(stepped)
outcomes = {}
for name, words in task["runs"].items():
    for key in ("minibatches", "parameters", "gradients", "optimizer"):
        records[key] = []
    try:
        hydrl.train(*words, folder=f"{task['folder']}/{name}")
        outcomes[name] = {"records": dict(records)}
    except Exception as error:
        outcomes[name] = {"refused": " ".join(f"{type(error).__name__}: {error}".split())}
    print(name, outcomes[name].get("refused", "trained"), file=sys.stderr, flush=True)
torch.save(outcomes, task["out"])
"""


class Checkout:
    """A working copy, whose code runs in processes of its own.

    Args:
        place: its folder.
        folder: where those write to.
    """

    def __init__(self, place: Path, folder: Path) -> None:
        self.place, self.folder = place.resolve(), folder
        if not (self.place / "train.py").is_file():
            sys.exit(f"error: {place} is no checkout of hydrl (it has no train.py)")
        folder.mkdir(parents=True)

    def names(self, group: str) -> list[str]:
        """The options of a group."""
        return sorted(file.stem for file in (self.place / "configs" / group).glob("*.yaml"))

    def run(self, code: str, runs: Mapping[str, Sequence[str]], out: str, **more: Any) -> Path:
        """What a process of the checkout wrote.

        Args:
            code: that reads a task from stdin.
            runs: the words of each run.
            out: the file's name.
            more: of the task.
        """
        python, path = self.place / ".venv" / "bin" / "python", self.folder / out
        environment = {**os.environ, "PYTHONPATH": str(self.place / "src"), "PYTHONHASHSEED": "0"}
        environment["OMP_NUM_THREADS"] = "1"
        task = {"runs": runs, "out": str(path), "folder": str(self.folder), **more}
        done = subprocess.run(
            [str(python) if python.exists() else sys.executable, "-c", code],
            input=json.dumps(task),
            env=environment,
            cwd=self.place,
            capture_output=True,
            text=True,
            check=False,
        )
        (self.folder / f"{out}.log").write_text(done.stdout + done.stderr)
        if done.returncode or not path.exists():
            print(done.stderr[-2_000:], file=sys.stderr)
            print(f"error: {self.place} cannot be compared: exit code {done.returncode}", file=sys.stderr)
            sys.exit(2)
        return path


def run_both(
    old: Checkout, new: Checkout, code: str, runs: Mapping[str, Any], renamed: Mapping[str, Any], **more: Any
) -> list[Path]:
    """What a process of each checkout wrote, side by side; see :meth:`Checkout.run`."""
    out = "configs.json" if code == COMPOSE else "updates.pt"
    with ThreadPoolExecutor(2) as pool:
        tasks = [
            pool.submit(side.run, code, words, out, **more) for side, words in ((old, runs), (new, renamed))
        ]
        return [task.result() for task in tasks]


def read_migrations(checkout: Checkout) -> Any:
    """The module of a checkout that knows what is called otherwise than in earlier ones."""
    file = checkout.place / "src" / "hydrl" / "config" / "migrations.py"
    spec: Any = importlib.util.spec_from_file_location("migrations", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flatten(config: Any, above: str = "") -> Iterator[tuple[str, Any]]:
    """The dotted keys of a configuration and what they hold, without rules; lists are whole."""
    if not isinstance(config, Mapping) or not config:
        yield above, config
        return
    if above in IN_ORDER:
        yield f"{above} (order)", [*config]
    for key, value in config.items():
        if key not in RULES:
            yield from flatten(value, f"{above}.{key}" if above else str(key))


def compare_configs(old: Checkout, new: Checkout, algos: list[str], envs: list[str]) -> int:
    """Prints the pairs whose configuration differs; returns how many do."""
    runs = {}
    for algo in algos:
        more = [replay_buffer(old), "data.path=none"] if reads_data(old, algo) else []
        for env in envs:
            runs[f"{algo} {env}"] = [f"algo={algo}", f"env={env}", *ENVIRONMENTS.get(env, []), *more]
    migrations = read_migrations(new)
    renamed = {name: [*map(migrations.new_word, words)] for name, words in runs.items()}
    theirs, ours = (json.loads(path.read_text()) for path in run_both(old, new, COMPOSE, runs, renamed))
    differing, counts = dict[str, list[str]](), Counter[str]()
    for name in runs:
        before, after = theirs[name], ours[name]
        if all("pip install" in outcome.get("refused", "") for outcome in (before, after)):
            counts["need an extra that is not installed"] += 1
        elif "refused" in before and "refused" in after:
            counts["refused by both"] += 1
            print(f"  {name} is refused by both: {after['refused']}")
        elif "refused" in before or "refused" in after:
            side = "old" if "refused" in before else "new"
            differing[name] = [f"refused by the {side} checkout alone: {(before | after)['refused']}"]
        else:
            config = migrations.new_config(before["config"], scale="bounds")
            was, now = dict(flatten(config)), dict(flatten(after["config"]))
            keys = [key for key in {**was, **now} if was.get(key, ...) != now.get(key, ...)]
            counts["compose"] += 1
            if keys:
                differing[name] = [f"{key}: {show(was, key)} -> {show(now, key)}" for key in keys]
    reasons = dict[str, list[str]]()
    for name, lines in differing.items():
        for line in lines:
            reasons.setdefault(line, []).append(name)
    for line, names in reasons.items():
        print(f"  {line}\n    in {len(names)}: {', '.join(names)}")
    summary = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    print(f"configs: {len(runs)} pairs, {summary}; {len(differing)} differ")
    return len(differing)


def show(config: Mapping[str, Any], key: str) -> str:
    """A value, or that there is none."""
    return json.dumps(config[key]) if key in config else "(no such key)"


def read_algorithm(checkout: Checkout, algo: str) -> dict[str, Any]:
    """The YAML of an algorithm over those that its defaults list names."""
    from omegaconf import OmegaConf

    content: Any = OmegaConf.load(checkout.place / "configs" / "algo" / f"{algo}.yaml")
    parents = [name for name in content.get("defaults", []) if name in checkout.names("algo")]
    layers = [*(read_algorithm(checkout, name) for name in parents), content]
    merged: Any = OmegaConf.to_container(OmegaConf.merge(*layers))
    return merged


def replay_buffer(checkout: Checkout) -> str:
    """The option that reads a run's replay buffer, as it is typed."""
    return "data=run" if "run" in checkout.names("data") else "data=replay_buffer"


def reads_data(checkout: Checkout, algo: str) -> bool:
    """Whether an algorithm learns from an offline dataset, as its YAML says."""
    content = read_algorithm(checkout, algo)
    rules = content.get("fits") or content.get("compatible_with") or {}
    if content.get("action_spaces") == ["text"]:  # its tasks solve their own prompts
        return False
    return "data" in rules or rules.get("collector") == ["dataset"]


def compare_updates(old: Checkout, new: Checkout, algos: list[str]) -> int:
    """Prints each algorithm and the first value that differs; returns how many do."""
    import torch

    offline = {algo for algo in algos if reads_data(old, algo)}
    if offline:
        recording = {env: [*words, *DATA_SIZE] for env, words in DATA.items()}
        old.run(TRAIN, recording, "data.pt", updates=0)
    runs = {}
    for algo in algos:
        env = QUICK[read_algorithm(old, algo)["action_spaces"][0]]
        data = old.folder / env[0].partition("=")[2]
        runs[algo] = [f"algo={algo}", *env, "~tuned"]
        runs[algo] += [replay_buffer(old), f"data.path={data}"] if algo in offline else []
    composed = json.loads(old.run(COMPOSE, runs, "keys.json").read_text())
    for algo, words in runs.items():
        config = dict(flatten(composed[algo].get("config", {})))
        words += [*SMALL, *(f"{key}={value}" for key, value in LESS.items() if config.get(key))]
    renamed = {algo: [*map(read_migrations(new).new_word, words)] for algo, words in runs.items()}
    paths = run_both(old, new, TRAIN, runs, renamed, updates=8)
    theirs, ours = (torch.load(path, weights_only=True) for path in paths)
    differing = skipped = 0
    for algo in runs:
        before, after = theirs[algo], ours[algo]
        refusals = [outcome["refused"] for outcome in (before, after) if "refused" in outcome]
        if len(refusals) == 2 and all("pip install" in refusal for refusal in refusals):
            skipped += 1
            continue
        line = "; ".join(refusals) or first_difference(before["records"], after["records"])
        differing += bool(line)
        steps = len(after["records"]["parameters"]) if "records" in after else 0
        print(f"  {algo}: {line or f'equal, {steps} updates'}")
    extras = f", {skipped} need an extra that is not installed" if skipped else ""
    print(f"updates: {len(runs)} algorithms{extras}; {differing} differ")
    return differing


def first_difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Where two runs first part, update by update; nothing where they do not."""
    if not before["parameters"] or not before["minibatches"]:
        return "no update was made"
    for update in range(max(len(before["minibatches"]), len(before["parameters"]))):
        for kind in ("minibatches", "gradients", "parameters", "optimizer"):
            was, now = (run[kind][update : update + 1] for run in (before, after))
            if len(was) != len(now):
                return f"{kind}: {len(before[kind])} updates, now {len(after[kind])}"
            for place, pair in enumerate(zip(*was, *now, strict=False)) if was else ():
                if line := difference(*pair):
                    return f"{kind} of update {update + 1}, value {place + 1} of {len(was[0])}: {line}"
            if was and len(was[0]) != len(now[0]):
                return f"{kind} of update {update + 1}: {len(was[0])} values, now {len(now[0])}"
    return ""


def difference(before: Any, after: Any) -> str:
    """What tells two tensors apart; nothing where they are equal to the last bit."""
    import torch

    if (before.shape, before.dtype) != (after.shape, after.dtype):
        return f"{before.dtype} {list(before.shape)}, now {after.dtype} {list(after.shape)}"
    if torch.equal(before, after) or (
        torch.equal(before.isnan(), after.isnan()) and torch.equal(before.nan_to_num(), after.nan_to_num())
    ):
        return ""
    apart = (before.double() - after.double()).abs()
    return f"{int((apart != 0).sum())} of {apart.numel()} numbers differ, by {float(apart.max()):.3g} at most"


def main(words: Sequence[str]) -> int:
    """Compares; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("--old", type=Path, required=True)
    parser.add_argument("--new", type=Path, required=True)
    parser.add_argument("--keep", type=Path)
    for name in ("--parts", "--algos", "--envs"):
        parser.add_argument(name, default="", type=lambda text: [name for name in text.split(",") if name])
    options = parser.parse_args(words)
    parts = options.parts or ["configs", "updates"]
    if unknown := {*parts} - {"configs", "updates"}:
        parser.error(f"--parts {','.join(sorted(unknown))}: use configs,updates")
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.keep or Path(scratch)
        old, new = (Checkout(getattr(options, name), folder / name) for name in ("old", "new"))
        algos, envs = options.algos or old.names("algo"), options.envs or old.names("env")
        differing = compare_configs(old, new, algos, envs) if "configs" in parts else 0
        differing += compare_updates(old, new, algos) if "updates" in parts else 0
    return int(bool(differing))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
