"""Search space of a hyperparameter search, in Hydra's sweep syntax."""

import difflib
import re
from collections.abc import Sequence
from typing import Annotated, Any, cast

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, Transformer
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError

from hydrl import metric_names
from hydrl.config.hydra_errors import translate
from hydrl.config.migrations import new_words, old_word
from hydrl.config.overrides import expand_shorthands, key_of, quote_paths
from hydrl.config.schema import Component, KeyScope, Strict, keys_with_scope
from hydrl.config.settings import Settings, load
from hydrl.config.suggestions import explain, explain_unresolved
from hydrl.config.tree import find
from hydrl.config.tuned import compose_run
from hydrl.config.user_dirs import add_folders, searchpath, split_folders
from hydrl.errors import UserError

RANGE_EXAMPLE = "'optim.lr=tag(log,interval(1e-4,1e-2))'"
DEFAULT_METRIC = metric_names.RETURN_MEAN
# Typed without the `search.` that they have in configs/search.
SEARCH_KEYS = ("trials", "seeds", "jobs", "out", "maximise", "storage", "study")


class SearchPlan(Strict, arbitrary_types_allowed=True):
    """Plan of a search: ``configs/search`` with the command line.

    Attributes:
        overrides: overrides of every run.
        ranges: the searched ranges, as overrides.
        space: distribution of each key, with a leading + if it needs one; Optuna keeps old keys.
        settings: settings of a run with the current hyperparameters.
    """

    trials: PositiveInt
    seeds: Annotated[list[NonNegativeInt], Field(min_length=1)]
    jobs: PositiveInt
    out: str
    maximise: Annotated[str, Field(pattern=r"^eval/.")] = DEFAULT_METRIC  # searches of before have none
    storage: str | None = None
    study: str = "search"
    sampler: Component
    pruner: Component
    overrides: list[str]
    ranges: list[str]
    space: dict[str, BaseDistribution]
    settings: Settings


def read_plan(words: Sequence[str]) -> SearchPlan:
    """Plan for the arguments of ``scripts/search.py``.

    Raises:
        UserError: for an argument that neither the search nor ``train.py`` knows.
    """
    named, others = split_folders(quote_paths(new_words(words)))
    add_folders(named)
    if "out=" in others:
        raise UserError("out=: no folder. Write out=DIR.")
    parsed = parse_overrides([as_search_override(word) for word in others])
    for key, override in parsed.items():
        if key.replace("/", ".").partition(".")[0] in {"hydra", "seed", *keys_with_scope(KeyScope.PROCESS)}:
            raise UserError(f"{key}: the search sets it. Use search, {', '.join(SEARCH_KEYS)}.")
        if key not in Settings.model_fields and (near := difflib.get_close_matches(key, SEARCH_KEYS, 1, 0.8)):
            word = override.input_line or key
            raise UserError(f"{word}: no such key. Write {word.replace(key, near[0], 1)}.")
    swept = {key: override for key, override in parsed.items() if override.is_sweep_override()}
    single = {key: override.input_line or "" for key, override in parsed.items() if key not in swept}
    overrides = [word for key, word in single.items() if key.partition(".")[0] != "search"]
    composed_words = [*expand_shorthands([*single.values()]), "run_dir=unused"]
    composed_words += ["+search=${algo}"] * ("search" not in parsed)
    search_paths = [searchpath(named)] * bool(named)
    cfg = compose_search(search_paths, composed_words, by_algo="search" not in parsed)
    try:
        search = cast(dict[str, Any], OmegaConf.to_container(cfg.search, resolve=True))
    except OmegaConfBaseException as error:  # a range names a key of another algorithm
        raise UserError(explain_unresolved(error)) from None
    with open_dict(cfg):
        del cfg["search"]
    settings = load(cfg)
    ranges = parse_overrides([f"{key}={text}" for key, text in search["space"].items()]) | swept
    ranges = {key: override for key, override in ranges.items() if key not in single}
    if not ranges:
        raise UserError(f"search: no ranges. Add one, as {RANGE_EXAMPLE}.")
    current = settings.model_dump()
    cell = find(current, "rnn.cell") or "lstm"
    space = {
        old_word(override.get_key_element(), cell): distribution(override, find(current, key))
        for key, override in ranges.items()
    }
    search |= {"overrides": [*search_paths, *overrides], "space": space, "settings": settings}
    search["ranges"] = [override.input_line for override in ranges.values()]
    try:
        return SearchPlan.model_validate(search)
    except ValidationError as error:
        raise explain(error, {"search": search}, "search") from None


def compose_search(search_paths: Sequence[str], words: list[str], *, by_algo: bool) -> DictConfig:
    """The composed configuration of a search; ``by_algo``: its ranges are those of the algorithm.

    Raises:
        UserError: where Hydra cannot compose it.
    """
    try:
        return compose_run([*search_paths, *words])
    except (HydraException, OmegaConfBaseException) as error:
        message = translate(error, words)
        if (match := re.match(r"search=(\w+):", str(message))) and by_algo:
            message = UserError(
                f"search={match[1]}: no ranges for algo={match[1]}. Add search=base and ranges, such as "
                f"{RANGE_EXAMPLE}, or write conf/search/{match[1]}.yaml and add --config-dir=conf."
            )
        raise message from None


def as_search_override(word: str) -> str:
    """An argument as Hydra takes it: the search's own keys are in the group ``search``."""
    key, _, value = word.partition("=")
    if key == "seeds":
        return f"search.seeds=[{value.strip('[]')}]"
    return f"+{word}" if key == "search" else f"search.{word}" if key in SEARCH_KEYS else word


def parse_overrides(words: Sequence[str]) -> dict[str, Override]:
    """Overrides parsed by Hydra, by key.

    Raises:
        UserError: for a syntax error.
    """
    try:
        parsed = OverridesParser.create().parse_overrides(list(words))
    except HydraException as error:
        raise translate(error, words) from None
    return {key_of(override.get_key_element()): override for override in parsed}


def distribution(override: Override, current: Any) -> BaseDistribution:
    """Optuna's distribution of an override; of integers if the ``current`` value is one.

    Raises:
        UserError: if it is no valid range.
    """
    sweep = override.value()
    try:
        if not isinstance(sweep, IntervalSweep):
            choices = dict.fromkeys(override.sweep_iterator(Transformer.encode))  # each once
            return CategoricalDistribution(list(choices))
        if isinstance(sweep.start, int) or type(current) is int:
            return IntDistribution(int(sweep.start), int(sweep.end), "log" in sweep.tags)
        return FloatDistribution(sweep.start, sweep.end, "log" in sweep.tags)
    except (ValueError, HydraException) as error:
        advice = "Write interval(low,high) or choice(a,b)"
        raise UserError(f"{override.input_line}: {error}. {advice}.") from None
