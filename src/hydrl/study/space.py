"""What a search draws from: ranges in Hydra's sweep syntax, in ``configs/search`` and on the command line."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from hydra import compose, initialize_config_dir
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

from hydrl.config import CONFIGS
from hydrl.config.command_line import translate
from hydrl.config.mistakes import explain, find, no_such_key, paths
from hydrl.config.overrides import key_of, without_none
from hydrl.config.settings import Built, Role, Settings, Strict, keys, load
from hydrl.errors import UserError
from hydrl.study.sweep import folder_name

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
    """A search that can be made.

    Attributes:
        typed: the whole command line.
        overrides: what of it every run takes.
        ranges: what is drawn, as overrides.
        space: what each key, with the ``+`` it may need, is drawn from.
        settings: of a run with the present numbers.
        tuned: the choice of that group.
        search: what ``configs/search`` and the command line say.
        out: the search's folder.
    """

    typed: Sequence[str]
    overrides: Sequence[str]
    ranges: Sequence[str]
    space: Mapping[str, BaseDistribution]
    settings: Settings
    tuned: str
    search: Choices
    out: Path


def read(words: Sequence[str]) -> Plan:
    """The plan that ``scripts/search.py words`` asks for.

    Raises:
        UserError: for a word that neither the search nor train.py understands.
    """
    parsed = {key_of(word): parse(word) for word in words}
    for key in parsed:
        if key.replace("/", ".").partition(".")[0] in {"hydra", "seed", *keys(Role.PROCESS)}:
            raise UserError(f"{key}: the search says this for each run; its own keys are {', '.join(OWN)}")
    own = {key: values(each) for key, each in parsed.items() if key in OWN}
    typed = {key: each.input_line for key, each in parsed.items() if key not in OWN}
    drawn = {key: word for key, word in typed.items() if parsed[key].is_sweep_override()}
    fixed = {key: word for key, word in typed.items() if key not in drawn}
    group = f"+search={own.pop('search', '${algo}')}"
    cfg = composed([*(word for word in fixed.values() if not word.startswith("~")), group])
    out = own.pop("out", None)
    choices = cast(dict[str, Any], OmegaConf.to_container(cfg.search)) | own
    if isinstance(choices["seeds"], int):
        choices["seeds"] = [choices["seeds"]]
    try:
        search = Choices.model_validate(choices)
    except ValidationError as error:
        raise UserError(explain(error, choices)) from None
    declared = {key: f"{key}={text}" for key, text in search.space.items()}
    ranges = {key: word for key, word in declared.items() if key not in fixed} | drawn
    if not ranges:
        raise UserError("nothing is left to draw; add a range, as 'optim.lr=tag(log,interval(1e-4,1e-2))'")

    overrides = [word for key, word in fixed.items() if not (word.startswith("~") and key in declared)]
    cfg = composed(overrides)
    tuned = cfg.hydra.runtime.choices.get("tuned", "")
    with open_dict(cfg):
        del cfg["hydra"]
    settings = load(cfg)
    present = settings.model_dump()
    for key, word in ranges.items():
        if not word.startswith("+") and key not in paths(present):
            raise UserError(no_such_key(key, word.partition("=")[2], present))
    space = {word.partition("=")[0]: distribution(word, find(present, key)) for key, word in ranges.items()}
    default = Path("outputs/searches", folder_name([f"algo={settings.algo}", f"env={settings.task}"]))
    return Plan(words, overrides, list(ranges.values()), space, settings, tuned, search, Path(out or default))


def parse(word: str) -> Override:
    """A word of the command line as Hydra understands it.

    Raises:
        UserError: if it does not.
    """
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except HydraException as error:
        raise UserError(translate(error, [word])) from None


def values(override: Override) -> Any:
    """Its value; a list of a sweep's."""
    return list(override.sweep_iterator()) if override.is_discrete_sweep() else override.value()


def composed(overrides: Sequence[str]) -> DictConfig:
    """The configuration of ``train.py overrides``, with Hydra's own.

    Raises:
        UserError: as train.py would.
    """
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            return compose("train", [*without_none(overrides), "run_dir=unused"], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(translate(error, overrides)) from None


def distribution(word: str, present: Any) -> BaseDistribution:
    """What Optuna draws a key from.

    Args:
        word: ``key=interval(low,high)``, in ``tag(log,...)`` or not, or a list as ``key=choice(a,b)``.
        present: the key's value; where that is a whole number, so are those of an interval.

    Raises:
        UserError: if nothing can be drawn from it.
    """
    override = parse(word)
    value = override.value()
    try:
        if isinstance(value, IntervalSweep):
            if isinstance(value.start, int) or type(present) is int:
                return IntDistribution(int(value.start), int(value.end), log="log" in value.tags)
            return FloatDistribution(value.start, value.end, log="log" in value.tags)
        if override.is_discrete_sweep():
            return CategoricalDistribution(list(override.sweep_iterator(Transformer.encode)))
    except ValueError as error:
        raise UserError(f"{word}: {' '.join(str(error).split())}") from None
    raise UserError(f"{word}: write interval(low,high), tag(log,interval(low,high)) or choice(a,b)")


def as_typed(space: BaseDistribution, value: Any) -> str:
    """A drawn value as it is typed: four digits say enough."""
    if isinstance(space, FloatDistribution):
        value = min(max(float(f"{value:.4g}"), space.low), space.high)
    return str(value).lower() if isinstance(value, bool) else str(value)


def holds(space: BaseDistribution, value: Any) -> bool:
    """Whether a value could be drawn."""
    if isinstance(space, CategoricalDistribution):
        return value in space.choices
    assert isinstance(space, IntDistribution | FloatDistribution)
    return type(value) in (int, float) and space.low <= value <= space.high
