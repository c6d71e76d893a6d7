"""Warm starts: a new run begins with the weights of another, and the normalizer they were learned with.

Nothing else of that run is read: no part of it is built, and the optimizer, exploration and schedule of the
new run begin anew. The other run's folder is not needed afterwards.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import Parameter
from torchrl.envs import TransformedEnv

from hydrl.config.migrations import new_config
from hydrl.config.overrides import run_folder_of
from hydrl.config.tree import find, show
from hydrl.envs import normalizer_state
from hydrl.envs.normalization import load_normalizer
from hydrl.errors import UserError
from hydrl.run.checkpoint import archive as checkpoint
from hydrl.run.run_folder import refuse_links, run_hint
from hydrl.specs import is_image
from hydrl.training.learner import Learner

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of PyTorch's norms
SHOWN = 4  # skipped entries that are printed; the summary has all

Entries = Mapping[str, Mapping[str, Any]]


@dataclass
class WarmStart:
    """What a new run takes from another.

    Attributes:
        path: the run or checkpoint as the user typed it.
        run: its folder.
        frames: how long it had trained when it wrote the checkpoint.
        entries: its weights by part, see :func:`by_part`.
        normaliser: its statistics.
        networks: of this run's loss: which part is which argument.
        parts: those the user wants; ``None`` for those that both runs have.
        copied_counts: how many entries of each part were copied.
        skipped: the other entries, and why.
        lines: what is printed.
        weights: how many of the copied entries have more than one dimension.
        exploration_note: a line on the first actions, where they are not the actor's.
        checkpoint: which they are taken from.
        classes: its digests of the user's own classes, see :mod:`hydrl.run.checkpoint.user_classes`.
        scale: the other run's ``encoder.scale``, where it is not this one's.
        trained: the other run's algorithm and environment.
    """

    path: str
    run: Path
    frames: int
    entries: Entries
    normaliser: Mapping[str, Any]
    networks: Mapping[str, str]
    parts: Sequence[str] | None
    copied_counts: dict[str, int] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    weights: int = 0
    exploration_note: str = ""
    checkpoint: Path = Path()
    classes: Any = None
    scale: str = ""
    trained: str = "another run"

    def reads(self, part: str) -> bool:
        """Whether the other run has a part, and the user wants it."""
        return part in self.entries and (self.parts is None or part in self.parts)

    run_ids: ClassVar[dict[str, str]] = {}  # the new run has its own
    forked_from: ClassVar[Path | None] = None

    @property
    def lineage(self) -> dict[str, Any]:
        """The entry in the summary."""
        run = str(self.run.absolute())
        counts = {"taken": self.copied_counts, "left": self.skipped}
        return {"init_from": {"run": run, "frames": self.frames, **counts}}


def find_warm_start(settings: Mapping[str, Any]) -> WarmStart | None:
    """Reads the checkpoint that ``init_from`` names; ``None`` without one.

    Args:
        settings: of the new run, as they are saved.

    Raises:
        UserError: if there is none, it is damaged, or lacks a part that the user wants.
    """
    path, which, parts = (settings["init_from"][key] for key in ("run", "checkpoint", "parts"))
    if path is None:
        return None
    run = run_folder_of(path)
    refuse_links(run)
    if not checkpoint.archives(run):
        raise UserError(f"init_from={path}: no run with a checkpoint. {run_hint(run)}")
    try:
        archive = Path(path) if Path(path) != run else checkpoint.find(run, str(which), or_last=True)
        metadata = checkpoint.verify(archive)
        states = checkpoint.load(archive, ["loss", "normaliser"])
    except UserError as error:
        raise UserError(f"init_from={path}: {error}") from None
    networks, normaliser = find(metadata, "settings.loss.networks"), states["normaliser"]
    if not is_well_formed(states["loss"], networks, normaliser):
        raise UserError(f"init_from={path}: {archive} is not as hydrl writes it")
    entries = by_part(states["loss"], networks)
    require_parts(parts, [*entries, *["normaliser"] * bool(normaliser)], str(run))
    scale = find(new_config(metadata["settings"]), "actor.encoder.scale")
    is_other = isinstance(scale, str) and scale != find(settings, "actor.encoder.scale")
    return WarmStart(
        path=path,
        run=run,
        frames=checkpoint.frames_of(archive),
        entries=entries,
        normaliser=normaliser,
        networks=settings["loss"]["networks"],
        parts=parts,
        exploration_note=describe_exploration(settings["exploration"] or {}, settings["collector"]),
        checkpoint=archive,
        classes=metadata.get("classes"),
        scale=scale if is_other else "",
        trained=" on ".join(str(find(metadata, f"settings.{key}")) for key in ("algo", "task")),
    )


def describe_exploration(exploration: Mapping[str, Any], collector: Mapping[str, Any]) -> str:
    """How a new run explores at first, whatever its actor; empty where it acts by the actor.

    Args:
        exploration: the configured node, whose noise anneals from ``eps_init`` or ``sigma_init``.
        collector: the configured node, whose first ``init_random_frames`` are drawn at random.
    """
    keys = []
    for name in ("eps", "sigma"):
        start, end = exploration.get(f"{name}_init"), exploration.get(f"{name}_end")
        if start is not None and end is not None and start > end:
            keys.append((f"exploration.{name}_init", start, end))
    if frames := collector.get("init_random_frames"):
        keys.append(("collector.init_random_frames", frames, 0))
    if not keys:
        return ""
    now, then = (" ".join(f"{key}={pair[n]}" for key, *pair in keys) for n in (0, 1))
    return f"exploration starts anew, {now}; to act by the actor's weights from the start, write {then}"


def is_well_formed(loss: Any, networks: Any, normaliser: Any) -> bool:
    """Whether states are what a run writes, as far as they are read here; a file may be somebody else's."""
    if not all(isinstance(state, Mapping) for state in (loss, networks, normaliser)):
        return False
    if not all(isinstance(state, Mapping) for state in normaliser.values()):
        return False
    has_tensors = all(isinstance(value, Tensor) for state in normaliser.values() for value in state.values())
    return has_tensors and all(isinstance(name, str) for name in (*networks.values(), *loss))


