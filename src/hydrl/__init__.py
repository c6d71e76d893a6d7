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
    """A finished run to act with, or one that was stopped: ``hydrl.load(run).predict(observation)``.

    Random numbers of the process are left alone.

    Args:
        run: a run folder, such as ``outputs/…``.
        checkpoint: ``best`` by evaluation (the last, with a warning, where the run was not evaluated),
            ``last``, or a number of frames.
        device: where the policy acts: ``cpu``, ``cuda``, ``cuda:1``, ``auto``.
        trust: ``True`` rebuilds environments and parts that are not hydrl's own, which runs their code.

    Returns:
        The policy, with ``predict``, ``act``, ``reset``, ``env`` and ``export``.

    Raises:
        UserError: in a line, if the folder is no run's, the checkpoint is not there or damaged, the
            environment cannot be made or there is no such device. It is a ``ValueError``.
    """
    import hydrl.api  # noqa: F401  # keeps a notebook free of Ray's warnings
    from hydrl.deploy.policy import open_policy  # brings PyTorch, which `import hydrl` does without

    return open_policy(run, checkpoint, device, trust)


def train(*words: str, folder: str | Path | None = None, **keys: Any) -> Run:
    """Trains as ``python train.py`` does, here: ``hydrl.train("algo=ppo", env="cartpole", seed=1)``.

    The process is left as it was found: random numbers, threads, environment variables and the like. In the
    main thread Ctrl-C and a notebook's stop button end the run after the batch in hand, and it is returned,
    saved; in another thread :func:`stop` does that.

    Args:
        *words: of the command line, as ``"algo=ppo"`` or ``"optim.lr=1e-3"``.
        folder: where everything of the run goes; else a new one in ``outputs/``.
        **keys: the same as keywords, after ``words``: ``seed=1``, ``eval={"episodes": 50}``, and a class or
            function of your own for a choice, as ``env=MyEnv`` (Gymnasium's or TorchRL's) or ``actor=make``.

    Returns:
        The run, with ``summary``, ``metrics``, ``policy()``, ``evaluate()``, ``film()`` and ``resume()``.

    Raises:
        UserError: in a line, for a user's mistake. It is a ``ValueError``.
        RunError: for a run that diverged or could not be written.
        KeyboardInterrupt: where it was stopped before its first batch.
    """
    began = time.monotonic()  # before PyTorch is imported, which the run's seconds hold
    from hydrl.api import runs as api

    return api.train(*words, folder=folder, began=began, **keys)


def stop() -> bool:
    """Asks the run that another thread trains to end after the batch in hand; whether there is one."""
    from hydrl.api.training import TRAINING

    return TRAINING.stop()


def runs(place: str | Path, *, trust: bool = False) -> list[Run]:
    """The finished runs in a folder, at any depth, by their names.

    Args:
        place: such as ``outputs``.
        trust: see :func:`load`.

    Raises:
        UserError: if there is no such folder.
    """
    from hydrl.api import runs as api

    return api.runs(place, trust=trust)


def sweep(*words: str, folder: str | Path | None = None, **keys: Any) -> list[Run]:
    """Trains many runs, each in a process of its own: ``hydrl.sweep(algo=["ppo", "dqn"], env="cartpole")``.

    Args:
        *words: of the command line behind ``-m``, as ``"seed=0,1,2"``.
        folder: of the sweep; the same words go on with it where it was stopped, beside ``resume="auto"``.
        **keys: the same as keywords; a list is several values of its key.

    Returns:
        The finished runs.

    Raises:
        UserError: for what only this process has.
        RunError: if not all have finished.
    """
    from hydrl.api import runs as api

    return api.sweep(*words, folder=folder, **keys)
