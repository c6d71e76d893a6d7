"""Verifies captured environment states: restores them in a second environment and compares what follows.

Capturing reads attributes. An environment may keep more, in a module's variable, in the clock or hidden in a
library, and would then continue differently. So a captured state is restored in a fresh copy, and both take
the same steps. If observations, rewards or ends differ, episodes start anew when a run is resumed.
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

from hydrl.run.checkpoint.env_state.capture import LARGE, capture, digest, large_arrays, restore
from hydrl.specs import opponent_pool, random_action
from hydrl.training.evaluator import preserve_rng

STEPS = 16  # before a reset of all environments, and as many after it
SEED = 1_618_033_988  # of copies, which have to be in another state
ENDS = ("done", "terminated", "truncated")


class CannotResumeError(Exception):
    """Why episodes start anew: the message follows "episodes start anew:"."""


class Rehearsal:
    """Tries captured states of a run's environments in copies.

    Args:
        env: the training environment.
        make_env: ``make_env()`` makes another.

    Attributes:
        fresh: of :func:`hydrl.run.checkpoint.env_state.capture.capture`.
        first: the state tried first in this run and what followed, which another process has to reproduce;
            as the bytes of one file, because a checkpoint of many small tensors is slow to write.
        is_tried: whether a copy continued in the same way.
        is_stepped: whether the training environment was stepped for it, and has to be restored or reset.
    """

    def __init__(self, env: TransformedEnv, make_env: Callable[[], TransformedEnv]) -> None:
        self.env, self.make_env = env, make_env
        self.fresh: dict[str, str] = {}
        self.first: torch.Tensor | None = None
        self.is_tried = self.is_stepped = False

    def before_saving(self, carrier: Mapping[str, Any]) -> None:
        """Steps the environments and a copy from the present state, and restores it.

        Args:
            carrier: what the last step handed to the next.

        Raises:
            NotCapturedError: where they cannot be captured; nothing has been stepped then.
            CannotResumeError: if they continue differently.
        """
        self.first = None
        state, rng = capture(self.env), GlobalRNGState().state_dict()
        with preserve_rng(), self.make_copy() as other:
            self.is_stepped = True
            expected = play(self.env, carrier)  # first, because stepping a copy moves what all share
            fresh = self.move_away(other)
            restore(other, state)
            compare(expected, play(other, carrier))
            self.fresh = unchanged(fresh, other)
        with as_cannot_resume():
            restore(self.env, state)
        file = io.BytesIO()
        trial = {"state": capture(self.env, self.fresh), "carrier": carrier, "rng": rng}
        if (pool := opponent_pool(self.env)) is not None:  # which changes later
            trial["opponents"] = pool.state_dict()
        torch.save(trial | {"expected": expected}, file)
        if file.tell() <= 64 * LARGE:
            self.first = torch.from_numpy(np.frombuffer(file.getvalue(), np.uint8).copy())
        self.is_tried = True

    def before_loading(self, state: Any, carrier: Mapping[str, Any]) -> None:
        """Steps a copy from the state tried first and, twice, from that of a checkpoint; then restores that.

        Raises:
            CannotResumeError: if something differs; the training environment has to be reset.
        """
        pool, first = opponent_pool(self.env), None
        if self.first is not None:
            first = torch.load(io.BytesIO(self.first.numpy().tobytes()), weights_only=True)
            if pool is not None and "opponents" not in first:  # of a version that did not keep them
                self.first = first = None
        with preserve_rng(), self.make_copy() as other:
            fresh = self.move_away(other)
            if first is not None:
                restore(other, first["state"])
                before = nullcontext() if pool is None else pool.restored(first["opponents"])
                with preserve_rng(), before:
                    GlobalRNGState().load_state_dict(first["rng"])
                    compare(first["expected"], play(other, first["carrier"]))
            restore(other, state)
            expected = play(other, carrier)
            restore(other, state)
            compare(expected, play(other, carrier))
            self.fresh, self.is_tried = unchanged(fresh, other), self.first is not None
        with as_cannot_resume():
            restore(self.env, state)

    @contextmanager
    def make_copy(self) -> Iterator[TransformedEnv]:
        """Makes a second environment; what fails in the block means that episodes cannot be resumed."""
        try:
            with preserve_rng():
                other = self.make_env()
        except Exception as error:
            raise CannotResumeError(f"no second environment can be made ({one_line(error)})") from error
        with as_cannot_resume():
            try:
                yield other
            finally:
                other.close(raise_if_closed=False)

    @preserve_rng()
    @torch.no_grad()
    def move_away(self, other: TransformedEnv) -> dict[str, str]:
        """Seeds and steps a copy, and returns digests of its large arrays, but for shared ones."""
        base = other.base_env
        base.set_seed(SEED)
        now = base.reset()
        for _ in range(3):
            now = base.step_and_maybe_reset(random_action(base, now))[1]
        own = large_arrays(self.env)
        arrays = large_arrays(other) if own else {}
        unshared = (path for path, array in arrays.items() if not share_memory(array, own.get(path)))
        return {path: digest(arrays[path]) for path in unshared}


@preserve_rng()
@torch.no_grad()
def play(env: TransformedEnv, carrier: Mapping[str, Any]) -> dict[str, str]:
    """Takes random steps below the transforms, so that no normalizer moves, and resets midway.

    Returns:
        A digest of all observations, rewards and ends, by name.
    """
    base = env.base_env
    now = base.fake_tensordict().exclude("next")
    now.update(TensorDict(dict(carrier)).select(*now.keys(True, True), strict=False).clone())
    total: dict[str, Any] = defaultdict(hashlib.sha256)
    for _ in range(2):
        for _ in range(STEPS):
            step, now = base.step_and_maybe_reset(random_action(base, now))
            update_digests(total, step["next"])
        now = base.reset()
        update_digests(total, now)
    return {name: value.hexdigest() for name, value in total.items()}


def update_digests(total: Mapping[str, Any], step: TensorDictBase) -> None:
    """Adds the entries of a step to the digests; all NaNs count as equal."""
    for key, value in step.items(True, True):
        name = key if isinstance(key, str) else key[-1]
        if isinstance(value, torch.Tensor):
            value = value.nan_to_num(12_345.0) if value.is_floating_point() else value
            total["end" if name in ENDS else name].update(digest(value).encode())


def compare(expected: Mapping[str, str], actual: Mapping[str, str]) -> None:
    """Compares digests.

    Raises:
        CannotResumeError: naming what differs.
    """
    if different := [name for name in sorted(expected) if actual.get(name) != expected[name]]:
        names = " and another ".join(different)
        raise CannotResumeError(f"a restored copy gave another {names}")


@contextmanager
def as_cannot_resume() -> Iterator[None]:
    """Turns errors in the block into :class:`CannotResumeError`."""
    try:
        yield
    except CannotResumeError:
        raise
    except Exception as error:  # whatever a task's own code may raise
        raise CannotResumeError(f"a restored copy fails ({one_line(error)})") from error


def one_line(error: Exception) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def share_memory(array: np.ndarray | torch.Tensor, other: np.ndarray | torch.Tensor | None) -> bool:
    """Whether arrays of two environments share memory, and so say nothing of a fresh environment."""
    if other is None or isinstance(array, torch.Tensor) != isinstance(other, torch.Tensor):
        return True
    if isinstance(array, torch.Tensor):
        return array.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()  # type: ignore
    return np.may_share_memory(array, other)


def unchanged(fresh: Mapping[str, str], other: TransformedEnv) -> dict[str, str]:
    """Those of the digests that are still right after a copy has been stepped."""
    now = large_arrays(other) if fresh else {}
    return {path: value for path, value in fresh.items() if path in now and digest(now[path]) == value}
