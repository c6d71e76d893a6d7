"""The pages of algorithms, ``docs/algorithms.md`` and a page each family: loss, keys and results."""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, cast

import numpy as np
import yaml
from omegaconf import DictConfig, OmegaConf, open_dict

from hydrl.config.schema import RULES
from hydrl.config.settings import load
from hydrl.config.tree import find
from hydrl.config.tuned import compose_run
from hydrl.errors import UserError
from hydrl.experiments import report
from hydrl.experiments.runs import RunResult
from hydrl.run.logging.html import as_text, code, fenced, table
from scripts.docs.keys import capitalised, default, meaning, range_of

FACTS = yaml.safe_load(Path(__file__).with_name("algorithms.yaml").read_text(encoding="utf-8"))
WRITTEN = "<!-- Written by python scripts/docs/pages.py from configs/ and scripts/docs/algorithms.yaml. -->"
OVERVIEW = """\
# Algorithms

All algorithms share one loop, [train.py](../train.py); an algorithm is a YAML file in `configs/algo`.
[Choosing an algorithm](choosing.md) is a decision path. [Results](results.md) compares with other libraries.
"""
RECURRENT, IMAGES = "recurrent (`rnn=lstm`)", "image observations"
ROW_KEYS = ("algo", "seed", "resume")
RESULTS_NOTE = """\
Return: mean ± standard deviation of the final evaluations, over the seeds. ms a frame: wall time of the
quickest run divided by its frames, evaluations included, on two busy CPU cores. [Results](../results.md) has
intervals and other libraries' returns."""


def make_pages(runs_by_row: Iterable[Sequence[RunResult]]) -> dict[str, str]:
    """Markdown of ``algorithms.md`` and each ``algorithms/FAMILY.md``, by name.

    Args:
        runs_by_row: the runs of each row of the table of results.
    """
    rows = [runs for runs in runs_by_row if runs]
    names = sorted({runs[0].env for runs in rows})
    pictures = dict(zip(names, report.figure_names(names), strict=True))
    pages = {"algorithms.md": overview()}
    for name, family in FACTS["families"].items():
        parts = [f"# {family['title']}", WRITTEN, family["text"], FACTS["notation"]]
        for algo, facts in family["algorithms"].items():
            parts += section(algo, facts, [runs for runs in rows if runs[0].algo == algo])
        envs = sorted({runs[0].env for runs in rows if runs[0].algo in family["algorithms"]})
        parts += curves([f"curves-{pictures[env]}" for env in envs])
        pages[f"algorithms/{name}.md"] = "\n\n".join(filter(None, parts)) + "\n"
    return pages


def overview() -> str:
    """A table of each family's algorithms."""
    parts = [OVERVIEW.strip(), WRITTEN]
    for name, family in FACTS["families"].items():
        cells = []
        for algo, facts in family["algorithms"].items():
            page = f"algorithms/{name}.md#{anchor(facts['title'])}"
            spaces = [space.removeprefix("multi-agent ") for space in settings_of(algo)["action_spaces"]]
            able = [dict(properties(algo))[name] for name in (RECURRENT, IMAGES)]
            cells.append(
                [f"[{facts['title']}]({page})", f"`algo={algo}`", ", ".join(spaces), *able, facts["use"]]
            )
        columns = ["algorithm", "command", "actions", "`rnn=lstm`", "images", "when to use"]
        parts += [f"## {family['title']}", table(columns, cells)]
    return "\n\n".join(parts) + "\n"


def section(algo: str, facts: Mapping[str, Any], rows: Sequence[Sequence[RunResult]]) -> list[str]:
    """An algorithm's part of its family's page."""
    papers = ", ".join(f"[{name}]({link})" for name, link in facts["paper"].items())
    parts = [f"## {facts['title']}", f"{papers}. {capitalised(facts['use'])}."]
    parts += [fenced(" ".join(["python train.py", *facts["example"]]))]
    parts += [fenced(facts["loss"].replace(",   ", "\n"), "text"), "Differs from the paper:"]
    parts += ["\n".join(f"- {difference}" for difference in facts["differs"])]
    parts += [table(["property", ""], properties(algo)), key_table(algo, facts)]
    if rows:
        cells = [
            [
                code(shared_overrides(runs)),
                as_text(runs[0].id or runs[0].env),
                str(len(runs)),
                f"{frames(runs):,.0f}",
                score(runs),
                f"{milliseconds(runs):.2f}",
            ]
            for runs in rows
        ]
        columns = [f"`algo={algo}` with", "environment", "seeds", "frames", "return", "ms a frame"]
        parts += [table(columns, cells), RESULTS_NOTE]
    whole = without_rules({key: value for key, value in settings_of(algo).items() if key != "run_dir"})
    dumped = yaml.safe_dump(whole, sort_keys=False, default_flow_style=None, width=100)
    summary = f"<summary>All keys of <code>algo={algo}</code></summary>"
    return [*parts, f'<details markdown="1">{summary}', fenced(dumped, "yaml"), "</details>"]


