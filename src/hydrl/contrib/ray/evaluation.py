"""Evaluations beside training, on a machine of a Ray cluster."""

import time
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any

import ray
import torch
from ray.exceptions import RayError
from torch.utils._pytree import tree_map_only

from hydrl.contrib.ray.cluster import TICK, Place, begin, end_of, hear, here, say, stored
from hydrl.contrib.ray.collector import elsewhere
from hydrl.errors import UserError, WorkerError
from hydrl.run.eval_process import played, prepare, to_send
from hydrl.training.evaluator import Evaluation, PolicyEvaluator

STARTING = 120.0  # seconds in which it has a CPU and has started
ACCELERATORS = ("torch_cuda", "torch_xpu", "torch_mps")  # random numbers of the learner's accelerator


class Player:
    """An actor of Ray's, which plays what it is asked for.

    Args:
        evaluate: with everything on the CPU.
        threads: of PyTorch.
    """

    def __init__(self, evaluate: PolicyEvaluator, threads: int) -> None:
        hear()
        prepare(threads)
        self.evaluate = evaluate

    def place(self) -> Place:
        """Where it runs."""
        return here()

    def play(self, moment: dict[str, Any]) -> Evaluation | str:
        """See :func:`hydrl.run.eval_process.played`."""
        return played(self.evaluate, moment)


class OnRay:
    """A process of a Ray cluster, with a CPU; see :class:`hydrl.run.eval_process.Beside`.

    Args:
        evaluate: that process has an evaluator like this one.
        address: of the cluster, where this run is on none: ``HOST:PORT``, ``auto``, or ``None`` starts one.
        stop: called twice a second while it starts, and where it ends; what it raises ends the wait.

    Raises:
        UserError: where there is no such cluster, or no CPU of it for an evaluation.
        WorkerError: where the process ends.
    """

    def __init__(self, evaluate: PolicyEvaluator, address: str | None, *, stop: Callable[[], object]) -> None:
        self.stop, self.begun = stop, not ray.is_initialized()
        self.actor: Any = None
        self.where: Place | None = None
        if self.begun:
            begin("eval.address", address, {"CPU": 1, "GPU": 0})
        say("a process starts that evaluates")
        made = ray.remote(num_cpus=1)(Player)
        try:
            with stored():
                self.actor = made.remote(on_the_cpu(evaluate), torch.get_num_threads())
            self.answer = self.actor.place.remote()
            self.where = self.started()
        except BaseException:
            self.close()
            raise

    def started(self) -> Place:
        """Where it runs, once it does."""
        since = time.monotonic()
        while not self.poll(TICK):
            self.stop()
            if time.monotonic() - since > STARTING:
                raise UserError(
                    f"eval.mode=ray: of {ray.cluster_resources()['CPU']:g} CPUs of the cluster none took it "
                    f"in {STARTING:g} seconds; use fewer collectors, or less of collector.num_cpus for each"
                )
        place: Place = self.taken()
        return place

    def send(self, moment: dict[str, Any]) -> None:
        """Has an evaluation played."""
        moment = moment | {
            "rng": {name: each for name, each in moment["rng"].items() if name not in ACCELERATORS}
        }
        with stored():
            self.answer = self.actor.play.remote(tree_map_only(torch.Tensor, lambda each: each.cpu(), moment))

    def poll(self, seconds: float = 0.0) -> bool:
        """Waits so long until the evaluation is over, or what plays it is lost; whether it is."""
        return bool(ray.wait([self.answer], timeout=seconds)[0])

    def receive(self) -> Evaluation | str:
        """The evaluation, or why there is none."""
        came: Evaluation | str = self.taken()
        return came

    def taken(self) -> Any:
        """What it has answered."""
        try:
            return ray.get(self.answer)
        except RayError as error:
            self.stop()  # a signal to the whole process group ends this, too
            what = "the process that evaluates" + (f" ({self.where})" if self.where else "")
            raise WorkerError(end_of(what, self.where, error, "the evaluation")) from None

    def close(self) -> None:
        """Ends the process, whatever it is at, and Ray where it was begun for it."""
        if self.actor is not None:
            ray.kill(self.actor)
        if self.begun:
            ray.shutdown()


def on_the_cpu(evaluate: PolicyEvaluator) -> PolicyEvaluator:
    """One for a machine that may have none of this one's accelerators."""
    there = to_send(evaluate)
    there.actor = deepcopy(evaluate.actor).cpu()
    there.make_env = partial(elsewhere(evaluate.make_env, "cpu"), policy=there.actor)
    there.envs, there.last = {}, None
    return there
