"""What a search draws from: the command line and ``configs/search``, tried before anything starts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, Override, RangeSweep, Transformer
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from hydrl.config import CONFIGS, command_line
from hydrl.config.mistakes import choices, find, no_such_choice, no_such_key
from hydrl.config.overrides import key_of
from hydrl.config.settings import Settings, builder, load, targets
from hydrl.errors import UserError
from hydrl.run.resume import HARMLESS
from hydrl.study.sweep import folder_name

OWN = ("search", "trials", "seeds", "jobs", "out")
LATER = ("experiment", "debug")  # groups whose numbers win over a tuned file's


@dataclass(frozen=True)
class Plan:
    """A search that can be made.

    Attributes:
        typed: the whole command line.
        overrides: what of it every run takes.
        chosen: the choice of each group.
        settings: of a run, without what is drawn.
        space: what each key is drawn from.
        seeds: of each trial's runs.
        trials: how many in all.
        jobs: runs side by side.
        out: the search's folder.
        sampler: what draws, as configured.
        pruner: what ends a bad trial, as configured.
    """

    typed: Sequence[str]
    overrides: Sequence[str]
    chosen: Mapping[str, str]
    settings: Settings
    space: Mapping[str, BaseDistribution]
    seeds: Sequence[int]
    trials: int
    jobs: int
    out: Path
    sampler: dict[str, Any]
    pruner: dict[str, Any]


def read(words: Sequence[str]) -> Plan:
    """The plan that ``scripts/search.py words`` asks for.

    Raises:
        UserError: for what could fail later: a key, a choice, a number, an end of a range.
    """
    own = {key: value for key, _, value in (word.partition("=") for word in words) if key in OWN}
    numbers = {key: count(key, own[key]) for key in ("trials", "jobs") if key in own}
    typed_seeds = seeds(own["seeds"]) if "seeds" in own else None
    others = [word for word in words if word.partition("=")[0] not in OWN]
    base = command_line.composed("", CONFIGS, others)
    for word in others:
        refuse(word, base)

    drawn = {key_of(word): word for word in others if "=" in word and parse(word).is_sweep_override()}
    fixed = [word for word in others if key_of(word) not in drawn]
    command_line.check_arguments(fixed, CONFIGS)
    name = own.get("search") or base.get("algo", "")
    if name not in (offered := choices(CONFIGS / "search")):
        raise UserError(no_such_choice("search", name, offered))
    declared = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(CONFIGS / f"search/{name}.yaml")))
    settled = {key_of(word) for word in fixed}  # one value was given, or ~KEY takes it out of the search
    fixed = [word for word in fixed if not word.startswith("~") or key_of(word) not in declared["space"]]
    space = {key: f"{key}={value}" for key, value in declared["space"].items() if key not in settled} | drawn
    if not space:
        raise UserError("nothing is left to draw; add a range, as 'optim.lr=tag(log,interval(1e-4,1e-2))'")

    cfg, chosen = composed(fixed)
    settings = load(cfg)
    for group in LATER:
        if chosen[group] != "none":
            raise UserError(
                f"{group}={chosen[group]}: its numbers win over those of a tuned file; type them instead"
            )
    values = cast(dict[str, Any], OmegaConf.to_container(cfg))
    distributions = {}
    for key, word in sorted(space.items(), key=lambda item: item[0] not in drawn):  # typed ones first
        try:
            distributions[word.partition("=")[0]] = found = distribution(parse(word), find(values, key))
            for each in ends(found):
                load(composed([*fixed, f"{word.partition('=')[0]}={text(each)}"])[0])
        except UserError as error:
            mine = f"configs/search/{name}.yaml: {error}; '~{key}' takes it out of the search"
            raise UserError(str(error) if key in drawn else mine) from None
    for kind in ("sampler", "pruner"):
        optunas(declared[kind], f"{kind}s")
    default = Path("outputs/searches", folder_name([f"algo={settings.algo}", f"env={settings.task}"]))
    return Plan(
        typed=words,
        overrides=fixed,
        chosen=chosen,
        settings=settings,
        space=distributions,
        seeds=typed_seeds or declared["seeds"],
        trials=numbers.get("trials", declared["trials"]),
        jobs=numbers.get("jobs", 2),
        out=Path(own["out"]) if own.get("out") else default,
        sampler=declared["sampler"],
        pruner=declared["pruner"],
    )


def refuse(word: str, base: Mapping[str, Any]) -> None:
    """What is neither the search's own key nor train.py's, or not for a search to be told.

    Raises:
        UserError: naming the key, and what would do.
    """
    key, _, value = word.partition("=")
    top = key_of(word).replace("/", ".").partition(".")[0]
    if word.startswith("-"):
        raise UserError(f"{word}: a search has no options; write key=value, and see --help")
    if top in ("hydra", "resume", "run_dir", "seed"):
        raise UserError(f"{word}: the search says this for each run; its own keys are {', '.join(OWN)}")
    if base and "=" in word and key == top and key not in base and not (CONFIGS / key).exists():
        raise UserError(no_such_key(key, value, base, OWN))


def parse(word: str) -> Override:
    """A word of the command line as Hydra understands it.

    Raises:
        UserError: if it does not.
    """
    try:
        return OverridesParser.create().parse_overrides([word])[0]
    except HydraException as error:
        raise UserError(command_line.translate(error, CONFIGS, [word])) from None


def composed(overrides: Sequence[str]) -> tuple[DictConfig, dict[str, str]]:
    """The configuration of ``train.py overrides``, and the choice of each group.

    Raises:
        UserError: as train.py would.
    """
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            cfg = compose("train", [*overrides, "run_dir=unused"], return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(command_line.translate(error, CONFIGS, list(overrides))) from None
    chosen = cast(dict[str, str], OmegaConf.to_container(cfg.hydra.runtime.choices))
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, chosen


def distribution(override: Override, present: Any) -> BaseDistribution:
    """What Optuna draws a key from.

    Args:
        override: with ``interval``, ``range`` or ``choice``.
        present: the key's value without it; where that is a whole number, so are those of an interval.

    Raises:
        UserError: if nothing can be drawn from it, or the key cannot be drawn.
    """
    key, line, value = override.key_or_group, override.input_line, override.value()
    if (CONFIGS / key).is_dir():
        raise UserError(
            f"{line}: {key} is a choice, and a tuned file sets only values; search each choice apart"
        )
    if key.partition(".")[0] in HARMLESS:
        raise UserError(f"{line}: {key} has to be the same in all trials; give one value")
    log = "log" in getattr(value, "tags", ())
    try:
        if isinstance(value, IntervalSweep):
            low, high = value.start, value.end
            whole = isinstance(present, int) and not isinstance(present, bool)
            if isinstance(low, int) or (whole and low.is_integer() and high.is_integer()):
                return IntDistribution(int(low), int(high), log=log)
            return FloatDistribution(low, high, log=log)
        if isinstance(value, RangeSweep):
            numbers, step = sorted(value.range()), abs(value.step)
            kind = IntDistribution if isinstance(numbers[0], int) else FloatDistribution
            return kind(numbers[0], numbers[-1], log=log, step=step)
        if isinstance(value, ChoiceSweep):
            return CategoricalDistribution(list(override.sweep_iterator(Transformer.encode)))
    except (ValueError, IndexError) as error:
        raise UserError(f"{line}: {' '.join(str(error).split())}") from None
    raise UserError(f"{line}: write interval(low,high), tag(log,interval(low,high)), range(…) or choice(…)")


def ends(space: BaseDistribution) -> list[Any]:
    """The values that are tried before anything starts: all choices, or both ends."""
    if isinstance(space, CategoricalDistribution):
        return list(space.choices)
    assert isinstance(space, IntDistribution | FloatDistribution)
    return [space.low, space.high]


def text(value: Any) -> str:
    """A value as it is typed; lists and quoted texts were kept as they were."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def draw(space: BaseDistribution, value: Any) -> str:
    """A drawn value as it is typed: four digits say enough."""
    if isinstance(space, FloatDistribution):
        value = min(max(float(f"{value:.4g}"), space.low), space.high)
    return text(value)


