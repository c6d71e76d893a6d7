"""Where numbers go: always ``metrics.csv``, and a TorchRL logger when one is chosen."""

import csv
import importlib.util
import io
import math
import os
import shutil
from collections.abc import Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from torchrl.record.loggers.common import Logger

from hydrl.config import CONFIGS
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

    logger = TensorboardLogger(exp_name="tensorboard", log_dir=str(directory))
    logger.show = partial(animate, logger.experiment)
    return logger


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
        config: the resolved configuration, sent as the run's config.
        name: the run's name.
        run_id: of the W&B run to go on with, where a run is resumed.
        project: W&B project.
        entity: W&B user or team; ``None`` is the account's own.
        group: the runs it is averaged with; ``None`` is the algorithm and the environment.
        tags: shown beside the run; algorithm and environment are added.
        artifacts: whether the best checkpoint and the videos are sent at the end.
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
            id=run_id,
            resume="allow" if run_id else None,  # an agent of a sweep has an identity for each new run
            project=project,
            entity=entity,
            group=group or f"{algo}-{task}",
            tags=[algo, task, *tags],
            job_type="train",
            config=config,
            mode=mode,
            log_env_packages=False,  # it would overwrite the config's own key `env`
            settings=library.Settings(
                init_timeout=init_timeout,
                silent=True,
                console="off",
                save_code=False,  # see keep_code
                disable_git=True,  # it would send what is not committed, which could hold a secret
            ),
        )

    try:
        logger = start(mode)
    except (library.errors.Error, TimeoutError, OSError) as error:
        print(f"W&B could not be reached ({str(error).splitlines()[0]}); logging offline")
        mode, logger = "offline", start("offline")
    logger.experiment.define_metric("*", step_metric="frames")
    # TorchRL would give every group of metrics a step counter of its own beside `frames`.
    logger.log_metrics = partial(logger.log_metrics, override_global_step=True)
    logger.show = lambda frames, key, film: log(logger, frames, {key: library.Video(film, format="mp4")})
    logger.artifacts_of = directory if artifacts else None
    keep_code(logger.experiment, directory)
    if mode == "offline":
        print(f"W&B is offline; send the run later with: wandb sync {directory}/wandb/offline-run-*")
    return logger


def has_account() -> bool:
    """Whether an API key is at hand, from the environment or ``~/.netrc``; nothing is asked."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    netrc = Path(os.environ.get("NETRC", Path.home() / ".netrc"))
    known = netrc.read_text(errors="ignore") if netrc.is_file() else ""
    return "wandb" in known or str(urlsplit(server()).hostname) in known


def server() -> str:
    """The address of the W&B server that ``wandb login`` logs in to."""
    import wandb as library

    return os.environ.get("WANDB_BASE_URL") or library.Settings().base_url


def run_id(logger: Logger | None) -> str | None:
    """The name by which W&B knows the run; other loggers need none."""
    identity = getattr(getattr(logger, "experiment", None), "id", None)
    return identity if isinstance(identity, str) else None


def log(logger: Logger | None, frames: int, metrics: dict[str, float]) -> None:
    """Sends one row to the chosen logger, against environment frames."""
    if logger is not None:
        logger.log_metrics({"frames": frames, **metrics}, step=frames)


def show(logger: Logger | None, frames: int, key: str, film: Path) -> None:
    """Sends a film to the chosen logger, where it takes any, against environment frames.

    TorchRL's ``log_video`` takes tensors and encodes them anew with moviepy.
    """
    if send := getattr(logger, "show", None):
        send(frames, key, film)


def animate(writer: Any, frames: int, key: str, film: Path) -> None:
    """Adds a film to TensorBoard's images as a GIF, the moving picture it shows, at half the size.

    At most 10 pictures a second: each takes room in the event file, and time to reduce to 256 colours.
    """
    import av
    from torch.utils.tensorboard.summary import Summary

    with av.open(str(film)) as container:
        speed = container.streams.video[0].average_rate or 30
        every = math.ceil(speed / 10)
        shown = islice(container.decode(video=0), 0, None, every)
        first, *others = (picture.to_image().reduce(2) for picture in shown)
    gif = io.BytesIO()
    first.save(gif, "GIF", save_all=True, append_images=others, duration=float(1_000 * every / speed), loop=0)
    image = Summary.Image(
        width=first.width, height=first.height, colorspace=3, encoded_image_string=gif.getvalue()
    )
    writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=key, image=image)]), frames)


def keep_code(run: Any, directory: Path) -> None:
    """Saves the code and the resolved configuration with a W&B run.

    They are copied into its folder, where ``wandb sync`` finds them as they were. Files in ``configs/`` could
    hold a secret; ``config_resolved.yaml`` shows none.
    """
    files, root = Path(run.dir), CONFIGS.parent
    code = [root / "train.py", *(root / "src" / "hydrl").rglob("*.py")]
    copies = {path: files / "code" / path.relative_to(root) for path in code}
    # Under another name, which does not make this folder look like a run's.
    copies[directory / "config_resolved.yaml"] = files / "resolved_config.yaml"
    for path, copy in copies.items():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copy)
        run.save(str(copy), base_path=str(files), policy="now", glob=False)


def send_artifacts(run: Any, directory: Path) -> None:
    """Sends a run folder's best checkpoint and videos as artifacts of a W&B run, which shows the videos too.

    The files stay where they are and are not copied; a run kept offline needs them until it is sent. What
    goes wrong is said and costs the run nothing.
    """
    import wandb as library

    def send(kind: str, folder: Path, paths: Iterable[Path]) -> None:
        artifact = library.Artifact(f"{kind}-{run.id}", type=kind, metadata={"folder": folder.name})
        for path in paths:
            artifact.add_file(str(path), str(path.relative_to(folder)), policy="immutable")
        run.log_artifact(artifact)

    try:
        films = sorted(directory.glob("*.mp4"))
        if every := [*films, *sorted(directory.glob("videos/*.mp4"))]:
            send("video", directory, every)
        if films:  # the others were shown when they were made
            shown = {film.stem.replace("-", "/", 1): str(film) for film in films}
            run.log({key: library.Video(film, format="mp4") for key, film in shown.items()})
        best = checkpoint.find(directory, "best")
        send("checkpoint", best, (path for path in best.rglob("*") if path.is_file()))
    except (UserError, OSError, library.errors.Error) as error:  # such as a run stopped before an evaluation
        print(f"not all artifacts are sent to W&B: {error}")


def conclude(logger: Logger | None, reached: dict[str, Any]) -> None:
    """Puts what a run reached into its W&B summary, which would else hold the last log row's evaluation."""
    run = getattr(logger, "experiment", None)
    if run is not None and hasattr(run, "summary"):
        run.log({}, commit=True)  # the last row would else come after, and over it
        run.summary.update({name: value for name, value in reached.items() if value is not None})


def close(logger: Logger | None) -> None:
    """Finishes the W&B run, sending what it should, or closes the event file."""
    if logger is not None:
        if directory := getattr(logger, "artifacts_of", None):
            send_artifacts(logger.experiment, directory)
        finish = getattr(logger.experiment, "finish", None) or logger.experiment.close
        finish()
