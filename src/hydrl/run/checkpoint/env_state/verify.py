"""Whether environments go on from what a checkpoint keeps of them: tried before it is believed.

Reading finds what stands in attributes. A task may keep more, in a module's variable, at the clock or in what
a library hides, and would then go on as another. So what was read is put into a fresh twin, and both take the
same steps: where they see, pay or end differently, episodes start anew when a run is resumed, which it says.
"""

import hashlib
import io
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict, TensorDictBase
from torchrl.checkpoint import GlobalRNGState
from torchrl.envs import TransformedEnv

from hydrl.run.checkpoint.env_state.capture import LARGE, digest, load_simulator, simulator_state, tables
from hydrl.specs import opponent_pool, random_action
from hydrl.training.evaluator import preserve_rng

STEPS = 16  # before a reset of all environments, and as many after it
SEED = 1_618_033_988  # of twins, which have to stand elsewhere
ENDS = ("done", "terminated", "truncated")


class CannotGoOnError(Exception):
    """Why episodes start anew; what follows "the environments start anew:"."""


class Rehearsal:
    """Tries the states of a run's environments in twins of theirs.

    Args:
        env: the training environment.
        make_env: ``make_env()`` makes another.

    Attributes:
        fresh: of :func:`hydrl.run.checkpoint.env_state.capture.simulator_state`.
        first: the state tried first in this run and what came of it, to which another process has to come
            too; as the bytes of one file, for a checkpoint of many small tensors is slow to write.
        tried: whether these environments went on alike.
        stepped: whether the training environment has been stepped to try it, and has to be put back or reset.
    """

    def __init__(self, env: TransformedEnv, make_env: Callable[[], TransformedEnv]) -> None:
        self.env, self.make_env = env, make_env
        self.fresh: dict[str, str] = {}
        self.first: torch.Tensor | None = None
        self.tried = self.stepped = False

    def before_saving(self, carrier: Mapping[str, Any]) -> None:
        """Steps the environments and a twin from where they stand, and puts them back there.

        Args:
            carrier: what the last step handed to the next.

        Raises:
            NotCapturedError: where they cannot be read; nothing has been stepped then.
            CannotGoOnError: if they do not go on alike.
        """
        self.first = None
        state, rng = simulator_state(self.env), GlobalRNGState().state_dict()
        with preserve_rng(), self.twin() as twin:
            self.stepped = True
            expected = play(self.env, carrier)  # first, for a twin moves what all share
            fresh = self.stand_elsewhere(twin)
            load_simulator(twin, state)
            compare(expected, play(twin, carrier))
            self.fresh = unchanged(fresh, twin)
        with cannot_go_on():
            load_simulator(self.env, state)
        file = io.BytesIO()
        kept = {"state": simulator_state(self.env, self.fresh), "carrier": carrier, "rng": rng}
        if (others := opponent_pool(self.env)) is not None:  # more join them later, and older ones go
            kept["opponents"] = others.state_dict()
        torch.save(kept | {"expected": expected}, file)
        if file.tell() <= 64 * LARGE:
            self.first = torch.from_numpy(np.frombuffer(file.getvalue(), np.uint8).copy())
        self.tried = True

    def before_loading(self, state: Any, carrier: Mapping[str, Any]) -> None:
        """Goes on in a twin from the state tried first and, twice, from that of a checkpoint.

        The training environment stands there afterwards.

        Raises:
            CannotGoOnError: if it does not come to what it came to; the training environment has to be reset.
        """
        others, first = opponent_pool(self.env), None
        if self.first is not None:
            first = torch.load(io.BytesIO(self.first.numpy().tobytes()), weights_only=True)
            if others is not None and "opponents" not in first:  # of a version that did not keep them
                self.first = first = None
        with preserve_rng(), self.twin() as twin:
            fresh = self.stand_elsewhere(twin)
            if first is not None:
                load_simulator(twin, first["state"])
                before = nullcontext() if others is None else others.restored(first["opponents"])
                with preserve_rng(), before:
                    GlobalRNGState().load_state_dict(first["rng"])
                    compare(first["expected"], play(twin, first["carrier"]))
            load_simulator(twin, state)
            expected = play(twin, carrier)
            load_simulator(twin, state)
            compare(expected, play(twin, carrier))
            self.fresh, self.tried = unchanged(fresh, twin), self.first is not None
        with cannot_go_on():
            load_simulator(self.env, state)

    @contextmanager
    def twin(self) -> Iterator[TransformedEnv]:
        """A fresh environment; what fails in the block means that nothing can go on."""
        try:
            with preserve_rng():
                twin = self.make_env()
        except Exception as error:
            raise CannotGoOnError(f"no second one can be made beside them ({told(error)})") from error
        with cannot_go_on():
            try:
                yield twin
            finally:
                twin.close(raise_if_closed=False)

    @preserve_rng()
    @torch.no_grad()
    def stand_elsewhere(self, twin: TransformedEnv) -> dict[str, str]:
        """Seeds a twin and takes it some steps; returns the digests of large arrays that are its own."""
        base = twin.base_env
        base.set_seed(SEED)
        now = base.reset()
        for _ in range(3):
            now = base.step_and_maybe_reset(random_action(base, now))[1]
        there = tables(self.env)
        found = tables(twin) if there else {}
        return {path: digest(each) for path, each in found.items() if not shared(each, there.get(path))}


