"""Runs of train.py on the machines of a Ray cluster, which see the same folders as this one."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import ray
from pydantic import PositiveInt, ValidationError
from ray.exceptions import RayError

from hydrl.config.ranges import ClusterAddress, NotNegative, Positive
from hydrl.config.schema import Strict
from hydrl.config.suggestions import explain
from hydrl.contrib.ray.cluster import begin, gone, hear, say
from hydrl.errors import UserError
from hydrl.experiments.processes import ProcessPool, TrainingProcess

KILLED = -15  # as if by SIGTERM, where a run is ended before its machine has room for it


class Asked(Strict):
    """What ``hydra/launcher=ray_processes`` may say.

    Attributes:
        n_jobs: members at a time; ``None``: as many as there is room for.
        address: ``HOST:PORT`` of a cluster, or ``auto``, which looks for one here; ``None`` starts one.
        num_cpus, num_gpus: of each member, by which Ray finds it a machine.
    """

    n_jobs: PositiveInt | None
    address: ClusterAddress | None
    num_cpus: Positive
    num_gpus: NotNegative


class Member:
    """An actor of Ray's: a run on the machine where there was room for it.

    Args:
        arguments, folder, cores: as of :class:`~hydrl.experiments.processes.TrainingProcess`.
        place: the working directory, and where Python looks for parts of one's own.
    """

    def __init__(self, arguments: Sequence[str], folder: Path, cores: int, place: tuple[str, str]) -> None:
        os.chdir(place[0])
        os.environ["PYTHONPATH"] = place[1]
        hear()
        self.run = TrainingProcess(arguments, folder, cores)

    def place(self) -> tuple[str, str]:
        """Node and address, once it is there."""
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address()

    def wait(self) -> int:
        """The exit code, when it has ended."""
        return self.run.process.wait()

    def stop(self) -> None:
        """Lets it save and end."""
        self.run.stop()


class RemoteTraining(TrainingProcess):
    """A run that a :class:`Member` has.

    Args:
        begin: the member's own ``remote``.
        arguments, folder, cores: as of :class:`~hydrl.experiments.processes.TrainingProcess`.
    """

    def __init__(self, begin: Any, arguments: Sequence[str], folder: Path, cores: int) -> None:
        self.folder, self.log = folder, folder.with_name(f"{folder.name}.log")
        self.stopped, self.lost = False, ""
        self.member = begin(arguments, folder, cores, (os.getcwd(), os.environ.get("PYTHONPATH", "")))
        # Futures, as a signal's handler that raises while Ray itself waits would be passed over.
        self.begun, self.ended = self.member.place.remote().future(), self.member.wait.remote().future()
        self.found: int | None = None

    @property
    def code(self) -> int | None:
        """The exit code once it has ended, 1 where its machine is lost."""
        if self.found is None and self.ended.done():
            self.wait()
        return self.found

    @property
    def error(self) -> str:
        """Why it failed."""
        return self.lost or super().error

    def wait(self) -> None:
        """Waits until it has ended."""
        try:
            self.found = self.ended.result()
            ray.kill(self.member)  # which keeps its place for as long as it is there
        except RayError as error:
            self.found, self.lost = (KILLED, "") if self.stopped else (1, self.why(error))

    def why(self, error: RayError) -> str:
        """What a run is lost with."""
        if not self.begun.done() or self.begun.exception():
            return str(error).strip().splitlines()[-1]
        node, address = self.begun.result()
        if gone(node):
            return f"node {node[:8]} at {address} is gone"
        return f"Ray's process on node {node[:8]} at {address} ended"

    def stop(self) -> None:
        """Lets it save and end; one that waits for room never begins."""
        if self.code is None and not self.stopped:
            self.stopped = True
            if self.begun.done():
                self.member.stop.remote()
            else:
                ray.kill(self.member)


class Remote(ProcessPool):
    """Runs side by side on a cluster; see :class:`~hydrl.experiments.processes.ProcessPool`.

    Args:
        limit: so many at a time.
        each: CPUs and GPUs of each.
    """

    def __init__(self, limit: int, each: Mapping[str, float]) -> None:
        super().__init__(limit)
        self.cores = max(1, int(each["num_cpus"]))
        self.begin = ray.remote(max_concurrency=2, **each)(Member).remote  # stopped while it is waited for

    def start(self, arguments: Sequence[str], folder: Path, shown: bool = False) -> TrainingProcess:
        """Starts a run, whose output goes to ``FOLDER.log``."""
        self.started.append(RemoteTraining(self.begin, arguments, folder.resolve(), self.cores))
        return self.started[-1]


def joined(given: Mapping[str, Any]) -> AbstractContextManager[Remote]:
    """Runs on a cluster, which ends with the block where it was started for it.

    Args:
        given: what ``hydra.launcher`` says, see :class:`Asked`.

    Raises:
        UserError: where that does not fit.
    """
    try:
        asked = Asked.model_validate(given)
    except ValidationError as error:
        raise UserError(explain(error, {"hydra": {"launcher": given}}, "hydra.launcher")) from None
    return on_cluster(asked)


@contextmanager
def on_cluster(asked: Asked) -> Iterator[Remote]:
    """The block of :func:`joined`, which starts or joins the cluster.

    Raises:
        UserError: where there is no such cluster, or no machine of it has room for a run.
    """
    each = {"num_cpus": asked.num_cpus, "num_gpus": asked.num_gpus}
    needed = asked.n_jobs and {"CPU": asked.n_jobs * asked.num_cpus, "GPU": asked.n_jobs * asked.num_gpus}
    begin("hydra.launcher.address", asked.address, needed or None)
    try:
        room = sum(fits(node["Resources"], each) for node in ray.nodes() if node["Alive"])
        if not room:
            needs = ", ".join(f"hydra.launcher.{name}={number:g}" for name, number in each.items() if number)
            raise UserError(f"{needs}: no machine of the cluster has as much")
        say(f"the cluster has room for {room} members at a time")
        yield Remote(min(asked.n_jobs or room, room), each)
    finally:
        ray.shutdown()


def fits(there: Mapping[str, float], each: Mapping[str, float]) -> int:
    """How many find room on a machine."""
    asked = {name.removeprefix("num_").upper().removesuffix("S"): number for name, number in each.items()}
    return int(min(there.get(kind, 0) // number for kind, number in asked.items() if number))
