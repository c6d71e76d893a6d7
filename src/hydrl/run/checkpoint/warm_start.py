"""What a new run begins with of what another has learned: weights, and the normaliser they were learned with.

Nothing else of that run is read: no part of it is built, and the optimizer, exploration and schedule of the
new one begin anew. Once it has begun it does without the other's folder.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import Parameter
from torchrl.envs import TransformedEnv

from hydrl.config.migrations import renamed
from hydrl.config.overrides import run_of
from hydrl.config.settings import Settings
from hydrl.config.tree import find, show
from hydrl.envs import normalizer_state
from hydrl.envs.normalization import load_normalizer
from hydrl.errors import UserError
from hydrl.run.checkpoint import archive as checkpoint
from hydrl.run.checkpoint.resume import Origin
from hydrl.run.run_folder import newest_run_hint, refuse_links
from hydrl.specs import is_image
from hydrl.training.learner import Learner

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of PyTorch's norms
SHOWN = 4  # entries that begin anew, on the screen; the summary has all

Entries = Mapping[str, Mapping[str, Any]]


@dataclass
class Source:
    """What is taken from another run.

    Attributes:
        named: as the user named it.
        run: its folder.
        frames: how long it had trained when it left the checkpoint.
        there: its entries by part, as :func:`by_part` gives them.
        normaliser: its statistics.
        networks: of this run's loss: which part is which argument.
        asked: parts the user asked for; ``None`` for those that both runs have.
        taken: how many entries of each part were.
        left: those that begin anew here, or are not here, and why.
        lines: what the user is told.
        weights: how many of the entries that were taken are more than a vector.
        exploring: what the user is told of the first actions, where they are not the actor's.
        checkpoint: that they are taken from.
        classes: digests that it has of the user's own classes, see :mod:`hydrl.run.checkpoint.user_classes`.
        scale: the other run's ``encoder.scale``, where it is not this one's.
    """

    named: str
    run: Path
    frames: int
    there: Entries
    normaliser: Mapping[str, Any]
    networks: Mapping[str, str]
    asked: Sequence[str] | None
    taken: dict[str, int] = field(default_factory=dict)
    left: dict[str, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    weights: int = 0
    exploring: str = ""
    checkpoint: Path = Path()
    classes: Any = None
    scale: str = ""

    @property
    def told(self) -> dict[str, Any]:
        """Of it in the summary."""
        run = str(self.run.absolute())
        return {"run": run, "frames": self.frames, "taken": self.taken, "left": self.left}


def source(settings: Settings, origin: Origin | None) -> Source | None:
    """The checkpoint that ``init_from`` names; ``None`` without one, and where a run is resumed.

    Raises:
        UserError: if there is none, it is damaged, or has not what is asked for.
    """
    asks = settings.init_from
    if asks.run is None or origin is not None:
        return None
    named, run = Path(asks.run), run_of(asks.run)
    refuse_links(run)
    if not checkpoint.archives(run):
        raise UserError(f"init_from={asks.run}: no run with a checkpoint lies there{newest_run_hint(run)}")
    try:
        archive = named if named != run else checkpoint.find(run, str(asks.checkpoint), or_last=True)
        metadata = checkpoint.verify(archive)
        states = checkpoint.load(archive, ["loss", "normaliser"])
    except UserError as error:
        raise UserError(f"init_from={asks.run}: {error}") from None
    networks, normaliser = find(metadata, "settings.loss.networks"), states["normaliser"]
    if not is_well_formed(states["loss"], networks, normaliser):
        raise UserError(f"init_from={asks.run}: {archive} is not as hydrl writes it")
    there = by_part(states["loss"], networks)
    require(asks.parts, [*there, *["normaliser"] * bool(normaliser)], str(run))
    frames = checkpoint.frames_of(archive)
    source = Source(asks.run, run, frames, there, normaliser, settings.loss.networks, asks.parts)
    source.checkpoint, source.classes = archive, metadata.get("classes")
    source.exploring = exploring(settings.exploration or {}, settings.collector)
    scales = [find(each, "actor.encoder.scale") for each in (renamed(metadata["settings"]), settings.shown)]
    if isinstance(scales[0], str) and scales[0] != scales[1]:
        source.scale = scales[0]
    return source


def exploring(exploration: Mapping[str, Any], collector: Mapping[str, Any]) -> str:
    """How a new run acts at first, whatever its actor was given; empty where it acts by the actor.

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
    return f"exploration begins anew, {now}; to act by the actor's weights from the start write {then}"


