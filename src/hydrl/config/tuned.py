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
from hydrl.config.overrides import key_of, spelled_out
from hydrl.config.signatures import accepted_parameters
from hydrl.config.tree import content, find, paths
from hydrl.config.user_dirs import folders, searchpath, split

NOBODY_CHOSE = "auto"  # in place of a choice, in configs/train.yaml
PAIR = ("algo", "env")
# What learns from sequences, in the place of what learns from single steps; an RNN chooses it.
OF_SEQUENCES = {"minibatches": {"replay": "sequences"}, "loss": {"dqn": "recurrent_dqn"}}

UNREADABLE = (HydraException, OmegaConfBaseException, YAMLError, OSError)  # what Hydra tells itself

# What stands beside the words that were typed, on the command line that Hydra reads in this process.
_beside: list[str] = []


def beside(arguments: Sequence[str]) -> list[str]:
    """What goes without saying beside a command line, kept in mind for :func:`typed`."""
    named, others = split(arguments)
    words = [searchpath(named)] * bool(named) + [each for each in others if re.match(r"~|[^-=][^=]*=", each)]
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        _beside[:] = unsaid(words, GlobalHydra.instance().config_loader())
    return list(_beside)


def typed(words: Iterable[str]) -> list[str]:
    """Those of Hydra's words that somebody typed."""
    return [each for each in words if each not in _beside]


def composed(words: Sequence[str], **options: Any) -> DictConfig:
    """What Hydra makes of the words of a run and of what goes without saying; nothing begins.

    Args:
        words: overrides as they are typed, with ``hydra.searchpath`` for choices of one's own.
        options: of :func:`hydra.compose`.
    """
    with initialize_config_dir(str(CONFIGS), version_base="1.3"):
        words = spelled_out(words)
        cfg = made = None
        with suppress(*UNREADABLE):  # it may want what goes without saying
            cfg = compose("train", words, return_hydra_config=True)
            made = dict(cfg.hydra.runtime.choices)
        more = unsaid(words, GlobalHydra.instance().config_loader(), made)
        if cfg is None or more:
            return compose("train", [*words, *more], **options)
        if not options.get("return_hydra_config"):
            with open_dict(cfg):
                del cfg["hydra"]
        return cfg


def unsaid(words: Sequence[str], loader: ConfigLoader, made: Mapping[str, Any] | None = None) -> list[str]:
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
        *(Path(each.path) for each in loader.get_sources() if each.scheme() == "file"),
        *folders(words),
    )
    said, named = set(map(key_of, words)), list[str]()
    try:
        parsed = OverridesParser.create().parse_overrides([*words])
        swept = {each.key_or_group for each in parsed if each.is_sweep_override()}
        made = choices(words, loader, made)
        if not swept & {*PAIR, "experiment"} and "~tuned" not in words and (file := unnamed(made, sources)):
            named, made = [f"tuned={file}"], {**made, "tuned": file}
        if remembering := [each for each in by_sequences(made) if key_of(each) not in said]:
            named, made = [*named, *remembering], choices([*words, *named, *remembering], loader)
        if "~tuned" in words or not any(strangers(made, sources)):
            return named
        alone = [each for each in words if key_of(each) == "hydra.searchpath"]
        meant = choices([*alone, *(f"{each}={made[each]}" for each in (*PAIR, "tuned"))], loader)
        made = choices([*words, *named], loader)  # of which the tuned file may have made some
        lost = [each for each in strangers(made, sources) if meant.get(each[0]) != made[each[0]]]
        left_out = [f"{group}.{key}" for group, key in lost if not takes(group, key, made, sources)]
        return named + [f"~{key}" for key in left_out if key not in said]
    except UNREADABLE:
        return []


def choices(
    words: Sequence[str], loader: ConfigLoader, made: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The choice of each group, as Hydra makes it, or has ``made`` it, of the words and the files chosen."""
    if made is None:
        made = loader.compute_defaults_list("train", [*words], RunMode.RUN).overrides.known_choices
    return {**made, **{key_of(each): None for each in words if each[0] == "~"}}


def by_sequences(made: Mapping[str, Any]) -> list[str]:
    """What learns from sequences, where an RNN was chosen and what learns from single steps."""
    chosen = {group: able.get(str(made.get(group))) for group, able in OF_SEQUENCES.items()}
    return [f"{group}={choice}" for group, choice in chosen.items() if choice and made.get("rnn")]


def unnamed(made: Mapping[str, Any], sources: Iterable[Path]) -> str:
    """``ALGO/ENV`` of the choices that were made, where such a tuned file is there and nobody chose."""
    file = "/".join(str(made.get(each)) for each in PAIR)
    there = any((folder / "tuned" / f"{file}.yaml").is_file() for folder in sources)
    return file if there and made.get("tuned") == NOBODY_CHOSE else ""


def strangers(made: Mapping[str, Any], sources: tuple[Path, ...]) -> Iterator[tuple[str, str]]:
    """The tuned numbers, each by its group and its key in it, which the file of the choice does not have."""
    others = [content(f"/{group}/{made.get(group)}", sources) for group in ("algo", "experiment", "debug")]
    elsewhere = {key for each in (content("/train", sources), *others) for key in paths(each)}
    for group, numbers in content(f"/tuned/{made.get('tuned')}", sources).items():
        known = {"", *paths(content(f"/{group}/{made.get(group)}", sources))}
        for key in paths(numbers) if group in made else ():
            value, above = find(numbers, key), key.rpartition(".")[0]
            whole = isinstance(value, Mapping) and "_target_" in value  # a part by itself
            new = above in known and key not in known and f"{group}.{key}" not in elsewhere
            if new and not whole and value is not None:  # which Hydra does not take out
                yield group, key


def takes(group: str, key: str, made: Mapping[str, Any], sources: tuple[Path, ...]) -> bool:
    """Whether the choice of a group takes a key, or the part in it where that lies, as far as is known."""
    above, _, name = key.rpartition(".")
    part = find(content(f"/{group}/{made[group]}", sources), above)
    if not isinstance(part, Mapping) or "_target_" not in part:
        return bool(above)  # no part takes none, a stack of transforms neither; keywords may be any
    try:
        parameters, open_ended = accepted_parameters(get_object(part["_target_"]))
    except Exception:
        return True
    return open_ended or name in parameters
