"""What a search draws from: ranges in Hydra's sweep syntax, in ``configs/search`` and on the command line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import IntervalSweep, Override, Transformer
from hydra.errors import HydraException
from omegaconf import OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from optuna import distributions
from optuna.distributions import BaseDistribution
from pydantic import Field, NonNegativeInt, PositiveInt, ValidationError

from hydrl.config import CONFIGS
from hydrl.config.command_line import translate
from hydrl.config.mistakes import explain, find
from hydrl.config.overrides import key_of, without_none
from hydrl.config.settings import Built, Role, Settings, Strict, keys, load
from hydrl.errors import UserError

OWN = ("search", "trials", "seeds", "jobs", "out")


class Choices(Strict):
    """What ``configs/search`` says and the command line may change: counts, ranges and Optuna's parts."""

    trials: PositiveInt
    seeds: Annotated[list[NonNegativeInt], Field(min_length=1)]
    jobs: PositiveInt
    space: dict[str, str]
    sampler: Built
    pruner: Built


@dataclass(frozen=True)
class Plan:
    """A search that can be made."""

    overrides: Sequence[str]  # that every run takes
    ranges: Sequence[str]  # what is drawn, as overrides
    space: dict[str, BaseDistribution]  # what each key, with the + it may need, is drawn from
    settings: Settings  # of a run with the present numbers
    search: Choices
    out: Path


def read(words: Sequence[str]) -> Plan:
    """The plan that ``scripts/search.py words`` asks for.

    Raises:
        UserError: for a word that neither the search nor train.py understands.
    """
    parsed = parse(words)
    for key in parsed:
        if key.replace("/", ".").partition(".")[0] in {"hydra", "seed", *keys(Role.PROCESS)}:
            raise UserError(f"{key}: the search says this for each run; its own keys are {', '.join(OWN)}")
    own = {key: value_of(parsed.pop(key)) for key in OWN if key in parsed}
    drawn = {key: each for key, each in parsed.items() if each.is_sweep_override()}
    overrides = [each.input_line or "" for key, each in parsed.items() if key not in drawn]
    out, group = own.pop("out", None), f"+search={own.pop('search', '${algo}')}"
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            composed = [*without_none(overrides), group, "run_dir=unused"]
            cfg = compose("train", composed, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(translate(error, overrides)) from None
    choices = cast(dict[str, Any], OmegaConf.to_container(cfg.search)) | own
    try:
        search = Choices.model_validate(choices)
    except ValidationError as error:
        raise UserError(explain(error, choices)) from None
    with open_dict(cfg):
        del cfg["hydra"], cfg["search"]
    settings = load(cfg)
    declared = parse([f"{key}={text}" for key, text in search.space.items()])
    ranges = {key: each for key, each in declared.items() if key not in parsed} | drawn
    if not ranges:
        raise UserError("nothing is left to draw; add a range, as 'optim.lr=tag(log,interval(1e-4,1e-2))'")
    present = settings.model_dump()
    space = {each.get_key_element(): distribution(each, find(present, key)) for key, each in ranges.items()}
    folder = Path(out or f"outputs/searches/{settings.algo}-{settings.task}")
    lines = [each.input_line or "" for each in ranges.values()]
    return Plan(overrides, lines, space, settings, search, folder)


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


def value_of(override: Override) -> Any:
    """The value of one of the search's own keys; seeds are a list, as a sweep's."""
    if override.is_discrete_sweep():
        return list(override.sweep_iterator())
    value = override.value()
    return [value] if override.key_or_group == "seeds" and not isinstance(value, list) else value


def distribution(override: Override, present: Any) -> BaseDistribution:
    """What Optuna draws a key from; a whole number where ``present``, its value, is one.

    Raises:
        UserError: if nothing can be drawn from it.
    """
    value, word = override.value(), override.input_line
    try:
        if isinstance(value, IntervalSweep):
            if isinstance(value.start, int) or type(present) is int:
                return distributions.IntDistribution(int(value.start), int(value.end), "log" in value.tags)
            return distributions.FloatDistribution(value.start, value.end, "log" in value.tags)
        return distributions.CategoricalDistribution(list(override.sweep_iterator(Transformer.encode)))
    except (ValueError, HydraException) as error:
        raise UserError(f"{word}: {error}; write interval(low,high) or choice(a,b)") from None


def as_typed(space: BaseDistribution, value: Any) -> str:
    """A drawn value as it is typed: four digits say enough."""
    if isinstance(space, distributions.FloatDistribution):
        value = min(max(float(f"{value:.4g}"), space.low), space.high)
    return str(value).lower() if isinstance(value, bool) else str(value)


def holds(space: Any, value: Any) -> bool:
    """Whether a value could be drawn."""
    if isinstance(space, distributions.CategoricalDistribution):
        return value in space.choices
    return type(value) in (int, float) and space.low <= value <= space.high
