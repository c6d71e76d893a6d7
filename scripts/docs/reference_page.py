"""The pages ``docs/reference/``: configuration keys, metrics, the command line and Python."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hydrl import metric_names
from hydrl.__main__ import SCRIPTS
from hydrl.config import CONFIGS, ROOT
from hydrl.config.schema import NETWORKS, RULES
from hydrl.config.tree import find, option_names, paths, read_option
from hydrl.run.logging.html import code, fenced, table
from scripts.docs.algorithms_page import options_of
from scripts.docs.keys import capitalised, default, file_comment, first_sentence, in_cell, meaning, range_of
from scripts.docs.python_page import python_page

WRITTEN = "<!-- Written by python scripts/docs/pages.py from configs/, src/ and scripts/. -->"
KEYS = """\
# Configuration keys

Every key of a run with its default, what it may hold and what it means. Those of `env` are on
[environments](../environments.md) and [your own](../own_environment.md#keys-of-an-environment). Where options
differ, the default names them.

The default is the option's. Algorithms set some keys themselves: "`1000`, `algo=ppo`: `2048` †" is 1000 with
most algorithms and 2048 with PPO. With † others differ, too: their pages in [algorithms](../algorithms.md)
have the values. Presets may set others. `${discount:}` follows
[the time limit](../concepts.md#frame-batch-update-minibatch-evaluation).
`python train.py … --cfg job --resolve` prints the values of a run.
"""
# Groups in the order of the loop; what chooses of several groups is on other pages.
GROUPS = ["collector", "transforms", "encoder", "rnn", "layers", *NETWORKS, "exploration", "buffer", "data"]
GROUPS += ["minibatches", "loss", "target", "optim", "schedule", "logger"]
METRICS = """\
# Metrics

Columns of `metrics.csv`, keys of `summary.json` and names in the loggers. Returns are the environment's own,
before any reward transform. `loss/…` are the terms of the loss, means over the batch; a value followed in
`info` is `train/NAME` and `eval/NAME`, such as `eval/is_success`, the share of the evaluation's episodes that
succeeded. [A run](../running.md#metrics) explains the important ones.
"""
KEY_MEANING = re.compile(r"(\w+)(?: \(((?:[^()]|\([^()]*\))*)\))?(, | and |\. ?|$)")
PAIR = r"[\w.]+=[\w./]*\w(?:,\w+)*"
CODE = re.compile(
    rf"pip install '\S+'|(?<![`\w])(?:'[\w.]+=[^']+'|{PAIR}(?: {PAIR})*|[\w-]*(?:/[\w-]+)+\.\w+)"
)
COMMANDS = """\
# Command line

`hydrl` runs `train.py` and the scripts from any folder; `hydrl evaluate …` is `python scripts/evaluate.py …`.

| command | what it does |
| --- | --- |
| `python train.py GROUP=OPTION KEY=VALUE …` | trains; [all keys](keys.md) |
| `python train.py --help` | lists groups and options |
| `python train.py … --cfg job --resolve` | prints every key and its value and does not train |
| `python train.py … --info defaults-tree` | prints which file each option came from |
| `python train.py … --config-dir=conf` | also reads options of your own in `conf/GROUP/NAME.yaml` |
| `python train.py -m KEY=A,B …` | [sweeps](../sweeps.md) over values |
| `python train.py resume=RUN` | [resumes](../resuming.md); `resume=auto` what the run folder holds |
| `+KEY=VALUE` | adds a key that no file has |
| `~KEY` | removes a key |
| `hydrl docs` | prints the folder of this documentation |

A value with spaces, brackets or commas is quoted as the shell needs it: `'actor.num_cells=[64,64]'`. zsh, the
default on macOS, needs the quotes for brackets.

## Exit codes

| code | meaning |
| --- | --- |
| 0 | finished |
| 1 | a run failed, or could not write its files |
| 2 | a mistake in keys, values or their combination; nothing was started ([sweeps](../sweeps.md) differ) |
| 3 | a loss or gradient was NaN or infinite |
| 130, 143, 129 | stopped by Ctrl-C (SIGINT), SIGTERM or a lost terminal (SIGHUP); the run was saved |
"""


def make_pages() -> dict[str, str]:
    """Markdown of each ``reference/PAGE.md``, by name."""
    pages = {"keys": keys_page(), "metrics": metrics_page(), "command_line": commands_page()}
    pages["python"] = python_page()
    return {f"reference/{name}.md": text for name, text in pages.items()}


def keys_page() -> str:
    """All keys: the run's own, then each group's."""
    parts = [KEYS.strip(), WRITTEN, "## Run"]
    root = yaml.safe_load((CONFIGS / "train.yaml").read_text(encoding="utf-8"))
    own = {key: value for key, value in root.items() if key not in ("defaults", "hydra", "loss", *GROUPS)}
    cells = [
        [code(key), default_cell(key, {default(value): []}), range_of(key, own), meaning(key, own, {})]
        for key, value in leaves(own)
    ]
    parts += [table(["key", "default", "range", "meaning"], cells)]
    for group in GROUPS:
        parts += group_section(
            group, {name: read_option(f"/{group}/{name}") for name in option_names(CONFIGS / group)}
        )
    return "\n\n".join(filter(None, parts)) + "\n"


def group_section(group: str, options: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """A group: its options with what they are, and the keys of all of them."""
    described = [
        [
            code(f"{group}={name}"),
            in_cell(capitalised(first_sentence(file_comment(CONFIGS / group / f"{name}.yaml")))),
        ]
        for name in options
    ]
    rows: dict[str, dict[str, list[str]]] = {}
    for name, values in options.items():
        for key, value in leaves(values):
            if group == "loss" and key.startswith(("networks.", "keys.")):
                continue  # wiring, which its page has
            rows.setdefault(key, {}).setdefault(default(value), []).append(name)
    cells = []
    for key, names_by_default in rows.items():
        ((_, (first, *_)), *_) = names_by_default.items()
        path, values = f"{group}.{key}", {group: options[first]}
        sentence = meaning(path, values, {group: first})
        cells.append([code(path), default_cell(path, names_by_default), range_of(path, values), sentence])
    parts = [f"## {group}", table(["option", ""], described)]
    return [*parts, table(["key", "default", "range", "meaning"], cells) if cells else ""]


def default_cell(key: str, names_by_default: Mapping[str, Sequence[str]]) -> str:
    """A key's defaults, with PPO's own value, and a mark if other algorithms have others.

    Args:
        key: a dotted key.
        names_by_default: the options that have each default.
    """
    cells = [
        value if len(names_by_default) == 1 else f"{value} ({', '.join(names)})"
        for value, names in names_by_default.items()
    ]
    by_algo = {
        algo: default(find(read_option(f"/algo/{algo}"), key))
        for algo in option_names(CONFIGS / "algo")
        if key in {*paths(read_option(f"/algo/{algo}"))}
    }
    option = options_of("ppo").get(key.partition(".")[0])
    of_option = next((value for value, names in names_by_default.items() if option in names), "")
    if (of_ppo := by_algo.pop("ppo", of_option)) != of_option and of_ppo not in cells:
        cells.append(f"`algo=ppo`: {of_ppo}")
    return ", ".join(cells) + " †" * any(value not in names_by_default for value in by_algo.values())


def leaves(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Dotted keys with their values, without what names a component or a rule."""
    for key in paths(values):
        value, parts = find(values, key), key.split(".")
        hidden = any(part in RULES or re.fullmatch("_.*_", part) for part in parts)
        if not hidden and (not isinstance(value, dict) or not value):
            yield key, value


def metrics_page() -> str:
    """Each metric's name with what it means."""
    source = Path(str(metric_names.__file__)).read_text(encoding="utf-8")
    names = re.findall(r'^[A-Z_]+ = "([^"]+)"(?:  # (.*))?$', source, re.M)
    cells = [[code(name), in_cell(capitalised(comment))] for name, comment in names]
    return "\n\n".join([METRICS.strip(), WRITTEN, table(["metric", "meaning"], cells)]) + "\n"


def commands_page() -> str:
    """The command line: train.py's words, exit codes, and each script's help."""
    parts = [COMMANDS.strip(), WRITTEN]
    for name, script in SCRIPTS.items():
        help_text = ast.get_docstring(ast.parse((ROOT / script).read_text(encoding="utf-8"))) or ""
        parts += [f"## hydrl {name}", *describe_script(help_text)]
    return "\n\n".join(parts) + "\n"


def describe_script(help_text: str) -> Iterator[str]:
    """A script's help in Markdown: what it does, its command, a table of its keys, the rest."""
    first, *paragraphs = re.split(r"\n\s*\n", help_text)
    purpose, _, command = first.partition(":")
    yield f"{with_code(purpose)}:"
    yield fenced(command.strip() or paragraphs.pop(0).strip(), "")
    for paragraph in paragraphs:
        text = " ".join(paragraph.split())
        if text.startswith("Keys: "):
            keys, text = split_keys(text.removeprefix("Keys: "))
            yield table(["key", "meaning"], [[code(key), in_cell(with_code(about))] for key, about in keys])
        if text:
            yield with_code(text)


def split_keys(text: str) -> tuple[list[tuple[str, str]], str]:
    """Keys with their meanings of ``KEY (meaning), KEY and KEY. More``, and what comes after them."""
    keys, end = [], 0
    while match := KEY_MEANING.match(text, end):
        keys.append((match[1], match[2] or ""))
        end = match.end()
        if match[3] != ", " and match[3] != " and ":
            break
    return keys, text[end:]


def with_code(text: str) -> str:
    """Text whose commands, ``KEY=VALUE`` and file names are inline code."""
    return CODE.sub(r"`\g<0>`", text)
