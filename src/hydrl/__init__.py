"""hydrl: Hydra configs choose the components, TorchRL does the reinforcement learning."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from hydrl.openmp import limit_spinning

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from hydrl.api.runs import Run
    from hydrl.deploy.policy import Policy

__version__ = "0.1.0"

limit_spinning()  # before anything of hydrl imports PyTorch


def load(
    run: str | Path, checkpoint: str | int = "best", *, device: str = "cpu", trust: bool = False
) -> Policy:
    """Loads a run's policy to act with: ``hydrl.load(run).predict(observation)``.

    The random generators of the process stay as they are.

    Args:
        run: folder of a finished or stopped run, such as ``outputs/…``.
        checkpoint: ``best`` by evaluation, ``last``, or a number of frames. Without any evaluation ``best``
            is the last one, with a warning.
        device: where the policy acts: ``cpu``, ``cuda``, ``cuda:1``, ``auto``.
        trust: ``True`` also rebuilds environments and components of your own, which runs their code.

    Returns:
        The policy, with ``predict``, ``act``, ``reset``, ``env`` and ``export``.

    Raises:
        UserError: if the folder is not a run, the checkpoint is missing or damaged, the environment cannot
            be built, or the device does not exist. It is a ``ValueError`` with a one-line message.
    """
    import hydrl.api  # noqa: F401  # keeps a notebook free of Ray's warnings
    from hydrl.deploy.policy import open_policy  # brings PyTorch, which `import hydrl` does without

    return open_policy(run, checkpoint, device, trust)


def train(*words: str, folder: str | Path | None = None, **keys: Any) -> Run:
    """Trains in this process, as ``python train.py``: ``hydrl.train("algo=ppo", env="cartpole", seed=1)``.

    Afterwards the random generators, threads and environment variables of the process are as before. In the
    main thread, Ctrl-C or a notebook's stop button ends the run after the current batch; the run is saved and
    returned. In another thread, :func:`stop` does that.

    Args:
        *words: overrides as on the command line, such as ``"algo=ppo"`` or ``"optim.lr=1e-3"``.
        folder: the run's folder; default: a new one in ``outputs/``.
        **keys: overrides as keywords, after ``words``: ``seed=1``, ``eval={"episodes": 50}``. A class or
            function of your own replaces an option: ``env=MyEnv`` (Gymnasium or TorchRL), ``actor=make``.

    Returns:
        The run, with ``summary``, ``metrics``, ``policy()``, ``evaluate()``, ``record_video()`` and
        ``resume()``.

    Raises:
        UserError: for a wrong key, value or combination. It is a ``ValueError`` with a one-line message.
        RunError: if the run diverged, or its files could not be written.
        KeyboardInterrupt: if it was stopped before its first batch.
    """
    began = time.monotonic()  # before PyTorch is imported, which the run's seconds hold
    from hydrl.api import runs as api

    return api.train(*words, folder=folder, began=began, **keys)


def stop() -> bool:
    """Asks the run in another thread to end after the current batch; returns whether there is one."""
    from hydrl.api.training import TRAINING

    return TRAINING.stop()


def runs(folder: str | Path, *, trust: bool = False) -> list[Run]:
    """Finds the finished runs in a folder, at any depth, sorted by path.

    Args:
        folder: the folder, such as ``outputs``.
        trust: see :func:`load`.

    Returns:
        The runs.

    Raises:
        UserError: if there is no such folder.
    """
    from hydrl.api import runs as api

    return api.runs(folder, trust=trust)


def sweep(*words: str, folder: str | Path | None = None, **keys: Any) -> list[Run]:
    """Trains several runs, each in its own process: ``hydrl.sweep(algo=["ppo", "dqn"], env="cartpole")``.

    Args:
        *words: overrides as on the command line after ``-m``, such as ``"seed=0,1,2"``.
        folder: the sweep's folder. With ``resume="auto"`` the same call continues a sweep that was stopped.
        **keys: overrides as keywords; a list is several values of its key.

    Returns:
        The finished runs.

    Raises:
        UserError: for a class or function, which other processes do not have.
        RunError: if a run has not finished.
    """
    from hydrl.api import runs as api

    return api.sweep(*words, folder=folder, **keys)