def require_parts(parts: Sequence[str] | None, available: Sequence[str], owner: str) -> None:
    """Checks that a run has the parts that the user wants.

    Raises:
        UserError: naming what is missing, and what there is.
    """
    if missing := [part for part in parts or () if part not in available]:
        has = ", ".join(available)
        raise UserError(f"init_from.parts={show(parts)}: {owner} has no {missing[0]}; it has {has}")


def by_part(loss: Mapping[str, Any], networks: Mapping[str, str]) -> dict[str, dict[str, Tensor]]:
    """The entries of a loss's state by part, under names that do not depend on the loss.

    Target networks are one part, ``targets``, whose entries have the names of the networks they follow. Each
    group of agents has its own loss, and its entries have the group's name. An encoder that actor and critics
    share is a separate entry of the loss, and is the actor's.
    """
    parts: dict[str, dict[str, Tensor]] = {}
    networks = {**networks, "encoder": "actor"}
    for name, value in loss.items():
        whole = name.split(".", 2) if name.startswith("of_groups.") else ["", "", name]
        head, _, rest = whole[2].partition(".")
        rest = f"{whole[1]}.{rest}" if whole[1] else rest
        argument = head.removeprefix("target_").removesuffix("_params")
        if argument in networks and isinstance(value, Tensor):
            part, rest = networks[argument], f"encoder.{rest}" if argument == "encoder" else rest
            into = "targets" if head.startswith("target_") else part
            parts.setdefault(into, {})[f"{part}.{rest}"] = value
    return parts


@torch.no_grad()
def apply(source: WarmStart | None, env: TransformedEnv, learner: Learner) -> None:
    """Copies what is taken into the parts of a new run, before anything acts by them.

    Args:
        source: ``None`` copies nothing.
        env: the training environment, with its normalizer.
        learner: of the run's own loss, which shares the networks' parameters.

    Raises:
        UserError: if this run lacks a part that the user wants, or nothing fits.
    """
    if source is None:
        return
    # The tensors of the state are those that the networks and the loss's copies of them compute with.
    loss = learner.components["loss"]
    if (read := getattr(getattr(loss, "actor_network", None), "read_weights", None)) and source.reads(
        "actor"
    ):
        source.entries = {**source.entries, "actor": rename(read, source.entries["actor"])}
    own = by_part(loss.state_dict(keep_vars=True), source.networks)
    normaliser = normalizer_state(env)
    available = [*own, *["normaliser"] * bool(normaliser)]
    require_parts(source.parts, available, "this run")
    shared = [part for part in available if part in source.entries and part != "targets"]
    if "actor" in shared and have_same_shapes(source.normaliser, normaliser):
        shared.append("normaliser")
    parts = source.parts or shared
    learned = {name for part in own.values() for name, value in part.items() if is_learned(name, value)}
    filled: dict[int, str] = {}
    for part in (part for part in own if part in parts and part != "targets"):
        copy_part(source, part, own[part], learned, filled)
    targets = own.get("targets", {})
    for name, value in targets.items():  # which the loss copied from the networks when it was built
        value.copy_(own[name.partition(".")[0]][name])
    if "targets" in parts:
        copy_part(source, "targets", targets, learned, {})
    if "normaliser" in parts:
        copy_normalizer(source, env, normaliser)
    if not (source.weights or source.copied_counts.get("normaliser")):
        raise UserError(
            f"init_from={source.path}: no layer of it fits this run. It trained {source.trained}: "
            f"{shorten(source.skipped)}"
        )
    add_lines(source, parts)
    spec = env.observation_spec
    images = [key for key in spec.keys(True, True) if is_image(spec, key) and spec[key].dtype != torch.uint8]
    if images and source.scale and source.copied_counts.get("actor"):
        source.lines.append(
            f"the actor was trained on images of another scale; encoder.scale={source.scale} restores it"
        )


