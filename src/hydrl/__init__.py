"""hydrl: Hydra configs choose the parts, TorchRL does the reinforcement learning."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from hydrl.run.policy import Policy

__version__ = "0.1.0"


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
    from hydrl.run.policy import open_policy  # brings PyTorch, which `import hydrl` does without

    return open_policy(run, checkpoint, device, trust)