def properties(algo: str) -> list[list[str]]:
    """What an algorithm can learn with, as its configuration says."""
    values = settings_of(algo)
    spaces, has_world_model = values["action_spaces"], values["world_model"] is not None
    compile_text = "with `compile=true`" if accepts(algo, "compile=true") else "no"
    if (updates := values["loss"]["compile_min_updates"]) and accepts(algo, "compile=true"):
        compile_text = f"by default in runs of {updates:,} updates and more"
    return [
        ["actions", ", ".join(spaces)],
        ["learns from", source(values)],
        [RECURRENT, yes_no(accepts(algo, "rnn=lstm"))],
        [IMAGES, yes_no("encoder" in values["actor"] or has_world_model)],
        ["action masks", yes_no(not has_world_model and any("discrete" in space for space in spaces))],
        ["`torch.compile`", compile_text],
        *(
            [f"other `{group}=`", ", ".join(f"`{option or 'null'}`" for option in able if option != chosen)]
            for group, able in values["compatible_with"].items()
            if group != "because" and len(able) > 1 and (chosen := options_of(algo).get(group)) in able
        ),
    ]


def source(values: Mapping[str, Any]) -> str:
    """What the minibatches are drawn from."""
    buffers = [name for name in values["compatible_with"].get("buffer", []) if name]
    if values["buffer"] is None:
        return "an offline dataset, `data=`"
    if buffers == ["rollout"]:
        return "the newest batch" + (", and an expert's dataset" if values["data"] else "")
    named = ", ".join(f"`{name}`" for name in buffers)
    return f"a replay buffer: `buffer=` {named}" + (", and a dataset" if values["data"] else "")


def key_table(algo: str, facts: Mapping[str, Any]) -> str:
    """The keys worth knowing with default, range and meaning."""
    values, options = settings_of(algo), options_of(algo)
    cells = [
        [code(key), default(find(values, key)), range_of(key, values), meaning(key, values, options)]
        for key in facts["keys"]
    ]
    return table(["key", "default", "range", "meaning"], cells)


def curves(pictures: Sequence[str]) -> list[str]:
    """Learning curves, two beside each other where there is room."""
    if not pictures:
        return []
    images = [
        f'<a href="../results/{name}.svg"><img src="../results/{name}.png" alt="{name}" width="49%"></a>'
        for name in pictures
    ]
    return ["## Learning curves", "An image links to its SVG.", "\n".join(images)]


@cache
def compose_algorithm(algo: str, *words: str) -> DictConfig:
    """What the algorithm's example composes to without a preset, with Hydra's own node."""
    return compose_run(
        ["run_dir=outputs", *example_words(algo), "tuned=null", *words], return_hydra_config=True
    )


def example_words(algo: str) -> list[str]:
    """The algorithm, environment and data of an algorithm's example."""
    algorithms = {
        name: facts for family in FACTS["families"].values() for name, facts in family["algorithms"].items()
    }
    keys = ("algo", "env", "env.id", "data", "data.path")
    return [word for word in algorithms[algo]["example"] if word.partition("=")[0] in keys]


@cache
def settings_of(algo: str) -> dict[str, Any]:
    """The keys of an algorithm and their values, resolved."""
    cfg = compose_algorithm(algo).copy()
    with open_dict(cfg):
        del cfg["hydra"]
    return cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=True))


def options_of(algo: str) -> dict[str, str | None]:
    """The option of each group that an algorithm chooses."""
    return dict(compose_algorithm(algo).hydra.runtime.choices)


@cache
def accepts(algo: str, word: str) -> bool:
    """Whether the algorithm's settings are valid with an override more."""
    cfg = compose_algorithm(algo, word).copy()
    with open_dict(cfg):
        del cfg["hydra"]
    try:
        load(cfg)
    except UserError:
        return False
    return True


def without_rules(values: Any) -> Any:
    """Settings without what says which options go with which."""
    if isinstance(values, dict):
        return {key: without_rules(value) for key, value in values.items() if key not in RULES}
    return values


def shared_overrides(runs: Sequence[RunResult]) -> str:
    """The overrides that all runs of a row have, without the algorithm."""
    words = [word for word in runs[0].overrides if word.partition("=")[0] not in ROW_KEYS]
    return " ".join(word for word in words if all(word in run.overrides for run in runs))


def score(runs: Sequence[RunResult]) -> str:
    """Mean and standard deviation of the runs' final evaluations."""
    return report.format_mean_std(np.array([run.score for run in runs])).replace(" ", "\N{NO-BREAK SPACE}")


def frames(runs: Sequence[RunResult]) -> float:
    """The median of the frames that the runs took."""
    return float(np.median([run.curve[-1, 0] for run in runs]))


def milliseconds(runs: Sequence[RunResult]) -> float:
    """Wall time a frame of the quickest run, which other work disturbed least."""
    return float(np.min([1_000 * run.curve[-1, 1] / run.curve[-1, 0] for run in runs]))


def anchor(title: str) -> str:
    """The address of a heading in its page, as GitHub and Python-Markdown make it."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def yes_no(flag: bool) -> str:
    """A boolean for a reader."""
    return "yes" if flag else "no"