def is_well_formed(loss: Any, networks: Any, normaliser: Any) -> bool:
    """Whether they are what a run writes, as far as they are read here; a file may be somebody else's."""
    if not all(isinstance(each, Mapping) for each in (loss, networks, normaliser)):
        return False
    if not all(isinstance(each, Mapping) for each in normaliser.values()):
        return False
    tensors = all(isinstance(each, Tensor) for state in normaliser.values() for each in state.values())
    return tensors and all(isinstance(each, str) for each in (*networks.values(), *loss))


def require(asked: Sequence[str] | None, there: Sequence[str], where: str) -> None:
    """Looks for what the user asked for.

    Raises:
        UserError: naming what lacks and what there is.
    """
    if lacking := [each for each in asked or () if each not in there]:
        has = ", ".join(there)
        raise UserError(f"init_from.parts={show(asked)}: {where} has no {lacking[0]}; it has {has}")


def by_part(loss: Mapping[str, Any], networks: Mapping[str, str]) -> dict[str, dict[str, Tensor]]:
    """The entries of a loss's state by the part they are of, under names that do not depend on the loss.

    Those of its target networks are together, ``targets``, each named as what it is the target of. Several
    groups of agents have a loss each, and theirs are named after them. An encoder that critics of
    actions share stands by itself in the loss, and is the actor's.
    """
    found: dict[str, dict[str, Tensor]] = {}
    networks = {**networks, "encoder": "actor"}
    for name, value in loss.items():
        whole = name.split(".", 2) if name.startswith("of_groups.") else ["", "", name]
        head, _, rest = whole[2].partition(".")
        rest = f"{whole[1]}.{rest}" if whole[1] else rest
        argument = head.removeprefix("target_").removesuffix("_params")
        if argument in networks and isinstance(value, Tensor):
            part, rest = networks[argument], f"encoder.{rest}" if argument == "encoder" else rest
            into = "targets" if head.startswith("target_") else part
            found.setdefault(into, {})[f"{part}.{rest}"] = value
    return found


@torch.no_grad()
def take(source: Source | None, env: TransformedEnv, learner: Learner) -> None:
    """Puts what is taken into a new run's parts, before anything acts by them.

    Args:
        source: ``None`` takes nothing.
        env: the training environment, with its normaliser.
        learner: by the run's own loss, which shares the networks' parameters.

    Raises:
        UserError: if a part is asked for that this run has not, or nothing fits.
    """
    if source is None:
        return
    # The tensors of the state are those that the networks and the loss's copies of them compute with.
    here = by_part(learner.parts["loss"].state_dict(keep_vars=True), source.networks)
    seen_by = normalizer_state(env)
    able = [*here, *["normaliser"] * bool(seen_by)]
    require(source.asked, able, "this run")
    both = [each for each in able if each in source.there and each != "targets"]
    if "actor" in both and alike(source.normaliser, seen_by):
        both.append("normaliser")
    parts = source.asked or both
    learned = {name for each in here.values() for name, value in each.items() if is_learned(name, value)}
    filled: dict[int, str] = {}
    for part in (each for each in here if each in parts and each != "targets"):
        fill(source, part, here[part], learned, filled)
    targets = here.get("targets", {})
    for name, value in targets.items():  # which the loss copied from what the networks were before
        value.copy_(here[name.partition(".")[0]][name])
    if "targets" in parts:
        fill(source, "targets", targets, learned, {})
    if "normaliser" in parts:
        take_normaliser(source, env, seen_by)
    if not (source.weights or source.taken.get("normaliser")):
        raise UserError(f"init_from={source.named}: no layer of it fits: {some(source.left)}")
    tell(source, parts)
    spec = env.observation_spec
    images = [key for key in spec.keys(True, True) if is_image(spec, key) and spec[key].dtype != torch.uint8]
    if images and source.scale and source.taken.get("actor"):
        source.lines.append(
            f"the actor had learned from pictures of another scale; encoder.scale={source.scale} has its own"
        )


