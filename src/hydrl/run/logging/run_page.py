"""``run.html``: a run's results, curves, last video and configuration on one page."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from hydrl.config import user_dirs
from hydrl.config.overrides import chosen_options, key_of, localize_commands, typed_words, words_to_repeat
from hydrl.config.schema import RULES
from hydrl.config.tree import read_yaml
from hydrl.metric_names import EVAL_EPISODES, RETURN_MEAN, RETURN_STD
from hydrl.run.logging.html import as_text, code, fenced, table, write_page

DREAM = "What the world model dreams of this episode after its first five observations:"
MIN_EPISODES = 10  # of an evaluation with an interval
COMMAND_LINE = "command line"
PRESETS = ("debug", "experiment", "tuned")  # groups whose options set keys of others; the first one wins
NAMED_APART = {"algo", "env", *PRESETS}


def write_run_page(
    run: Path,
    title: str,
    summary: Mapping[str, Any],
    rows: Mapping[str, str],
    config: Mapping[str, Any],
    samples: Sequence[Mapping[str, Any]] = (),
) -> None:
    """Writes ``run.html``.

    Args:
        run: the run folder, with ``curves.png``.
        title: of the page.
        summary: content of ``summary.json``.
        rows: rows of the summary table.
        config: the run's settings as they are saved.
        samples: of the last evaluation, such as prompts and answers; all have the same keys.
    """
    # final.mp4 sorts after those named by frames.
    videos, dreams = (sorted((run / name).glob("*.mp4")) for name in ("videos", "dreams"))
    command = ["python", "train.py", *user_dirs.folder_options(user_dirs.saved_folders(run))]
    command += words_to_repeat(typed_words(), run)
    sections = [
        f"# {as_text(title)}",
        headline(summary),
        "![curves](curves.png)",
        *[f"![video](videos/{video.name})" for video in videos[-1:]],
        *[f"{DREAM}\n\n![dream](dreams/{dream.name})" for dream in dreams[-1:]],
        "## Results",
        table(["", ""], ([as_text(name), code(text)] for name, text in rows.items())),
        *(["## Samples", samples_table(samples)] if samples else []),
        "## Command",
        fenced(localize_commands(shlex.join(command))),
        *config_sections(config),
    ]
    write_page("\n\n".join(filter(None, sections)), run / "run.html")


def samples_table(samples: Sequence[Mapping[str, Any]]) -> str:
    """Samples of an evaluation as a table."""
    cells = ([code(value) for value in sample.values()] for sample in samples)
    return table([as_text(name) for name in samples[0]], cells)


def headline(summary: Mapping[str, Any]) -> str:
    """The mean return of the last evaluation, with its 95% interval over episodes (normal approximation)."""
    mean, episodes = summary.get(RETURN_MEAN), summary.get(EVAL_EPISODES, 0)
    if mean is None:
        return ""
    half = 1.96 * summary[RETURN_STD] / max(1, episodes) ** 0.5
    interval = f", 95% interval {mean - half:,.1f} to {mean + half:,.1f}" if episodes >= MIN_EPISODES else ""
    kind = "Final evaluation" if summary.get("status") == "finished" else "Last evaluation"
    return f"**{mean:,.1f}** {kind}: mean return of {episodes} deterministic episodes{interval}"


def config_sections(config: Mapping[str, Any]) -> list[str]:
    """The configuration as two tables: the options and keys that were set for this run, and defaults."""
    chosen = chosen_options()
    typed_keys = {key_of(word) for word in typed_words()} - chosen.keys()
    rows = [(group, chosen[group] or "null", origin) for group, origin in set_options().items()]
    for key, value in leaves(config):
        is_typed = any(f"{key}.".startswith(f"{typed_key}.") for typed_key in typed_keys)
        rows.append((key, value, COMMAND_LINE if is_typed else user_dirs.find_setter(key, PRESETS)))
    changed = [[*map(code, row)] for row in rows if row[-1]]
    defaults = [[code(key), code(value)] for key, value, origin in rows if not origin]
    sections = ["## Configuration"]
    if changed:
        sections += ["### Set for this run", table(["key", "value", "set by"], changed)]
    return [*sections, "### Defaults of its algorithm and environment", table(["key", "value"], defaults)]


def set_options() -> dict[str, str]:
    """Groups whose option is not the algorithm's own choice, each with what chose it."""
    chosen = chosen_options()
    own = default_options("train") | default_options(f"algo/{chosen.get('algo')}")
    origins: dict[str, str] = {}
    for preset in reversed(PRESETS):
        others = default_options(f"{preset}/{chosen.get(preset)}").items() - own.items()
        origins |= dict.fromkeys(sorted(group for group, _ in others), f"{preset}={chosen.get(preset)}")
    origins |= dict.fromkeys(map(key_of, typed_words()), COMMAND_LINE)
    return {group: origin for group, origin in origins.items() if group in chosen.keys() - NAMED_APART}


def default_options(name: str) -> dict[str, str | None]:
    """The options that a file's defaults list chooses, by group; none where there is no such file."""
    options: dict[str, str | None] = {}
    for file in (folder / f"{name}.yaml" for folder in user_dirs.option_folders()):
        content = read_yaml(file) if file.is_file() else None
        for entry in OmegaConf.create((content or {}).get("defaults") or []):
            if OmegaConf.is_dict(entry):
                options |= {str(key).split("/")[-1].split()[-1]: option for key, option in entry.items()}
    return options


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every dotted key with its value as it is typed; rules and empty values are left out."""
    for key, value in values.items():
        if key in RULES or value == []:
            continue
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            text = f"{value:_}" if type(value) is int else json.dumps(value, default=str).replace('"', "")
            yield f"{prefix}{key}", text
