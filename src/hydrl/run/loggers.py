"""Where numbers go: always ``metrics.csv``, and a TorchRL logger when one is chosen."""

import csv
import importlib.util
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torchrl.record.loggers import Logger, WandbLogger

import hydrl
from hydrl.errors import UserError
from hydrl.run import checkpoint
from hydrl.run.files import atomically


class MetricsFile:
    """``metrics.csv``: one row a log step, ``frames`` first; a new metric adds a column.

    Args:
        path: the file; nothing is written before the first row.
    """

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

    def keep(self, count: int) -> None:
        """Goes on after the first ``count`` rows that an earlier process wrote; later ones go."""
        if not self.path.exists():
            return
        with self.path.open(newline="") as file:
            found = list(csv.DictReader(file))[:count]
        self.rows = [{key: number(text) for key, text in row.items() if text} for row in found]
        self.columns = ["frames"]
        for row in self.rows:  # in the order they came, so that a resumed file is the file of an unbroken run
            self.columns += sorted(key for key in row if key not in self.columns)
        with atomically(self.path) as partial, partial.open("w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)


def number(text: str) -> float:
    """The number a cell holds; a count stays a count."""
    return int(text) if text.lstrip("-").isdigit() else float(text)


def tensorboard(*, directory: Path, config: dict[str, Any], name: str, run_id: str | None = None) -> Logger:
    """TensorBoard event files under ``tensorboard/`` in the run folder; a resumed run adds one of its own.

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
    run_id: str | None = None,
    project: str,
    entity: str | None,
    group: str | None = None,
    tags: list[str],
    artifacts: bool = False,
    mode: str,
    init_timeout: float,
) -> Logger:
    """Weights & Biases, offline where there is no account or no network; it never asks and never waits long.

    Args:
        directory: the run folder; offline runs lie in its ``wandb/``.
        config: the run's settings as they are saved, sent as the W&B run's config.
        name: the run's name.
        run_id: of the W&B run to go on with, where a run is resumed.
        project: W&B project.
        entity: W&B user or team; ``None`` is the account's own.
        group: the runs it is averaged with; ``None`` is the algorithm and the environment.
        tags: shown beside the run; algorithm and environment are added.
        artifacts: whether :func:`close` sends the best checkpoint and the videos; read from ``config``.
        mode: ``auto`` is online with an account, else offline; or ``online``, ``offline``.
        init_timeout: seconds to wait for the server before going offline.
    """
    algo, task = config["algo"], config["task"]
    start = partial(
        WandbLogger,
        exp_name=name,
        save_dir=str(directory),
        id=run_id,
        resume="allow" if run_id else None,  # an agent of a sweep has an identity for each new run
        project=project,
        entity=entity,
        group=group or f"{algo}-{task}",
        tags=[algo, task, *tags],
        job_type="train",
        config=config,
        log_env_packages=False,  # it would overwrite the config's own key `env`
        settings=wandb_settings(init_timeout),
    )
    logger = started(start, mode, directory)
    logger.experiment.define_metric("*", step_metric="frames")
    logger.experiment.log_code(str(Path(hydrl.__file__).parent))
    return logger


def started(start: Callable[..., WandbLogger], mode: str, directory: Path) -> WandbLogger:
    """Starts W&B's run, offline where there is no account or no server, and says so."""
    import wandb as library

    if mode == "auto":
        mode = os.environ.get("WANDB_MODE") or ("online" if has_account() else "offline")
    try:
        logger = start(mode=mode)
    except (library.errors.Error, TimeoutError, OSError) as error:
        print(f"W&B could not be reached ({str(error).splitlines()[0]}); logging offline")
        mode, logger = "offline", start(mode="offline")
    if mode == "offline":
        print(f"W&B is offline; send the run later with: wandb sync {directory}/wandb/offline-run-*")
    return logger


def wandb_settings(init_timeout: float) -> Any:
    """How W&B is to behave: it prints nothing, and sends ``train.py`` and nothing of git's."""
    import wandb as library

    return library.Settings(
        init_timeout=init_timeout,
        silent=True,
        console="off",
        save_code=True,  # of train.py; that of the package is sent apart
        disable_git=True,  # it would send what is not committed, which could hold a secret
    )


def has_account() -> bool:
    """Whether an API key is at hand, from the environment or ``~/.netrc``; nothing is asked."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    file = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    known = file.read_text(errors="ignore") if file.is_file() else ""
    return "wandb" in known or str(urlsplit(server()).hostname) in known


def server() -> str:
    """The address of the W&B server that ``wandb login`` logs in to."""
    import wandb as library

    return os.environ.get("WANDB_BASE_URL") or library.Settings().base_url


def run_id(logger: Logger | None) -> str | None:
    """The name by which W&B knows the run; other loggers need none."""
    return logger.experiment.id if isinstance(logger, WandbLogger) else None


def log(logger: Logger | None, frames: int, metrics: dict[str, float]) -> None:
    """Sends one row to the chosen logger, against environment frames."""
    if isinstance(logger, WandbLogger):  # whose own method gives each group of metrics another step counter
        logger.experiment.log({"frames": frames, **metrics}, step=frames)
    elif logger is not None:
        logger.log_metrics({"frames": frames, **metrics}, step=frames)


def show(logger: Logger | None, frames: int, key: str, film: Path) -> None:
    """Sends a film to W&B in the row of its frames; TorchRL's ``log_video`` would encode it anew."""
    if isinstance(logger, WandbLogger):
        import wandb as library

        log(logger, frames, {key: library.Video(film, format="mp4")})


def conclude(logger: Logger | None, reached: dict[str, Any]) -> None:
    """Puts what a run reached into its W&B summary, which would else hold the last log row's evaluation."""
    if isinstance(logger, WandbLogger):
        logger.experiment.log({}, commit=True)  # the last row would else come after, and over it
        logger.experiment.summary.update(
            {name: value for name, value in reached.items() if value is not None}
        )


def close(logger: Logger | None) -> None:
    """Finishes the W&B run, sending what it should, or closes the event file."""
    if isinstance(logger, WandbLogger):
        if logger.experiment.config["logger"]["artifacts"]:
            send_artifacts(logger.experiment, Path(logger.log_dir))
        logger.experiment.finish()
    elif logger is not None:
        logger.experiment.close()


def send_artifacts(run: Any, directory: Path) -> None:
    """Sends a run folder's best checkpoint and videos as artifacts of a W&B run.

    The files stay where they are and are not copied; a run kept offline needs them until it is sent. What
    goes wrong is said and costs the run nothing.
    """
    import wandb as library

    try:
        folders = {"checkpoint": checkpoint.find(directory, "best")}
        if (directory / "videos").is_dir():
            folders["video"] = directory / "videos"
        for kind, folder in folders.items():
            artifact = library.Artifact(f"{kind}-{run.id}", type=kind, metadata={"folder": folder.name})
            for path in sorted(each for each in folder.rglob("*") if each.is_file()):
                artifact.add_file(str(path), str(path.relative_to(folder)), policy="immutable")
            run.log_artifact(artifact)
    except (UserError, OSError, library.errors.Error) as error:  # such as a run stopped before an evaluation
        print(f"not all artifacts are sent to W&B: {error}")
