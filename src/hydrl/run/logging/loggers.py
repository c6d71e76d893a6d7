"""Where metrics go: always ``metrics.csv``, and the TorchRL loggers that are chosen."""

import csv
import io
import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib import import_module
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

from torchrl.record.loggers import Logger, TensorboardLogger, WandbLogger
from torchrl.record.loggers.trackio import TrackioLogger

from hydrl.config import PACKAGE
from hydrl.config.migrations import old_config
from hydrl.config.schema import RULES
from hydrl.config.tree import find, paths
from hydrl.errors import UserError
from hydrl.limits import PositiveFloat
from hydrl.metric_names import EVAL_FRAMES, FINAL_RETURN, RETURN_MEAN, TRAIN_RETURN
from hydrl.run.atomic_files import atomically
from hydrl.run.checkpoint import archive
from hydrl.run.run_folder import metric_rows

FIRST = ("frames", TRAIN_RETURN)  # columns of metrics.csv
HPARAMS_METRICS = dict.fromkeys([FINAL_RETURN, RETURN_MEAN, TRAIN_RETURN], 0.0)  # names count
RULES_AND_TARGETS = {*RULES, "_target_"}


class MetricsFile:
    """``metrics.csv``: one row for each log step, ``frames`` first; a new metric adds a column.

    The training return has its column from the first row on, which is empty until an episode has ended.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.columns: list[str] = []
        self.rows: list[dict[str, float]] = []

    def write(self, frames: int, metrics: dict[str, float]) -> None:
        """Appends a row; the file is written anew when a metric appears for the first time."""
        row = {"frames": frames, **metrics}
        self.rows.append(row)
        if row.keys() <= set(self.columns):
            with self.path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self.columns).writerow(row)
        else:
            self.rewrite()

    def keep(self, count: int, source: Path | None = None) -> int:
        """Keeps the first ``count`` rows that an earlier process wrote, and removes later ones.

        Args:
            count: of rows.
            source: the file that has them; ``None`` is this one.

        Returns:
            How many were removed.

        Raises:
            UserError: for a damaged file.
        """
        rows = metric_rows(source or self.path)
        self.rows = [{key: value for key, value in row.items() if value is not None} for row in rows[:count]]
        self.rewrite()
        return len(rows) - len(self.rows)

    def rewrite(self) -> None:
        """Writes the whole file, with columns in the order they first appeared, resumed or not."""
        self.columns = list(dict.fromkeys([*FIRST, *(key for row in self.rows for key in sorted(row))]))
        with atomically(self.path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(self.rows)


def tensorboard(*, directory: Path, config: dict[str, Any], name: str, run_id: str | None = None) -> Logger:
    """TensorBoard event files under ``tensorboard/`` in the run folder; a resumed run adds one of its own."""
    from torch.utils.tensorboard.summary import hparams

    logger = TensorboardLogger(exp_name="tensorboard", log_dir=str(directory))
    # SummaryWriter.add_hparams would open a second run in a folder of its own.
    for summary in hparams(hyperparameters(config), HPARAMS_METRICS)[:2]:
        logger.experiment.file_writer.add_summary(summary)
    return logger


def hyperparameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration by dotted keys as TensorBoard's HPARAMS tab takes it: numbers and text."""
    values = {key: find(config, key) for key in paths(config) if not RULES_AND_TARGETS & {*key.split(".")}}
    leaves = {key: value for key, value in values.items() if not isinstance(value, dict | None)}
    return {key: str(value) if isinstance(value, list) else value for key, value in leaves.items()}


QUIET: dict[str, Any] = {
    "silent": True,
    "console": "off",
    "save_code": True,  # of train.py; that of the package is sent apart
    "disable_git": True,  # it would send what is not committed, which could hold a secret
}


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
    mode: Literal["auto", "online", "offline"],
    init_timeout: PositiveFloat,
) -> Logger:
    """Weights & Biases, offline where there is no account or no network; it never asks and never waits long.

    Args:
        directory: the run folder; offline runs lie in its ``wandb/``.
        config: the run's settings as they are saved.
        name: the run's name.
        run_id: of the W&B run to go on with.
        project, entity, group, tags, artifacts, mode, init_timeout: as in ``configs/logger/wandb.yaml``.
    """
    import wandb as library

    algo, task = config["algo"], config["task"]
    settings = library.Settings(init_timeout=init_timeout, git_commit=git_commit(), **QUIET)
    library.setup(settings)  # before it says that it looks for an account
    start = partial(
        WandbLogger,
        exp_name=name,
        save_dir=str(directory),
        id=run_id,
        resume="allow" if run_id else None,  # an agent of a sweep has an identity for each new run
        project=project,
        entity=entity,
        group=group or f"{algo}-{task}".replace(":", "-"),
        tags=[algo, task, *tags],
        job_type="train",
        config=old_config(config),
        log_env_packages=False,  # it would overwrite the config's own key `env`
        settings=settings,
    )
    logger = start_run(start, mode, directory)
    logger.experiment.define_metric("*", step_metric="frames")
    logger.experiment.log_code(str(PACKAGE))
    return logger


def start_run(start: Callable[..., WandbLogger], mode: str, directory: Path) -> WandbLogger:
    """Starts W&B's run, offline where there is no account or no server, and prints that."""
    import wandb as library

    if mode == "auto":
        account = library.login(prompt=False, verify=False)
        mode = os.environ.get("WANDB_MODE") or ("online" if account else "offline")
    try:
        logger = start(mode=mode)
    except (library.errors.Error, TimeoutError, OSError) as error:
        print(f"W&B could not be reached ({str(error).splitlines()[0]}); logging offline")
        mode, logger = "offline", start(mode="offline")
    if mode == "offline":
        print(f"W&B is offline; send the run later with: wandb sync {directory}/wandb/offline-run-*")
    return logger


