"""Tuned numbers: ``configs/tuned/ALGO/ENV.yaml`` is chosen where it is there and nobody chose otherwise.

Hydra lets a file choose parts, ``override /GROUP: CHOICE``, where the file is named outright, and not where
it follows from other choices. So it is named before Hydra composes, by words beside those that were typed.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from hydra.core.config_loader import ConfigLoader
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.utils import get_object
from omegaconf import DictConfig, open_dict
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydrl.config import CONFIGS
from hydrl.config.overrides import expand_shorthands, key_of
from hydrl.config.signatures import accepted_parameters
from hydrl.config.tree import find, paths, read_option
from hydrl.config.user_dirs import named_folders, searchpath, split_folders

AUTO_PRESET = "auto"  # in place of a choice, in configs/train.yaml
PRESET_GROUPS = ("algo", "env")
# What learns from sequences, in the place of what learns from single steps; an RNN chooses it.
SEQUENCE_OPTIONS = {"minibatches": {"replay": "sequences"}, "loss": {"dqn": "recurrent_dqn"}}

HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, OSError)  # what Hydra tells itself


def find_added_words(arguments: Sequence[str]) -> list[str]:
    """What goes without saying beside a command line."""
    named, others = split_folders(arguments)
    words = [searchpath(named)] * bool(named) + [word for word in others if re.match(r"~|[^-=][^=]*=", word)]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return implied_words(words, GlobalHydra.instance().config_loader())


def compose_run(words: Sequence[str], **options: Any) -> DictConfig:
    """What Hydra makes of the words of a run and of what goes without saying; nothing begins.

    Args:
        words: overrides as they are typed, with ``hydra.searchpath`` for choices of one's own.
        options: of :func:`hydra.compose`.
    """
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        words = expand_shorthands(words)
        cfg = composed_options = None
        with suppress(*HYDRA_ERRORS):  # it may want what goes without saying
            cfg = compose("train", words, return_hydra_config=True)
            composed_options = dict(cfg.hydra.runtime.choices)
        more = implied_words(words, GlobalHydra.instance().config_loader(), composed_options)
        if cfg is None or more:
            return compose("train", [*words, *more], **options)
        if not options.get("return_hydra_config"):
            with open_dict(cfg):
                del cfg["hydra"]
        return cfg


def implied_words(
    words: Sequence[str], loader: ConfigLoader, options: Mapping[str, Any] | None = None
) -> list[str]:
    """What goes without saying beside the words of a run.

    That is the tuned file of its algorithm and task, unless somebody chose or they are swept over; what an
    RNN learns by, where one is chosen; and what takes out tuned numbers that are for another choice of
    their group. It is nothing where Hydra cannot read the words, which it then tells itself.

    Args:
        words: overrides as they are typed.
        loader: Hydra's.
        made: the choice of each group that the words make, where they have been composed.
    """
    sources = (
        *(Path(source.path) for source in loader.get_sources() if source.scheme() == "file"),
        *named_folders(words),
    )
    typed_keys, named = set(map(key_of, words)), list[str]()
    try:
        parsed = OverridesParser.create().parse_overrides([*words])
        swept = {override.key_or_group for override in parsed if override.is_sweep_override()}
        options = resolve_options(words, loader, options)
        if (
            not swept & {*PRESET_GROUPS, "experiment"}
            and "~tuned" not in words
            and (file := find_preset(options, sources))
        ):
            named, options = [f"tuned={file}"], {**options, "tuned": file}
        if remembering := [word for word in sequence_options(options) if key_of(word) not in typed_keys]:
            named, options = [*named, *remembering], resolve_options([*words, *named, *remembering], loader)
        if "~tuned" in words or not any(foreign_preset_keys(options, sources)):
            return named
        alone = [word for word in words if key_of(word) == "hydra.searchpath"]
        meant = resolve_options(
            [*alone, *(f"{group}={options[group]}" for group in (*PRESET_GROUPS, "tuned"))], loader
        )
        options = resolve_options([*words, *named], loader)  # of which the tuned file may have made some
        lost = [
            pair for pair in foreign_preset_keys(options, sources) if meant.get(pair[0]) != options[pair[0]]
        ]
        left_out = [f"{group}.{key}" for group, key in lost if not accepts_key(group, key, options, sources)]
        return named + [f"~{key}" for key in left_out if key not in typed_keys]
    except HYDRA_ERRORS:
        return []


def resolve_options(
    words: Sequence[str], loader: ConfigLoader, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The choice of each group, as Hydra makes it, or has ``made`` it, of the words and the files chosen."""
    if options is None:
        options = loader.compute_defaults_list("train", [*words], RunMode.RUN).overrides.known_choices
    return {**options, **{key_of(word): None for word in words if word[0] == "~"}}


def sequence_options(options: Mapping[str, Any]) -> list[str]:
    """What learns from sequences, where an RNN was chosen and what learns from single steps."""
    chosen = {group: able.get(str(options.get(group))) for group, able in SEQUENCE_OPTIONS.items()}
    return [f"{group}={choice}" for group, choice in chosen.items() if choice and options.get("rnn")]


def find_preset(options: Mapping[str, Any], sources: Iterable[Path]) -> str:
    """``ALGO/ENV`` of the choices that were made, where such a tuned file is there and nobody chose."""
    file = "/".join(str(options.get(group)) for group in PRESET_GROUPS)
    has_preset = any((folder / "tuned" / f"{file}.yaml").is_file() for folder in sources)
    return file if has_preset and options.get("tuned") == AUTO_PRESET else ""


def foreign_preset_keys(options: Mapping[str, Any], sources: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """The tuned numbers, each by its group and its key in it, which the file of the choice does not have."""
    others = [
        read_option(f"/{group}/{options.get(group)}", sources) for group in ("algo", "experiment", "debug")
    ]
    elsewhere = {key for tree in (read_option("/train", sources), *others) for key in paths(tree)}
    for group, numbers in read_option(f"/tuned/{options.get('tuned')}", sources).items():
        known = {"", *paths(read_option(f"/{group}/{options.get(group)}", sources))}
        for key in paths(numbers) if group in options else ():
            value, above = find(numbers, key), key.rpartition(".")[0]
            whole = isinstance(value, Mapping) and "_target_" in value  # a part by itself
            new = above in known and key not in known and f"{group}.{key}" not in elsewhere
            if new and not whole and value is not None:  # which Hydra does not take out
                yield group, key


def accepts_key(group: str, key: str, options: Mapping[str, Any], sources: tuple[Path, ...]) -> bool:
    """Whether the choice of a group takes a key, or the part in it where that lies, as far as is known."""
    above, _, name = key.rpartition(".")
    part = find(read_option(f"/{group}/{options[group]}", sources), above)
    if not isinstance(part, Mapping) or "_target_" not in part:
        return bool(above)  # no part takes none, a stack of transforms neither; keywords may be any
    try:
        parameters, open_ended = accepted_parameters(get_object(part["_target_"]))
    except Exception:
        return True
    return open_ended or name in parameters