def rename(read: Callable[..., Mapping[str, Tensor]], entries: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """An actor's entries as the new run's actor reads them, such as adapters merged into weights."""
    weights = read({name.removeprefix("actor."): value for name, value in entries.items()})
    return {f"actor.{name}": value for name, value in weights.items()}


def have_same_shapes(other: Mapping[str, Any], own: Mapping[str, Any]) -> bool:
    """Whether two runs have as many normalizers, each with the same statistics in the same shapes."""

    def shapes(state: Mapping[str, Any], position: str) -> dict[str, Any]:
        return {name: state[position][name].shape for name in own[position] if name in state[position]}

    is_same = bool(own) and other.keys() == own.keys()
    return is_same and all(shapes(other, position) == shapes(own, position) for position in own)


def is_learned(name: str, value: Tensor) -> bool:
    """Whether it is a weight or a statistic of a norm; the rest, as action bounds, stays as in this run."""
    return isinstance(value, Parameter) or name.rpartition(".")[2] in STATISTICS


def copy_part(
    source: WarmStart, part: str, own: Mapping[str, Tensor], learned: Collection[str], filled: dict[int, str]
) -> None:
    """Copies the entries of a part that fit, and notes those that do not.

    Args:
        source: what is taken.
        part: of it.
        own: the part's entries in this run.
        learned: names of those that are copied at all.
        filled: by ``id``, which earlier part has copied an entry that this one shares; added to.
    """
    other, count = source.entries.get(part, {}), 0
    for name in dict.fromkeys([*own, *other]):
        if name in own and name not in learned:
            continue
        old, new = other.get(name), own.get(name)
        if new is not None and filled.setdefault(id(new), part) != part:
            if old is not None and not (old.shape == new.shape and torch.equal(old.to(new.device), new)):
                source.skipped[name] = f"the {filled[id(new)]}'s here, which is shared"
            continue
        if old is not None and new is not None and old.shape == new.shape:
            new.copy_(old)
            count += 1
            source.weights += new.ndim > 1
        else:
            source.skipped[f"targets.{name}" if part == "targets" else name] = compare_shapes(old, new)
    source.copied_counts[part] = count


def copy_normalizer(source: WarmStart, env: TransformedEnv, own: Mapping[str, Any]) -> None:
    """Copies statistics into the normalizers of the same position, kind and shape."""
    state, count = {}, 0
    for position, statistics in own.items():
        saved = source.normaliser.get(position, {})
        shapes = {name: value.shape for name, value in saved.items()}
        misfits = {name: new for name, new in statistics.items() if shapes.get(name) != new.shape}
        for name, new in misfits.items():
            source.skipped[f"normaliser.{position}.{name}"] = compare_shapes(saved.get(name), new)
        copies = {name: saved[name].to(new.device) for name, new in statistics.items() if not misfits}
        state[position] = copies or statistics
        count += len(copies)
    load_normalizer(env, state, running=True)
    source.copied_counts["normaliser"] = count


def compare_shapes(old: Tensor | None, new: Tensor | None) -> str:
    """The shapes of an entry in the other run and in this one."""
    other, own = (None if value is None else str(list(value.shape)) for value in (old, new))
    if other is None:
        return f"{own} here, missing there"
    return f"{other} there, {own or 'missing'} here"


def shorten(skipped: Mapping[str, str]) -> str:
    """The first entries that do not fit, and how many more there are."""
    more = len(skipped) - SHOWN
    shown = "; ".join(f"{name} is {why}" for name, why in list(skipped.items())[:SHOWN])
    return f"{shown}; and {more} more" if more > 0 else shown


def add_lines(source: WarmStart, parts: Sequence[str]) -> None:
    """Adds the lines that are printed."""
    taken = ", ".join(f"{part} ({count:,})" for part, count in source.copied_counts.items())
    source.lines.append(f"weights of {source.run} after {source.frames:,} frames, copied entries: {taken}")
    if count := len(source.skipped):
        source.lines.append(f"{count:,} entries do not fit, not copied: {shorten(source.skipped)}")
    if source.copied_counts.get("actor") and source.exploration_note:
        source.lines.append(source.exploration_note)
    if "actor" in parts and source.normaliser and not source.copied_counts.get("normaliser"):
        source.lines.append(
            "the actor was trained on normalised observations, and their statistics are not copied"
        )