def alike(there: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Whether two runs have as many normalisers, each with the same statistics in the same shapes."""

    def shapes(state: Mapping[str, Any], position: str) -> dict[str, Any]:
        return {name: state[position][name].shape for name in here[position] if name in state[position]}

    same = bool(here) and there.keys() == here.keys()
    return same and all(shapes(there, each) == shapes(here, each) for each in here)


def is_learned(name: str, value: Tensor) -> bool:
    """Whether it is a weight or a norm's statistic; the rest, as bounds of actions, is as this run has it."""
    return isinstance(value, Parameter) or name.rpartition(".")[2] in STATISTICS


def fill(
    source: Source, part: str, here: Mapping[str, Tensor], learned: Collection[str], filled: dict[int, str]
) -> None:
    """Copies the entries of a part that fit, and notes those that do not.

    Args:
        source: what is taken.
        part: of it.
        here: the part's entries in this run.
        learned: names of those that are taken at all.
        filled: the entries, by what they are, that a part before this one has taken, and shares; added to.
    """
    there, count = source.there.get(part, {}), 0
    for name in dict.fromkeys([*here, *there]):
        if name in here and name not in learned:
            continue
        old, new = there.get(name), here.get(name)
        if new is not None and filled.setdefault(id(new), part) != part:
            if old is not None and not (old.shape == new.shape and torch.equal(old.to(new.device), new)):
                source.left[name] = f"the {filled[id(new)]}'s here, which is shared"
            continue
        if old is not None and new is not None and old.shape == new.shape:
            new.copy_(old)
            count += 1
            source.weights += new.ndim > 1
        else:
            source.left[f"targets.{name}" if part == "targets" else name] = unlike(old, new)
    source.taken[part] = count


def take_normaliser(source: Source, env: TransformedEnv, here: Mapping[str, Any]) -> None:
    """Puts statistics, by the positions of normalisers, into those that are of the same kind and shape."""
    state, count = {}, 0
    for position, own in here.items():
        known = source.normaliser.get(position, {})
        apart = {each: (known.get(each), own[each]) for each in own}
        left = {each: two for each, two in apart.items() if two[0] is None or two[0].shape != two[1].shape}
        source.left |= {f"normaliser.{position}.{each}": unlike(*two) for each, two in left.items()}
        state[position] = own if left else {each: known[each].to(own[each].device) for each in own}
        count += 0 if left else len(own)
    load_normalizer(env, state, running=True)
    source.taken["normaliser"] = count


def unlike(old: Tensor | None, new: Tensor | None) -> str:
    """The shapes of an entry there and here."""
    there, here = ("none" if each is None else str(list(each.shape)) for each in (old, new))
    return f"{there} there, {here} here"


def some(left: Mapping[str, str]) -> str:
    """The first of what does not fit, and how many more there are."""
    more = len(left) - SHOWN
    shown = "; ".join(f"{name} is {why}" for name, why in list(left.items())[:SHOWN])
    return f"{shown}; and {more} more" if more > 0 else shown


def tell(source: Source, parts: Sequence[str]) -> None:
    """Notes the lines for the screen."""
    taken = ", ".join(f"{part} ({count:,})" for part, count in source.taken.items())
    source.lines.append(f"begins with entries of {source.run} after {source.frames:,} frames: {taken}")
    if source.left:
        source.lines.append(f"{len(source.left):,} entries do not fit and are left: {some(source.left)}")
    if source.taken.get("actor") and source.exploring:
        source.lines.append(source.exploring)
    if "actor" in parts and source.normaliser and not source.taken.get("normaliser"):
        source.lines.append(
            "the actor had learned from normalised observations, and their statistics are not taken"
        )
