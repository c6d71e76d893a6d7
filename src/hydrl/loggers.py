"""Where numbers go: always ``metrics.csv``, and a TorchRL logger when one is chosen."""

import csv
import importlib.util
import os
from functools import partial
from pathlib import Path
from typing import Any

from torchrl.record.loggers.common import Logger

from hydrl.errors import UserError


class MetricsFile:
    """``metrics.csv``: one row a log step, ``frames`` first; a new metric adds a column."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns = ["frames"]
        self.rows: list[dict[str, float]] = []

    def write(self, frames: int, metrics: dict[str, float]) -> None:
        """Appends a row; rewrites the file when a metric appears for the first time."""
        row = {"frames": frames, **metrics}
        self.rows.append(row)
        new = sorted(key for key in row if key not in self.columns)
        self.columns += new
        with self.path.open("w" if new else "a", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            if new:
                writer.writeheader()
            writer.writerows(self.rows if new else [row])


def tensorboard(*, directory: Path, config: dict[str, Any], name: str) -> Logger:
    """TensorBoard event files under ``tensorboard/`` in the run folder.

    Raises:
        UserError: if the extra is not installed.
    """
    if importlib.util.find_spec("tensorboard") is None:
        raise UserError(
            "logger=tensorboard needs an extra: pip install -e '.[tensorboard]', or use logger=csv"
        )
    from torchrl.record.loggers import TensorboardLogger

    return TensorboardLogger(exp_name="tensorboard", log_dir=str(directory))


def wandb(
    *,
    directory: Path,
    config: dict[str, Any],
    name: str,
    project: str,
    entity: str | None,
    tags: list[str],
    mode: str,
    init_timeout: float,
) -> Logger:
    """Weights & Biases, offline where there is no account or no network; it never asks and never waits long.

    Args:
        directory: the run folder; offline runs lie in its ``wandb/``.
        config: the resolved configuration, sent as the run's config.
        name: the run's name.
        project: W&B project.
        entity: W&B user or team; ``None`` is the account's own.
        tags: shown beside the run; algorithm and environment are added.
        mode: ``auto`` is online with an account, else offline; or ``online``, ``offline``.
        init_timeout: seconds to wait for the server before going offline.
    """
    import wandb as library
    from torchrl.record.loggers import WandbLogger

    algo, task = config["algo"], config["task"]
    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or ("online" if has_account() else "offline")

    def start(mode: str) -> Logger:
        return WandbLogger(
            exp_name=name,
            save_dir=str(directory),
            project=project,
            entity=entity,
            group=f"{algo}-{task}",
            tags=[algo, task, *tags],
            job_type="train",
            config=config,
            mode=mode,
            log_env_packages=False,  # it would overwrite the config's own key `env`
            settings=library.Settings(init_timeout=init_timeout, silent=True, console="off"),
        )

    try:
        logger = start(mode)
    except (library.errors.Error, TimeoutError, OSError) as error:
        print(f"W&B could not be reached ({str(error).splitlines()[0]}); logging offline")
        mode, logger = "offline", start("offline")
    logger.experiment.define_metric("*", step_metric="frames")
    # TorchRL would give every group of metrics a step counter of its own beside `frames`.
    logger.log_metrics = partial(logger.log_metrics, override_global_step=True)
    if mode == "offline":
        folder = logger.experiment.dir.removesuffix("/files")
        print(f"W&B is offline; send the run later with: wandb sync {folder}")
    return logger


def has_account() -> bool:
    """Whether an API key is at hand, from the environment or ``~/.netrc``; nothing is asked."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    return netrc.is_file() and "wandb" in netrc.read_text(errors="ignore")


def log(logger: Logger | None, frames: int, metrics: dict[str, float]) -> None:
    """Sends one row to the chosen logger, against environment frames."""
    if logger is not None:
        logger.log_metrics({"frames": frames, **metrics}, step=frames)


def close(logger: Logger | None) -> None:
    """Finishes the W&B run or closes the event file."""
    if logger is not None:
        finish = getattr(logger.experiment, "finish", None) or logger.experiment.close
        finish()
