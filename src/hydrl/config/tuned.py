"""Tuned presets: ``configs/tuned/ALGO/ENV.yaml`` is chosen by default if it exists.

In Hydra a file can choose options, ``override /GROUP: OPTION``, only if it is chosen itself, not if an
interpolation names it. So it is chosen before Hydra composes, by an override added to the typed ones.
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

AUTO_PRESET = "auto"  # the default in configs/train.yaml
PRESET_GROUPS = ("algo", "env")
# Options for sequences that an RNN chooses in place of those for single steps.
SEQUENCE_OPTIONS = {"minibatches": {"replay": "sequences"}, "loss": {"dqn": "recurrent_dqn"}}

HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, OSError)  # which Hydra reports itself


def find_added_words(arguments: Sequence[str]) -> list[str]:
    """Overrides that are added to a command line, see :func:`implied_words`."""
    named, others = split_folders(arguments)
    words = [searchpath(named)] * bool(named) + [word for word in others if re.match(r"~|[^-=][^=]*=", word)]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        return implied_words(words, GlobalHydra.instance().config_loader())


def compose_run(words: Sequence[str], **options: Any) -> DictConfig:
    """The configuration that Hydra composes of a run's overrides and the added ones; starts nothing.

    Args:
        words: overrides as they are typed, with ``hydra.searchpath`` for choices of one's own.
        options: of :func:`hydra.compose`.
    """
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        words = expand_shorthands(words)
        cfg = composed_options = None
        with suppress(*HYDRA_ERRORS):  # it may lack the added ones
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
    """Overrides that are added to those of a run; none if Hydra cannot read them, which it reports itself.

    They are the preset of its algorithm and environment, unless one is chosen or these are swept over; the
    options for sequences, if there is an RNN; and removals of values of the preset and the algorithm that the
    chosen component does not accept.

    Args:
        words: overrides as they are typed.
        loader: Hydra's.
        options: the option of each group, if the overrides have been composed.
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
        sequence_words = [word for word in sequence_options(options) if key_of(word) not in typed_keys]
        if sequence_words:
            named = [*named, *sequence_words]
            options = resolve_options([*words, *named], loader)
        if "~tuned" in words or not any(foreign_keys(options, sources)):
            return named
        alone = [word for word in words if key_of(word) == "hydra.searchpath"]
        preset = [f"{group}={options[group]}" for group in (*PRESET_GROUPS, "tuned")]
        intended = resolve_options([*alone, *preset], loader)
        options = resolve_options([*words, *named], loader)  # some are the preset's
        removed_keys = [
            f"{group}.{key}"
            for group, key in foreign_keys(options, sources)
            if intended.get(group) != options[group] and not accepts_key(group, key, options, sources)
        ]
        return named + [f"~{key}" for key in removed_keys if key not in typed_keys]
    except HYDRA_ERRORS:
        return []


def resolve_options(
    words: Sequence[str], loader: ConfigLoader, options: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The option of each group, as Hydra resolves it from the overrides, or given ``options``."""
    if options is None:
        options = loader.compute_defaults_list("train", [*words], RunMode.RUN).overrides.known_choices
    return {**options, **{key_of(word): None for word in words if word[0] == "~"}}


def sequence_options(options: Mapping[str, Any]) -> list[str]:
    """Options for sequences in place of those for single steps, if there is an RNN."""
    chosen = {group: able.get(str(options.get(group))) for group, able in SEQUENCE_OPTIONS.items()}
    return [f"{group}={choice}" for group, choice in chosen.items() if choice and options.get("rnn")]


def find_preset(options: Mapping[str, Any], sources: Iterable[Path]) -> str:
    """``ALGO/ENV`` if there is such a preset and none was chosen; else empty."""
    file = "/".join(str(options.get(group)) for group in PRESET_GROUPS)
    has_preset = any((folder / "tuned" / f"{file}.yaml").is_file() for folder in sources)
    return file if has_preset and options.get("tuned") == AUTO_PRESET else ""


def foreign_keys(options: Mapping[str, Any], sources: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """Group and key of each value of the preset and the algorithm that the chosen option's file lacks."""
    files = {group: f"/{group}/{options.get(group)}" for group in ("algo", "experiment", "debug", "tuned")}
    trees = {group: read_option(file, sources) for group, file in files.items()}
    for chosen in ("tuned", "algo"):
        others = [tree for group, tree in trees.items() if group not in (chosen, "tuned")]
        elsewhere = {key for tree in (read_option("/train", sources), *others) for key in paths(tree)}
        for group, numbers in trees[chosen].items():
            option = options.get(group)
            if chosen == "algo" and not (CONFIGS / group / f"{option}.yaml").is_file():
                continue  # none, or one of the user's own, which is a mistake that is reported
            known = {"", *paths(read_option(f"/{group}/{option}", sources))}
            for key in paths(numbers):
                value, above = find(numbers, key), key.rpartition(".")[0]
                whole = isinstance(value, Mapping) and "_target_" in value  # a component by itself
                new = above in known and key not in known and f"{group}.{key}" not in elsewhere
                if new and not whole and value is not None:  # which Hydra does not take out
                    yield group, key


def accepts_key(group: str, key: str, options: Mapping[str, Any], sources: tuple[Path, ...]) -> bool:
    """Whether the chosen option, or the component within it, accepts a key, as far as is known."""
    above, _, name = key.rpartition(".")
    component = find(read_option(f"/{group}/{options[group]}", sources), above)
    if not isinstance(component, Mapping) or "_target_" not in component:
        return bool(above)  # no component takes none, a stack of transforms neither; keywords may be any
    try:
        parameters, open_ended = accepted_parameters(get_object(component["_target_"]))
    except Exception:
        return True
    return open_ended or name in parameters
