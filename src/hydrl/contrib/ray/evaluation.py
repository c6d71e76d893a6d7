"""Background evaluations on a machine of a Ray cluster."""

import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from torch.utils._pytree import tree_map_only

from hydrl.contrib.ray.cluster import (
    TICK,
    ProcessLocation,
    current_location,
    explain_end,
    join_cluster,
    report_full_store,
    say,
    unblock_signals,
)
from hydrl.contrib.ray.collector import for_device
from hydrl.errors import UserError, WorkerError
from hydrl.run.eval_process import portable, prepare, try_snapshot
from hydrl.training.evaluator import Evaluation, PolicyEvaluator

START_SECONDS = 120.0  # seconds in which the actor has a CPU and has started
ACCELERATORS = ("torch_cuda", "torch_xpu", "torch_mps")  # random number generators of accelerators


class EvalActor:
    """A Ray actor that plays evaluations.

    Args:
        evaluator: with everything on the CPU.
        threads: of PyTorch.
    """

    def __init__(self, evaluator: PolicyEvaluator, threads: int) -> None:
        unblock_signals()
        prepare(threads)
        self.evaluator = evaluator

    def location(self) -> ProcessLocation:
        """Where it runs."""
        return current_location()

    def play(self, snapshot: dict[str, Any]) -> Evaluation | str:
        """See :func:`hydrl.run.eval_process.try_snapshot`."""
        return try_snapshot(self.evaluator, snapshot)


class RayEvalProcess:
    """An evaluation backend on a CPU of a Ray cluster; see :class:`hydrl.run.eval_process.EvalBackend`.

    Args:
        evaluator: the actor gets a copy of it.
        address: of the cluster, if this run has joined none: ``HOST:PORT``, ``auto``, or ``None`` starts one.
        stop: called twice a second while the actor starts, and where it ends; what it raises ends the wait.

    Raises:
        UserError: where there is no such cluster, or no CPU of it is free.
        WorkerError: where the actor ends.
    """

    is_optional, is_ready = False, True  # once it is built

    def __init__(
        self, evaluator: PolicyEvaluator, address: str | None, *, stop: Callable[[], object]
    ) -> None:
        self.check_stop, self.owns_cluster = stop, not ray.is_initialized()
        self.actor: Any = None
        self.location: ProcessLocation | None = None
        if self.owns_cluster:
            join_cluster("eval.address", address, {"CPU": 1, "GPU": 0})
        say("starting the evaluation process")
        make_actor = ray.remote(num_cpus=1)(EvalActor).remote
        try:
            with report_full_store():
                self.actor = make_actor(on_cpu(evaluator), torch.get_num_threads())
            self.result = self.actor.location.remote()
            self.location = self.wait_until_started()
        except BaseException:
            self.close()
            raise

    def wait_until_started(self) -> ProcessLocation:
        """Waits until the actor has started; where it runs."""
        since = time.monotonic()
        while not self.poll(TICK):
            self.check_stop()
            if time.monotonic() - since > START_SECONDS:
                raise UserError(
                    f"eval.backend=ray: none of {ray.cluster_resources()['CPU']:g} CPUs of the cluster was "
                    f"free within {START_SECONDS:g} seconds. Use fewer collectors or less collector.num_cpus."
                )
        location: ProcessLocation = self.get_result()
        return location

    def send(self, snapshot: dict[str, Any]) -> None:
        """See :class:`hydrl.run.eval_process.EvalBackend`."""
        rng = {name: state for name, state in snapshot["rng"].items() if name not in ACCELERATORS}
        snapshot = tree_map_only(torch.Tensor, lambda tensor: tensor.cpu(), snapshot | {"rng": rng})
        with report_full_store():
            self.result = self.actor.play.remote(snapshot)

    def poll(self, seconds: float = 0.0) -> bool:
        """See :class:`hydrl.run.eval_process.EvalBackend`."""
        return bool(ray.wait([self.result], timeout=seconds)[0])

    def receive(self) -> Evaluation | str:
        """See :class:`hydrl.run.eval_process.EvalBackend`."""
        evaluation: Evaluation | str = self.get_result()
        return evaluation

    def get_result(self) -> Any:
        """What the actor's last call returned.

        Raises:
            WorkerError: where the actor is lost.
        """
        try:
            return ray.get(self.result)
        except RayError as error:
            self.check_stop()  # a signal to the whole process group ends this, too
            what = "the evaluation process" + (f" ({self.location})" if self.location else "")
            raise WorkerError(explain_end(what, self.location, error, "the evaluation")) from None

    def close(self) -> None:
        """Ends the actor, whatever it is doing, and Ray if it was started for it."""
        if self.actor is not None:
            ray.kill(self.actor)
        if self.owns_cluster:
            ray.shutdown()


def on_cpu(evaluator: PolicyEvaluator) -> PolicyEvaluator:
    """A copy for a machine that may lack this one's accelerators."""
    remote = portable(evaluator)
    remote.actor = deepcopy(evaluator.actor).cpu()
    remote.make_env = partial(for_device(evaluator.make_env, "cpu"), policy=remote.actor)
    return remote
