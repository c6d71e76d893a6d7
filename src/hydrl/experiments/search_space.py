"""What a search draws from: ranges in Hydra's sweep syntax, in ``configs/search`` and on the command line."""

import re
from collections.abc import Sequence
from typing import Annotated, Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, Transformer
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError

from hydrl.config.command_line import translate
from hydrl.config.migrations import new_words, old_word
from hydrl.config.overrides import key_of, spelled_out, with_paths
from hydrl.config.schema import Built, Role, Strict, keys
from hydrl.config.settings import Settings, load
from hydrl.config.suggestions import explain, unresolved
from hydrl.config.tree import find
from hydrl.config.tuned import composed
from hydrl.config.user_dirs import searchpath, split, use
from hydrl.errors import UserError

RANGE = "'optim.lr=tag(log,interval(1e-4,1e-2))'"
RETURN = "eval/return_mean"
OWN = (
    "trials",
    "seeds",
    "jobs",
    "out",
    "maximise",
    "storage",
    "study",
)  # typed without the `search.` that they have in configs/search


class Plan(Strict, arbitrary_types_allowed=True):
    """A search that can be made: what ``configs/search`` and the command line say of it, and

    Attributes:
        overrides: that every run takes.
        ranges: what is drawn, as overrides.
        space: what each key, with the + it may need, is drawn from; Optuna keeps first names.
        settings: of a run with the present numbers.
    """

    trials: PositiveInt
    seeds: Annotated[list[NonNegativeInt], Field(min_length=1)]
    jobs: PositiveInt
    out: str
    maximise: Annotated[str, Field(pattern=r"^eval/.")] = RETURN  # searches of before have none
    storage: str | None = None
    study: str = "search"
    sampler: Built
    pruner: Built
    overrides: list[str]
    ranges: list[str]
    space: dict[str, BaseDistribution]
    settings: Settings


def read(words: Sequence[str]) -> Plan:
    """The plan that ``scripts/search.py words`` asks for.

    Raises:
        UserError: for a word that neither the search nor train.py understands.
    """
    named, others = split(with_paths(new_words(words)))
    use(named)
    if "out=" in others:
        raise UserError("out= names no folder; write out=DIR")
    parsed = parse([own(word) for word in others])
    for key in parsed:
        if key.replace("/", ".").partition(".")[0] in {"hydra", "seed", *keys(Role.PROCESS)}:
            raise UserError(f"{key}: the search says this for each run; it has search, {', '.join(OWN)}")
    drawn = {key: each for key, each in parsed.items() if each.is_sweep_override()}
    single = {key: each.input_line or "" for key, each in parsed.items() if key not in drawn}
    overrides = [word for key, word in single.items() if key.partition(".")[0] != "search"]
    chosen = [*spelled_out([*single.values()]), "run_dir=unused"]
    chosen += ["+search=${algo}"] * ("search" not in parsed)
    adding = [searchpath(named)] * bool(named)
    try:
        cfg = composed([*adding, *chosen])
    except (HydraException, OmegaConfBaseException) as error:
        told = translate(error, chosen)
        if (lacking := re.match(r"search=(\w+):", told)) and "search" not in parsed:
            told = f"there are no ranges for algo={lacking[1]}; add search=base and ranges, as {RANGE}, "
            told += f"or write conf/search/{lacking[1]}.yaml and add --config-dir=conf"
        raise UserError(told) from None
    try:
        said = cast(dict[str, Any], OmegaConf.to_container(cfg.search, resolve=True))
    except OmegaConfBaseException as error:  # of a range that names a key of another algorithm
        raise UserError(unresolved(error)) from None
    with open_dict(cfg):
        del cfg["search"]
    settings = load(cfg)
    ranges = parse([f"{key}={text}" for key, text in said["space"].items()]) | drawn
    ranges = {key: each for key, each in ranges.items() if key not in single}
    if not ranges:
        raise UserError(f"nothing is left to draw; add a range, as {RANGE}")
    present = settings.model_dump()
    space = {
        old_word(each.get_key_element()): distribution(each, find(present, key))
        for key, each in ranges.items()
    }
    lines = [each.input_line for each in ranges.values()]
    made = {"overrides": [*adding, *overrides], "ranges": lines, "space": space, "settings": settings}
    try:
        return Plan.model_validate(said | made)
    except ValidationError as error:
        raise UserError(explain(error, {"search": said}, "search")) from None


def own(word: str) -> str:
    """A word of the command line as Hydra takes it: what is the search's own lies in ``search``."""
    key, _, value = word.partition("=")
    if key == "seeds":
        return f"search.seeds=[{value.strip('[]')}]"
    return f"+{word}" if key == "search" else f"search.{word}" if key in OWN else word


def parse(words: Sequence[str]) -> dict[str, Override]:
    """Overrides as Hydra understands them, by key.

    Raises:
        UserError: if it does not.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(words))
    except HydraException as error:
        raise UserError(translate(error, words)) from None
    return {key_of(each.get_key_element()): each for each in parsed}


def distribution(override: Override, present: Any) -> BaseDistribution:
    """What Optuna draws a key from; a whole number where ``present``, its value, is one.

    Raises:
        UserError: if nothing can be drawn from it.
    """
    value, word = override.value(), override.input_line
    try:
        if not isinstance(value, IntervalSweep):
            choices = dict.fromkeys(override.sweep_iterator(Transformer.encode))  # the present one once
            return CategoricalDistribution(list(choices))
        if isinstance(value.start, int) or type(present) is int:
            return IntDistribution(int(value.start), int(value.end), "log" in value.tags)
        return FloatDistribution(value.start, value.end, "log" in value.tags)
    except (ValueError, HydraException) as error:
        raise UserError(f"{word}: {error}; write interval(low,high) or choice(a,b)") from None