def holds(space: BaseDistribution, value: Any) -> bool:
    """Whether a key's present value could be drawn."""
    if isinstance(space, CategoricalDistribution):
        return value in space.choices
    return type(value) in (int, float) and ends(space)[0] <= value <= ends(space)[1]


def count(key: str, value: str) -> int:
    """A whole number above 0.

    Raises:
        UserError: if it is none.
    """
    if not value.isdecimal() or int(value) < 1:
        raise UserError(f"{key}={value}: should be a whole number, at least 1")
    return int(value)


def seeds(value: str) -> list[int]:
    """``0,1,2``, ``range(3)`` or one number.

    Raises:
        UserError: if it is none of these, or one is there twice.
    """
    override = parse(f"seeds={value}")
    found = list(override.sweep_iterator()) if override.is_discrete_sweep() else [override.value()]
    if len(set(map(str, found))) < len(found) or not all(type(each) is int and each >= 0 for each in found):
        raise UserError(f"seeds={value}: should be different whole numbers, as 0,1,2")
    return found


def optunas(part: dict[str, Any], kind: str) -> Any:
    """A sampler or pruner of Optuna's, as a file in ``configs/search`` names it.

    Raises:
        UserError: for anything else.
    """
    foreign = [name for _, node in targets(part) if not (name := str(node["_target_"])).startswith("optuna.")]
    if foreign or not str(part.get("_target_")).startswith(f"optuna.{kind}."):
        raise UserError(f"{kind[:-1]}: should have a _target_ in optuna.{kind}")
    try:
        return builder(part)()
    except (TypeError, ValueError) as error:
        raise UserError(f"{part['_target_']}: {' '.join(str(error).split())}") from None
