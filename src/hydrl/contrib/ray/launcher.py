"""Runs of train.py on the machines of a Ray cluster, which share folders with this one."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import ray
from pydantic import PositiveInt, ValidationError
from ray.exceptions import RayError

from hydrl.config.schema import Strict
from hydrl.config.suggestions import explain
from hydrl.contrib.ray.cluster import is_node_gone, join_cluster, say, unblock_signals
from hydrl.errors import UserError
from hydrl.experiments.processes import ProcessPool, TrainingProcess
from hydrl.limits import ClusterAddress, NonNegativeFloat, PositiveFloat

KILLED = -15  # as if by SIGTERM, where a run is ended before its machine has room for it


class LauncherOptions(Strict):
    """The options of ``hydra/launcher=ray_processes``.

    Attributes:
        n_jobs: members at a time; ``None``: as many as there is room for.
        address: ``HOST:PORT`` of a cluster, or ``auto``, which looks for one here; ``None`` starts one.
        num_cpus, num_gpus: of each member, by which Ray places it.
    """

    n_jobs: PositiveInt | None
    address: ClusterAddress | None
    num_cpus: PositiveFloat
    num_gpus: NonNegativeFloat


class Member:
    """A Ray actor with one run of a sweep, on a machine with room for it.

    Args:
        arguments, folder, cores: as of :class:`~hydrl.experiments.processes.TrainingProcess`.
        location: the working directory, and ``PYTHONPATH`` with the user's own modules.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, cores: int, location: tuple[str, str]) -> None:
        os.chdir(location[0])
        os.environ["PYTHONPATH"] = location[1]
        unblock_signals()
        self.run = TrainingProcess(arguments, folder, cores)

    def place(self) -> tuple[str, str]:
        """Node and address, once it has started."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def wait(self) -> int:
        """Waits until the run has ended; its exit code."""
        return self.run.process.wait()

    def stop(self) -> None:
        """Lets the run save and end."""
        self.run.stop()


class RemoteTraining(TrainingProcess):
    """A run in a :class:`Member`.

    Args:
        begin: the member's own ``remote``.
        arguments, folder, cores: as of :class:`~hydrl.experiments.processes.TrainingProcess`.
    """

    def __init__(self, begin: Any, arguments: Sequence[str], folder: Path, cores: int) -> None:
        self.folder, self.log = folder, folder.with_name(f"{folder.name}.log")
        self.stopped, self.lost = False, ""
        self.member = begin(arguments, folder, cores, (os.getcwd(), os.environ.get("PYTHONPATH", "")))
        # Futures, because Ray would ignore an exception of a signal handler while it waits itself.
        self.begun, self.ended = self.member.place.remote().future(), self.member.wait.remote().future()
        self.exit_code: int | None = None

    @property
    def code(self) -> int | None:
        """The exit code once it has ended, 1 where its machine is lost."""
        if self.exit_code is None and self.ended.done():
            self.wait()
        return self.exit_code

    @property
    def error(self) -> str:
        """Why it failed."""
        return self.lost or super().error

    def wait(self) -> None:
        """Waits until it has ended."""
        try:
            self.exit_code = self.ended.result()
            ray.kill(self.member)  # which occupies its CPUs until then
        except RayError as error:
            self.exit_code, self.lost = (KILLED, "") if self.stopped else (1, self.explain(error))

    def explain(self, error: RayError) -> str:
        """Why a run is lost."""
        if not self.begun.done() or self.begun.exception():
            return str(error).strip().splitlines()[-1]
        node, address = self.begun.result()
        if is_node_gone(node):
            return f"node {node[:8]} at {address} is gone"
        return f"Ray's process on node {node[:8]} at {address} ended"

    def stop(self) -> None:
        """Lets the run save and end; one that waits for room never starts."""
        if self.code is None and not self.stopped:
            self.stopped = True
            if self.begun.done():
                self.member.stop.remote()
            else:
                ray.kill(self.member)


class RayPool(ProcessPool):
    """Runs side by side on a cluster; see :class:`~hydrl.experiments.processes.ProcessPool`.

    Args:
        limit: at a time.
        resources: CPUs and GPUs of each.
    """

    def __init__(self, limit: int, resources: Mapping[str, float]) -> None:
        super().__init__(limit)
        self.cores = max(1, int(resources["num_cpus"]))
        # Two calls at a time: it is stopped while another waits.
        self.begin = ray.remote(max_concurrency=2, **resources)(Member).remote

    def start(self, arguments: Sequence[str], folder: Path, shown: bool = False) -> TrainingProcess:
        """Starts a run, whose output goes to ``FOLDER.log``."""
        self.started.append(RemoteTraining(self.begin, arguments, folder.resolve(), self.cores))
        return self.started[-1]


def connect(options: Mapping[str, Any]) -> AbstractContextManager[RayPool]:
    """Runs on a cluster, which ends with the block if it was started for it.

    Args:
        options: of ``hydra.launcher``, see :class:`LauncherOptions`.

    Raises:
        UserError: for a wrong one.
    """
    try:
        checked = LauncherOptions.model_validate(options)
    except ValidationError as error:
        raise explain(error, {"hydra": {"launcher": options}}, "hydra.launcher") from None
    return connected_pool(checked)


@contextmanager
def connected_pool(options: LauncherOptions) -> Iterator[RayPool]:
    """The block of :func:`connect`, which starts or joins the cluster.

    Raises:
        UserError: where there is no such cluster, or no machine of it has room for a run.
    """
    resources = {"num_cpus": options.num_cpus, "num_gpus": options.num_gpus}
    jobs = options.n_jobs
    needed = jobs and {"CPU": jobs * options.num_cpus, "GPU": jobs * options.num_gpus}
    join_cluster("hydra.launcher.address", options.address, needed or None)
    try:
        room = sum(count_fits(node["Resources"], resources) for node in ray.nodes() if node["Alive"])
        if not room:
            needs = ", ".join(
                f"hydra.launcher.{name}={number:g}" for name, number in resources.items() if number
            )
            raise UserError(f"{needs}: more than any machine of the cluster has.")
        say(f"the cluster has room for {room} runs at a time")
        yield RayPool(min(jobs or room, room), resources)
    finally:
        ray.shutdown()


def count_fits(available: Mapping[str, float], resources: Mapping[str, float]) -> int:
    """How many members fit on a machine."""
    needed = {name.removeprefix("num_").upper().removesuffix("S"): count for name, count in resources.items()}
    return int(min(available.get(kind, 0) // count for kind, count in needed.items() if count))
