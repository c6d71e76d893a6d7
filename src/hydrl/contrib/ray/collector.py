"""Collectors on a Ray cluster of one machine or several; the training loop is the same.

TorchRL's ``RayCollector`` starts the actors. This module decides which actor collects next and with which
weights: new weights never wait for a running batch, and errors name the node where they happened.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import ray
import torch
from ray.exceptions import RayError, RayTaskError
from tensordict import TensorDict, TensorDictBase
from tensordict.nn import TensorDictModuleBase
from torch.utils._pytree import tree_map_only
from torchrl.collectors.distributed import RayCollector
from torchrl.envs import TransformedEnv

from hydrl.contrib.ray.cluster import (
    ProcessLocation,
    current_location,
    explain_end,
    join_cluster,
    report_full_store,
    say,
    unblock_signals,
)
from hydrl.errors import DivergedError, RunError, UserError, WorkerError
from hydrl.experience.checked_collector import CheckedCollector
from hydrl.experience.collectors import worker_env
from hydrl.experience.worker_collectors import STARTING, TICK
from hydrl.limits import ClusterAddress, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt
from hydrl.specs import LAG, needs_episode_starts


class RemoteCollector(CheckedCollector):
    """TorchRL's collector inside a Ray actor.

    Args:
        worker_idx: its number, from 0.
        *args, **kwargs: TorchRL's own.
    """

    def __init__(self, *args: Any, worker_idx: int, **kwargs: Any) -> None:
        self.label = f" of collector {worker_idx}"
        unblock_signals()
        super().__init__(*args, worker_idx=worker_idx, **kwargs)

    def __bool__(self) -> bool:
        """Ray evaluates this where a task failed; the length is infinite and would hide the failure."""
        return True

    def location(self) -> ProcessLocation:
        """Where it runs, once it is built."""
        return current_location()

    def collect(self, weights: TensorDictBase | None) -> TensorDictBase:
        """Collects the next batch, with new ``weights`` if there are any."""
        if weights is not None:
            self.update_policy_weights_(weights)
        return self.next()

    def skip(self, frames: int) -> None:
        """Sets the frames of a resumed run, so that random actions at the start are not repeated."""
        self._frames = frames


class RayWorkers(RayCollector):
    """TorchRL's Ray collector, whose actors get the newest policy with each request for a batch.

    Args:
        makers: of the actors' environments.
        policy: the actor with its exploration, as it learns.
        owns_cluster: whether Ray was started for them, and ends with them.
        learner: device of the learner, where batches go.
        resources: CPUs and GPUs of each actor.
        worker_timeout: seconds an actor may take to start, or for one batch.
        stop: called twice a second while the run waits; what it raises ends the wait.
        **options: TorchRL's own.

    Raises:
        WorkerError: here and while iterating, with node and address.
        DivergedError: where a collector met NaN or infinity.
    """

    episode_restart_reason = "they are in processes of their own"
    steps_env = False

    def __init__(
        self,
        makers: Sequence[Callable[[], TransformedEnv]],
        policy: TensorDictModuleBase,
        *,
        owns_cluster: bool,
        learner: str,
        resources: dict[str, float],
        worker_timeout: float,
        stop: Callable[[], object],
        **options: Any,
    ) -> None:
        self.owns_cluster, self.learner = owns_cluster, learner
        self.worker_timeout, self.check_stop = worker_timeout, stop
        self.locations: dict[int, ProcessLocation] = {}
        self.version = 0  # times the policy was published
        self.versions = [0] * len(makers)  # of the policy that each actor acts by
        self.learned, self.weights = policy, None
        options["device"] = where = "cuda" if resources["num_gpus"] else "cpu"
        collector_options = {
            "auto_register_policy_transforms": needs_episode_starts(policy),
            "track_traj_ids": False,
        }
        super().__init__(
            [*makers],
            deepcopy(policy).to(where),
            collector_class=RemoteCollector,
            collector_kwargs=collector_options,
            remote_configs=resources,
            num_collectors=len(makers),
            weight_sync_schemes={},  # weights go with each request
            **options,
        )

    def add_collectors(self, *args: Any) -> None:
        """As TorchRL's, but waits until all actors have started."""
        super().add_collectors(*args)
        starting = {actor.location.remote(): number for number, actor in enumerate(self.remote_collectors)}
        try:
            self.locations = self.get_results(starting, len(starting), self.worker_timeout + STARTING)
        except BaseException:
            self.stop_remote_collectors()  # later Ray would start again to end them
            raise

    def iterator(self) -> Iterator[TensorDictBase]:
        """Endless batches: of all actors, or of the one that is ready first."""
        running: dict[Any, int] = {}
        while True:
            for number in sorted({*range(self.num_collectors)} - {*running.values()}):
                running[self.request(number)] = number
            results = self.get_results(running, self.num_collectors if self._sync else 1, self.worker_timeout)
            batches = [self.with_lag(results[number], number) for number in sorted(results)]
            self.collected_frames += sum(batch.numel() for batch in batches)
            yield torch.stack(batches) if self._sync else batches[0]

    def request(self, number: int) -> Any:
        """Requests the next batch of an idle collector, with the policy if it has an older one."""
        weights = self.weights if self.versions[number] < self.version else None
        self.versions[number] = self.version
        return self.remote_collectors[number].collect.remote(weights)

    def with_lag(self, batch: TensorDictBase, number: int) -> TensorDictBase:
        """Adds the age of the policy to a batch: how often a newer one was published."""
        batch = batch.to(self.learner)
        return batch.set(
            LAG, torch.full(batch.shape, self.version - self.versions[number], device=self.learner)
        )

    def publish(self) -> None:
        """Stores the weights for the next requests; does not wait for running batches."""
        self.version += 1
        with report_full_store():
            self.weights = ray.put(TensorDict.from_module(self.learned).data.to("cpu"))

    def state(self, *, running: bool) -> dict[str, Any]:
        """The counter alone."""
        return {"frames": self.collected_frames}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state`."""
        self.collected_frames = state["frames"]
        for actor in self.remote_collectors:
            actor.skip.remote(self.collected_frames)

    def get_results(self, running: dict[Any, int], count: int, seconds: float) -> dict[int, Any]:
        """Waits for ``count`` of the ``running`` calls; the results by the number of the collector."""
        results, since = dict[int, Any](), time.monotonic()
        while len(results) < count:
            ready, _ = ray.wait([*running], timeout=TICK)
            self.check_stop()  # a signal to the whole process group ends collectors too
            for reference in ready:
                number = running.pop(reference)
                results[number] = self.get_result(number, reference)
            if not ready and time.monotonic() - since > seconds:
                silent = ", ".join(self.name(number) for number in running.values())
                limit = f"collector.worker_timeout={self.worker_timeout:g}"
                raise WorkerError(f"took longer than {limit} seconds to start or for a batch: {silent}")
        return results

    def get_result(self, number: int, reference: Any) -> Any:
        """The result of a collector's call.

        Raises:
            RunError: saying why there is none.
        """
        try:
            return ray.get(reference)
        except RayError as error:
            raise self.explain(number, error) from None

    def explain(self, number: int, error: RayError) -> RunError:
        """The error that says why a collector ended: its own failure, its process or its node."""
        if isinstance(error, RayTaskError) and isinstance(error.cause, DivergedError):
            return DivergedError(error.cause.terms)
        location = self.locations.get(number)
        lost = [str(other) for other, at in self.locations.items() if location and at.node == location.node]
        return WorkerError(explain_end(self.name(number), location, error, f"collector {', '.join(lost)}"))

    def name(self, number: int) -> str:
        """The name of a collector in messages."""
        location = self.locations.get(number)
        return f"collector {number} ({location})" if location else f"collector {number}"

    def shutdown(self, timeout: float | None = None, shutdown_ray: bool = False) -> None:
        """Ends the actors, and Ray if it was started for them."""
        super().shutdown(timeout, shutdown_ray=self.owns_cluster or shutdown_ray)


def ray_collector(
    env: TransformedEnv,
    make_env: Callable[..., TransformedEnv],
    policy: TensorDictModuleBase,
    *,
    frames_per_batch: PositiveInt,
    init_random_frames: NonNegativeInt,
    num_envs: PositiveInt,
    num_collectors: PositiveInt,
    sync: bool,
    address: ClusterAddress | None,
    num_cpus: NonNegativeFloat,
    num_gpus: NonNegativeFloat,
    worker_timeout: PositiveFloat,
    seed: int,
    device: str,
    stop: Callable[[], object] | None = None,
) -> RayWorkers:
    """Collects in processes of a Ray cluster, seeded like worker processes of this machine.

    Args as of :func:`~hydrl.experience.collectors.make_collector`, and:

    Args:
        num_collectors: processes, with ``num_envs`` environments each.
        sync: whether they wait for each other, and a batch joins what all collected; else it comes from one.
        address: ``HOST:PORT`` of a cluster, or ``auto``, which looks for one here; ``None`` starts one.
        num_cpus: of each collector, by which Ray places it; may be a fraction.
        num_gpus: the same; with 0, policy and environment are on the CPU, wherever the learner is.

    Raises:
        UserError: where there is no such cluster, or it has too few resources.
    """
    env.close(raise_if_closed=False)
    make_env = for_device(make_env, "cuda" if num_gpus else "cpu")
    makers = [partial(worker_env, make_env, seed + 10_000 * (1 + worker)) for worker in range(num_collectors)]
    resources = {"num_cpus": num_cpus, "num_gpus": num_gpus}
    options: dict[str, Any] = {"worker_timeout": worker_timeout, "stop": stop or int, "sync": sync}
    options |= {"frames_per_batch": frames_per_batch, "init_random_frames": init_random_frames or -1}
    with on_ray(address, resources, num_collectors) as owns_cluster:
        return RayWorkers(
            makers, policy, owns_cluster=owns_cluster, learner=device, resources=resources, **options
        )


@contextmanager
def on_ray(address: str | None, resources: Mapping[str, float], count: int) -> Iterator[bool]:
    """Starts or joins Ray for ``count`` collectors; yields whether it was started, and ends it on errors."""
    needed = {name.removeprefix("num_").upper().removesuffix("S"): count * n for name, n in resources.items()}
    owns_cluster = not ray.is_initialized()
    try:
        if owns_cluster:
            join_cluster(
                "collector.address", address, needed | {"CPU": needed["CPU"] + 1}
            )  # and an evaluation
        check_resources(needed)
        say(f"starting {count} collectors; the first batch comes in about half a minute")
        with report_full_store():
            yield owns_cluster
    except BaseException:
        if owns_cluster:
            ray.shutdown()
        raise


def for_device(make_env: Callable[..., TransformedEnv], device: str) -> Callable[..., TransformedEnv]:
    """``make_env`` with its statistics on another device; a remote machine may lack this one's."""
    if not isinstance(make_env, partial):
        return make_env
    keywords = tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), make_env.keywords)
    if "device" in keywords:
        keywords["device"] = device
    return partial(make_env.func, *make_env.args, **keywords)


def check_resources(needed: Mapping[str, float]) -> None:
    """Checks that a cluster has the resources, for which Ray would wait forever.

    Raises:
        UserError: naming what is missing.
    """
    available = ray.cluster_resources()
    for kind, count in needed.items():
        if count > available.get(kind, 0):
            raise UserError(
                f"collector.num_collectors, collector.num_{kind.lower()}s: {count:g} {kind}s in all, and the "
                f"cluster has {available.get(kind, 0):g}. Use fewer collectors, or fewer {kind}s for each."
            )