def git_commit() -> str | None:
    """The git commit of the working folder, where it has one."""
    try:
        completed = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    except OSError:  # no git
        return None
    return completed.stdout.strip() or None


def trackio(
    *,
    directory: Path,
    config: dict[str, Any],
    name: str,
    run_id: str | None = None,
    project: str,
    group: str | None = None,
) -> Logger:
    """trackio: a dashboard on this machine, without an account; ``make dashboard`` shows it.

    All runs lie in ``outputs/trackio``, or where ``TRACKIO_DIR`` says. A run's name there ends in six digits
    of its own, for trackio finds a run to go on with by its name.
    """
    os.environ.setdefault("TRACKIO_DIR", str(Path("outputs", "trackio").absolute()))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # it would ask the Hub who is logged in there
    os.environ.setdefault("TRACKIO_PLOT_ORDER", f"{RETURN_MEAN},{TRAIN_RETURN},eval/*,train/*,loss/*")
    variables = ("TRACKIO_DIR", "TRACKIO_PLOT_ORDER", "HF_HUB_OFFLINE")
    settings = " ".join(f"{variable}={shlex.quote(os.environ[variable])}" for variable in variables)
    print(f"trackio shows the run: {settings} trackio show --project {project}")
    with redirect_stdout(io.StringIO()):
        return TrackioLogger(
            exp_name=run_id or f"{name}-{token_hex(3)}",
            project=project,
            resume="allow" if run_id else "never",
            group=group or f"{config['algo']}-{config['task']}".replace(":", "-"),
            config=old_config(config),
            embed=False,
            auto_log_cpu=False,
            auto_log_gpu=False,
        )


def run_ids(loggers: Mapping[str, Logger]) -> dict[str, str]:
    """The ids by which W&B and trackio know the run; other loggers have none."""
    return {
        key: logger.experiment.id if isinstance(logger, WandbLogger) else logger.experiment.name
        for key, logger in loggers.items()
        if isinstance(logger, WandbLogger | TrackioLogger)
    }


def log(loggers: Iterable[Logger], frames: int, metrics: dict[str, Any]) -> None:
    """Sends one row to the chosen loggers, against environment frames."""
    for logger in loggers:
        if isinstance(logger, WandbLogger):  # whose own method gives each group another step counter
            logger.experiment.log({"frames": frames, **metrics}, step=frames)
        elif isinstance(logger, TrackioLogger):  # whose own method makes each metric a row
            logger.experiment.log(metrics, step=frames)
        else:
            logger.log_metrics(metrics, step=frames)


def show(loggers: Iterable[Logger], frames: int, key: str, video: Path) -> None:
    """Sends a video in the row of its frames; TorchRL's ``log_video`` would encode it anew."""
    for logger in loggers:
        if isinstance(logger, WandbLogger | TrackioLogger):
            library = import_module("wandb" if isinstance(logger, WandbLogger) else "trackio")
            log([logger], frames, {key: library.Video(str(video), format="mp4")})


def show_samples(loggers: Iterable[Logger], frames: int, samples: Sequence[Mapping[str, Any]]) -> None:
    """Sends samples of an evaluation, such as prompts and answers, as a table to W&B and trackio."""
    columns = [*samples[0]]
    for logger in loggers:
        if isinstance(logger, WandbLogger | TrackioLogger):
            library = import_module("wandb" if isinstance(logger, WandbLogger) else "trackio")
            rows = [[sample[name] for name in columns] for sample in samples]
            if isinstance(logger, WandbLogger):
                content = library.Table(columns=columns, data=rows)
            else:
                # It ignores names of columns without a data frame.
                content = library.Table(dataframe=import_module("pandas").DataFrame(rows, columns=columns))
            log([logger], frames, {"samples": content})


def close(logger: Logger, results: dict[str, Any] | None = None) -> None:
    """Finishes the run at W&B or trackio, or closes the event file.

    ``results`` go into W&B's summary, which would otherwise hold the evaluation of the last log row, and into
    TensorBoard's table of hyperparameters.
    """
    if isinstance(logger, WandbLogger):
        run = logger.experiment
        run.log({}, commit=True)  # else the last row would come after the results and overwrite them
        run.summary.update({key: value for key, value in (results or {}).items() if value is not None})
        if run.config["logger"]["wandb"]["artifacts"]:
            send_artifacts(run, Path(logger.log_dir))
        run.finish()
    elif isinstance(logger, TrackioLogger):
        with redirect_stdout(io.StringIO()):
            import_module("trackio").finish()  # the experiment's own would be called once more at the exit
    else:
        if isinstance(logger, TensorboardLogger) and results and results["status"] == "finished":
            logger.log_scalar(FINAL_RETURN, results[RETURN_MEAN], step=results[EVAL_FRAMES])
        logger.experiment.close()


def send_artifacts(run: Any, directory: Path) -> None:
    """Sends a run's best checkpoint and videos to W&B; a failure is printed and costs the run nothing."""
    from wandb.errors import Error

    try:
        if (videos := directory / "videos").is_dir():
            run.log_artifact(str(videos), name=f"video-{run.id}", type="video")
        best = archive.find(directory, "best")
        run.log_artifact(str(best), name=f"checkpoint-{run.id}", type="checkpoint")
    except (UserError, OSError, Error) as error:  # such as a run stopped before an evaluation
        print(f"not all artifacts are sent to W&B: {error}")