@preserve_rng()
@torch.no_grad()
def play(env: TransformedEnv, carrier: Mapping[str, Any]) -> dict[str, str]:
    """Random steps below the transforms, so that no normaliser moves, with a reset of all among them.

    Returns:
        a digest of all that was seen, paid and ended, by name.
    """
    base = env.base_env
    now = base.fake_tensordict().exclude("next")
    now.update(TensorDict(dict(carrier)).select(*now.keys(True, True), strict=False).clone())
    total: dict[str, Any] = defaultdict(hashlib.sha256)
    for _ in range(2):
        for _ in range(STEPS):
            step, now = base.step_and_maybe_reset(random_action(base, now))
            add(total, step["next"])
        now = base.reset()
        add(total, now)
    return {name: each.hexdigest() for name, each in total.items()}


def add(total: Mapping[str, Any], given: TensorDictBase) -> None:
    """Adds what a step gave to the digests; one NaN is as another."""
    for key, value in given.items(True, True):
        name = key if isinstance(key, str) else key[-1]
        if isinstance(value, torch.Tensor):
            value = value.nan_to_num(12_345.0) if value.is_floating_point() else value
            total["end" if name in ENDS else name].update(digest(value).encode())


def compare(expected: Mapping[str, str], found: Mapping[str, str]) -> None:
    """Looks for what differs.

    Raises:
        CannotGoOnError: naming it.
    """
    if differs := [name for name in sorted(expected) if found.get(name) != expected[name]]:
        raise CannotGoOnError(f"put back where they stood, they gave another {' and another '.join(differs)}")


@contextmanager
def cannot_go_on() -> Iterator[None]:
    """What fails in the block is told as what it means."""
    try:
        yield
    except CannotGoOnError:
        raise
    except Exception as error:  # whatever a task's own code may raise
        raise CannotGoOnError(f"put back where they stood, they fail ({told(error)})") from error


def told(error: Exception) -> str:
    """An error in a line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def shared(table: np.ndarray | torch.Tensor, other: np.ndarray | torch.Tensor | None) -> bool:
    """Whether two environments look into the same memory, which then tells nothing of a fresh one."""
    if other is None or isinstance(table, torch.Tensor) != isinstance(other, torch.Tensor):
        return True
    if isinstance(table, torch.Tensor):
        return table.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()  # type: ignore
    return np.may_share_memory(table, other)


def unchanged(fresh: Mapping[str, str], twin: TransformedEnv) -> dict[str, str]:
    """Those of the digests that still are right after a twin has been stepped."""
    now = tables(twin) if fresh else {}
    return {path: each for path, each in fresh.items() if path in now and digest(now[path]) == each}
