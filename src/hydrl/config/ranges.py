"""Ranges of values: the limits in the YAML of options, and how values of several options fit each other.

An option states under ``limits`` the ranges that its library's class does not check, or checks late.
Arguments of hydrl's own components have their range in the signature, by the types of :mod:`hydrl.limits`.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from hydrl.config.schema import QUANTITIES, Node, Values, quantity
from hydrl.config.tree import find, paths
from hydrl.errors import UserError

COMPARISONS = {">": "gt", ">=": "ge", "<": "lt", "<=": "le"}

# What must not be more than what, of different options; an option's own pairs stand among its limits.
MAXIMA = (
    ("total_frames", "anneal_frames"),
    ("minibatches.size", "collector.frames_per_batch"),
    ("minibatches.size", "buffer.storage.max_size"),
    ("minibatches.warmup_frames", "buffer.storage.max_size"),
    ("collector.frames_per_batch", "buffer.storage.max_size"),
)


def take_limits(values: Any, path: str = "") -> dict[str, str]:
    """Removes ``limits`` from nested values, a component's or those of ``loss``.

    Returns:
        Each limit by the dotted key of what it limits.
    """
    if not isinstance(values, dict):
        return {}
    limits: dict[str, str] = {}
    if "_target_" in values or path.rpartition(".")[2] == "loss":
        own = values.pop("limits", {})
        leaves = {name: find(own, name) for name in paths(own)}
        limits |= {f"{path}.{name}": limit for name, limit in leaves.items() if not isinstance(limit, dict)}
    for key, value in values.items():
        limits |= take_limits(value, f"{path}.{key}" if path else str(key))
    return limits


def type_of(key: str, limit: str) -> Any:
    """The type of a value within a limit: ``integer > 0``, ``>= 0, < 1``, ``l1 | l2`` or ``component``.

    Raises:
        UserError: for any other text.
    """
    if limit == "component":
        return Node
    if re.fullmatch(r"\w+( \| \w+)+", str(limit)):
        return Literal.__getitem__(tuple(limit.split(" | ")))
    if not re.fullmatch(r"(integer )?[<>]=? [\w.]+(, [<>]=? [\w.]+)*", str(limit)):
        raise UserError(
            f"{key}: its limit {limit!r} cannot be read. Write it like `integer > 0` or `>= 0, < 1`."
        )
    bounds: dict[str, Any] = {
        COMPARISONS[sign]: json.loads(number) for sign, number in re.findall(r"([<>]=?) (\d[\d.]*)", limit)
    }
    return (
        Annotated[int, Field(**bounds)]
        if "integer" in limit
        else Annotated[float, Field(allow_inf_nan=False, **bounds)]
    )


def value_conflicts(values: Values, limits: Mapping[str, str]) -> Iterator[str]:
    """Values that do not fit each other."""
    own = [
        (key, sign, f"{key.rpartition('.')[0]}.{name}")
        for key, limit in limits.items()
        for sign, name in re.findall(r"(<=?) ([a-z]\w*)", limit)
    ]
    for small, sign, large in [*((small, "<=", large) for small, large in MAXIMA), *own]:
        least, most = find(values, small), find(values, large)
        if None in (least, most) or least < most or (sign == "<=" and least == most):
            continue
        if large == QUANTITIES["frames"] and quantity(values, "warmup") is not None:
            continue  # sampled from the whole replay buffer
        if sign == "<":
            yield f"{small}={least}: should be less than {large}={most}."
            continue
        advice = f"Use {small}={most} or less, or {large}={least} or more"
        yield f"{small}={least}: is more than {large}={most}. {advice}."
    frames, envs = quantity(values, "frames"), quantity(values, "envs") * (quantity(values, "workers") or 1)
    if over := frames % envs:
        yield (
            f"collector.frames_per_batch={frames}: is not a multiple of {envs}, the environments "
            f"(collector.num_envs in each worker). Use collector.frames_per_batch={frames - over + envs}."
        )
    sequence, burn_in = quantity(values, "sequence"), quantity(values, "burn_in")
    if sequence and quantity(values, "warmup") is not None:  # rows of a replay buffer
        yield from sequence_conflicts(sequence, burn_in or 0, quantity(values, "size"), envs, values)
    elif sequence:
        steps, size = frames // envs, quantity(values, "size")
        both = math.gcd(steps, size)
        if both % sequence:
            fitting = max(length for length in range(1, sequence) if both % length == 0)
            larger = f"minibatches.size={sequence} collector.frames_per_batch={envs * sequence}, or multiples"
            yield (
                f"minibatches.sequence={sequence}: does not divide both minibatches.size={size} and the "
                f"{steps} steps of each environment in a batch. Use "
                f"{f'minibatches.sequence={fitting}' if fitting > 1 else larger}."
            )


def sequence_conflicts(sequence: int, burn_in: int, size: int, envs: int, values: Values) -> Iterator[str]:
    """Sequences that do not fit a minibatch, or the replay buffer."""
    line = f"minibatches.sequence={sequence}"
    if sequence <= burn_in:
        yield f"{line}: should be more than minibatches.burn_in={burn_in}."
    if sequence > size:
        yield f"{line}: is more than minibatches.size={size}. Use a larger minibatches.size."
    frames = find(values, "buffer.storage.max_size")
    if frames and frames < envs * sequence:
        yield (
            f"buffer.storage.max_size={frames}: too small for {line} of each of {envs} environments. "
            f"Use buffer.storage.max_size={envs * sequence} or more."
        )
