"""Collectors on Ray: processes of a cluster, which is this machine or several; the loop is the same.

TorchRL's ``RayCollector`` starts them. Who is asked for the next batch, and with which weights, is here: so
no running batch is waited for to be told new weights, and what fails is told with the place where it failed.
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

from hydrl.contrib.ray.cluster import Place, begin, end_of, hear, here, say, stored
from hydrl.errors import DivergedError, RunError, UserError, WorkerError
from hydrl.experience.checked_collector import CheckedCollector
from hydrl.experience.collectors import worker_env
from hydrl.experience.worker_collectors import STARTING, TICK
from hydrl.specs import LAG, needs_episode_starts


class RemoteCollector(CheckedCollector):
    """TorchRL's collector as it runs in an actor of Ray's.

    Args:
        worker_idx: its number, from 0.
        *args, **kwargs: TorchRL's own.
    """

    def __init__(self, *args: Any, worker_idx: int, **kwargs: Any) -> None:
        self.label = f" of collector {worker_idx}"
        hear()
        super().__init__(*args, worker_idx=worker_idx, **kwargs)

    def __bool__(self) -> bool:
        """Asked by Ray where a task failed; by its length, which is infinite, the failure would be lost."""
        return True

    def place(self) -> Place:
        """Where it runs, once it is built."""
        return here()

    def collect(self, weights: TensorDictBase | None) -> TensorDictBase:
        """The next batch, acted by ``weights`` from now on where there are new ones."""
        if weights is not None:
            self.update_policy_weights_(weights)
        return self.next()

    def skip(self, frames: int) -> None:
        """Frames of a run that is resumed: what was acted at random is not acted so again."""
        self._frames = frames


class RayWorkers(RayCollector):
    """TorchRL's collector over Ray, whose actors are told the newest policy as they are asked for a batch.

    Args:
        makers: of the actors' environments.
        policy: the actor with its exploration, as it learns.
        begun: whether Ray was begun for them, and ends with them.
        learner: device of the learner, where batches go.
        each: CPUs and GPUs of each.
        worker_timeout: seconds an actor may take to start, or for one batch.
        stop: called twice a second while the run waits; what it raises ends the wait.
        **options: TorchRL's own.

    Raises:
        WorkerError: here and while iterating, with node and address.
        DivergedError: where a collector met what is no number.
    """

    restart_reason = "they are in processes of their own"
    steps_env = False

    def __init__(
        self,
        makers: Sequence[Callable[[], TransformedEnv]],
        policy: TensorDictModuleBase,
        *,
        begun: bool,
        learner: str,
        each: dict[str, float],
        worker_timeout: float,
        stop: Callable[[], object],
        **options: Any,
    ) -> None:
        self.begun, self.learner, self.worker_timeout, self.stop = begun, learner, worker_timeout, stop
        self.places: dict[int, Place] = {}
        self.version = 0  # times the policy was published
        self.told = [0] * len(makers)  # what each acts by
        self.learned, self.weights = policy, None
        options["device"] = where = "cuda" if each["num_gpus"] else "cpu"
        told = {"auto_register_policy_transforms": needs_episode_starts(policy), "track_traj_ids": False}
        super().__init__(
            [*makers],
            deepcopy(policy).to(where),
            collector_class=RemoteCollector,
            collector_kwargs=told,
            remote_configs=each,
            num_collectors=len(makers),
            weight_sync_schemes={},  # weights go with what is asked
            **options,
        )

    def add_collectors(self, *args: Any) -> None:
        """As TorchRL's, which then waits for them to be there."""
        super().add_collectors(*args)
        starting = {each.place.remote(): number for number, each in enumerate(self.remote_collectors)}
        try:
            self.places = self.answers(starting, len(starting), self.worker_timeout + STARTING)
        except BaseException:
            self.stop_remote_collectors()  # later on Ray would begin anew, to end them
            raise

    def iterator(self) -> Iterator[TensorDictBase]:
        """Batches without end: of all, or of who is done first."""
        running: dict[Any, int] = {}
        while True:
            for number in sorted({*range(self.num_collectors)} - {*running.values()}):
                running[self.asked(number)] = number
            came = self.answers(running, self.num_collectors if self._sync else 1, self.worker_timeout)
            batches = [self.dated(came[number], number) for number in sorted(came)]
            self.collected_frames += sum(each.numel() for each in batches)
            yield torch.stack(batches) if self._sync else batches[0]

    def asked(self, number: int) -> Any:
        """Asks an idle collector for its next batch, and tells it the policy where it has an older one."""
        weights = self.weights if self.told[number] < self.version else None
        self.told[number] = self.version
        return self.remote_collectors[number].collect.remote(weights)

    def dated(self, batch: TensorDictBase, number: int) -> TensorDictBase:
        """A batch with the age of its policy: how often a newer one was published."""
        batch = batch.to(self.learner)
        return batch.set(LAG, torch.full(batch.shape, self.version - self.told[number], device=self.learner))

    def publish(self) -> None:
        """Keeps the weights for whoever is asked next; who is collecting is not waited for."""
        self.version += 1
        with stored():
            self.weights = ray.put(TensorDict.from_module(self.learned).data.to("cpu"))

    def state(self, *, running: bool) -> dict[str, Any]:
        """Counters alone."""
        return {"frames": self.collected_frames}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from :meth:`state`."""
        self.collected_frames = state["frames"]
        for each in self.remote_collectors:
            each.skip.remote(self.collected_frames)

    def answers(self, running: dict[Any, int], count: int, seconds: float) -> dict[int, Any]:
        """Waits for ``count`` of those who are ``running``; what each answered by its number."""
        came, since = dict[int, Any](), time.monotonic()
        while len(came) < count:
            ready, _ = ray.wait([*running], timeout=TICK)
            self.stop()  # a signal to the whole process group ends collectors too
            for each in ready:
                number = running.pop(each)
                came[number] = self.answer(number, each)
            if not ready and time.monotonic() - since > seconds:
                silent = ", ".join(self.name(number) for number in running.values())
                limit = f"collector.worker_timeout={self.worker_timeout:g}"
                raise WorkerError(f"took longer than {limit} seconds to start or for a batch: {silent}")
        return came

    def answer(self, number: int, reference: Any) -> Any:
        """What a collector answered, or why it did not."""
        try:
            return ray.get(reference)
        except RayError as error:
            raise self.why(number, error) from None

    def why(self, number: int, error: RayError) -> RunError:
        """What ended a collector: its own failure, with where it was, its process or its node."""
        if isinstance(error, RayTaskError) and isinstance(error.cause, DivergedError):
            return DivergedError(error.cause.terms)
        place = self.places.get(number)
        lost = [str(each) for each, where in self.places.items() if place and where.node == place.node]
        return WorkerError(end_of(self.name(number), place, error, f"collector {', '.join(lost)}"))

    def name(self, number: int) -> str:
        """What a message calls a collector."""
        place = self.places.get(number)
        return f"collector {number} ({place})" if place else f"collector {number}"

    def shutdown(self, timeout: float | None = None, shutdown_ray: bool = False) -> None:
        """Ends the actors, and Ray where it was begun for them."""
        super().shutdown(timeout, shutdown_ray=self.begun or shutdown_ray)


def ray_collector(
    env: TransformedEnv,
    make_env: Callable[..., TransformedEnv],
    policy: TensorDictModuleBase,
    *,
    frames_per_batch: int,
    init_random_frames: int,
    num_envs: int,
    num_collectors: int,
    sync: bool,
    address: str | None,
    num_cpus: float,
    num_gpus: float,
    worker_timeout: float,
    seed: int,
    device: str,
    stop: Callable[[], object] | None = None,
) -> RayWorkers:
    """Collects in processes of a Ray cluster, each seeded as a worker of this machine is.

    Args as of :func:`~hydrl.experience.collectors.make_collector`, and:

    Args:
        num_collectors: processes, with ``num_envs`` environments each.
        sync: whether they wait for each other, and a batch joins what all collected; else it comes from one.
        address: ``HOST:PORT`` of a cluster, or ``auto``, which looks for one here; ``None`` starts one.
        num_cpus: of each collector, by which Ray finds it a node; it may be a fraction.
        num_gpus: the same; with none, policy and environment are on the CPU, wherever the learner is.

    Raises:
        UserError: where there is no such cluster, or it has less than is asked for.
    """
    env.close(raise_if_closed=False)
    make_env = elsewhere(make_env, "cuda" if num_gpus else "cpu")
    makers = [partial(worker_env, make_env, seed + 10_000 * (1 + each)) for each in range(num_collectors)]
    each = {"num_cpus": num_cpus, "num_gpus": num_gpus}
    given: dict[str, Any] = {"worker_timeout": worker_timeout, "stop": stop or int, "sync": sync}
    given |= {"frames_per_batch": frames_per_batch, "init_random_frames": init_random_frames or -1}
    with on_ray(address, each, num_collectors) as begun:
        return RayWorkers(makers, policy, begun=begun, learner=device, each=each, **given)


@contextmanager
def on_ray(address: str | None, each: Mapping[str, float], count: int) -> Iterator[bool]:
    """Whether Ray is begun for the block, in which ``count`` collectors start; it ends where that fails."""
    needed = {name.removeprefix("num_").upper().removesuffix("S"): count * n for name, n in each.items()}
    begun = not ray.is_initialized()
    try:
        if begun:
            begin("collector.address", address, needed | {"CPU": needed["CPU"] + 1})  # and an evaluation
        check_resources(needed)
        say(f"{count} collectors start, half a minute before the first batch")
        with stored():
            yield begun
    except BaseException:
        if begun:
            ray.shutdown()
        raise


def elsewhere(make_env: Callable[..., TransformedEnv], device: str) -> Callable[..., TransformedEnv]:
    """``make_env`` for another device, with its statistics: a machine may have none of this one's."""
    if not isinstance(make_env, partial):
        return make_env
    given = tree_map_only(torch.Tensor, lambda each: each.to(device), make_env.keywords)
    return partial(make_env.func, *make_env.args, **given | ({"device": device} if "device" in given else {}))


def check_resources(needed: Mapping[str, float]) -> None:
    """A cluster that lacks what is asked for would be waited for in vain.

    Raises:
        UserError: naming it.
    """
    there = ray.cluster_resources()
    for kind, count in needed.items():
        if count > there.get(kind, 0):
            raise UserError(
                f"collector.num_collectors of collector.num_{kind.lower()}s need {count:g} {kind}s together, "
                f"and the cluster has {there.get(kind, 0):g}; use fewer, or less of it for each"
            )
