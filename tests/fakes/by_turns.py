"""A collecting process's server in the test's own process, which takes turns with the learner."""

import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torchrl.checkpoint import GlobalRNGState
from torchrl.data.utils import CloudpickleWrapper

from hydrl.experience.pipelined import CollectorServer, Failure, attempt, to_bytes, to_error


class ByTurns:
    """In the place of :class:`hydrl.experience.pipelined.CollectorProcess`, with generators of its own."""

    name = "the server"

    def __init__(self, worker_timeout: float, *args: Any) -> None:
        self.rng = GlobalRNGState().state_dict()
        with self.own_generators():
            self.server = CollectorServer(*pickle.loads(pickle.dumps(CloudpickleWrapper(args))).fn)

    @contextmanager
    def own_generators(self) -> Iterator[None]:
        rng = GlobalRNGState().state_dict()
        GlobalRNGState().load_state_dict(self.rng)
        try:
            yield
        finally:
            self.rng = GlobalRNGState().state_dict()
            GlobalRNGState().load_state_dict(rng)

    def send(self, method: str, *args: Any) -> None:
        arguments = pickle.loads(to_bytes(args))
        with self.own_generators():
            self.answer = to_bytes(attempt(getattr(self.server, method), *arguments))

    def poll(self, seconds: float) -> bool:
        return True

    def receive(self) -> Any:
        answer = pickle.loads(self.answer)
        if isinstance(answer, Failure):
            raise to_error(answer, self.name)
        return answer

    def close(self) -> None:
        self.server.collector.shutdown()
