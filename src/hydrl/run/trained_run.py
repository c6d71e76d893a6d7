"""What acting, recording and exporting need to know of a run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TrainedRun:
    """A run whose policy was loaded.

    Attributes:
        algo: name of its algorithm.
        task: name of its environment, as in folder names.
        seed: its seed.
        env: keys of its environment.
        shown: its configuration as it is saved, with references such as ``${oc.env:NAME}`` unresolved.
        build: the configured builder of a component, by the component's name.
        transform_builders: builders of its transforms.
    """

    algo: str
    task: str
    seed: int
    env: dict[str, Any]
    shown: Mapping[str, Any]
    build: Callable[[str], Callable[..., Any]]
    transform_builders: Sequence[Callable[..., Any]]
