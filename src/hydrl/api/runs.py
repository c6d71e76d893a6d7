"""Runs from Python, in a script, a notebook or a thread: ``hydrl.train``, ``runs`` and ``sweep``."""

import os
import signal
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import datetime
from functools import cache
from html import escape
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from omegaconf import DictConfig

from hydrl.api import python_classes
from hydrl.api.training import TRAINING, restore_process
from hydrl.config import ROOT, command_line
from hydrl.config.migrations import new_key
from hydrl.config.overrides import chosen_options, key_of, new_command, to_override
from hydrl.config.schema import has_workers
from hydrl.deploy.load import open_run
from hydrl.deploy.policy import Policy, open_policy
from hydrl.errors import Interrupted, RunError, UserError, printable
from hydrl.experience.forkserver import END_WITH_PARENT
from hydrl.library_setup import quieten_libraries
from hydrl.run import Session, rendering
from hydrl.run.checkpoint.resume_command import expand
from hydrl.run.logging.console import summary_rows
from hydrl.run.process import choose_device
from hydrl.run.run_folder import CONFIG, metric_rows, require_run, summary
from hydrl.run.video import record_episode
from hydrl.training import PolicyEvaluator

if TYPE_CHECKING:
    from pandas import DataFrame


class Run:
    """A run: its results, its policy, and resuming it; a notebook shows its curves.

    :func:`hydrl.train`, :func:`hydrl.runs` and :func:`hydrl.sweep` return runs.

    Args:
        place: the run's folder.
        trust: see :func:`hydrl.load`; runs of this process are trusted.

    Attributes:
        folder: the run's folder.

    Raises:
        UserError: if the folder is not a run.
    """

    def __init__(self, place: str | Path, *, trust: bool = False) -> None:
        self.folder, self.trust = Path(place), trust
        require_run(self.folder)

    @property
    def summary(self) -> dict[str, Any]:
        """The entries of ``summary.json``; empty until the run has ended."""
        return summary(self.folder)

    @property
    def metrics(self) -> dict[str, np.ndarray]:
        """The columns of ``metrics.csv``, arrays ``[rows]``; NaN where a row has no value.

        Raises:
            UserError: if the file is damaged.
        """
        rows = metric_rows(self.folder / "metrics.csv")
        return {name: np.array([row[name] for row in rows], float) for name in (rows or [{}])[0]}

    def frame(self) -> "DataFrame":
        """The metrics as a table of pandas.

        Raises:
            UserError: if pandas is not installed.
        """
        try:
            from pandas import DataFrame
        except ImportError:
            raise UserError("frame(): pandas is not installed. Run pip install pandas.") from None
        return DataFrame(self.metrics)

    def policy(self, checkpoint: str | int = "best", *, device: str = "cpu") -> Policy:
        """The run's policy; the same as :func:`hydrl.load` with the run's folder."""
        python_classes.refresh()
        return open_policy(self.folder, checkpoint, device, self.trust)

    def evaluate(
        self, episodes: int = 100, checkpoint: str | int = "last", *, stream: int = 2, device: str = "cpu"
    ) -> dict[str, Any]:
        """Evaluates the deterministic policy in whole episodes, as ``scripts/evaluate.py`` does.

        Args:
            episodes: number of episodes.
            checkpoint: ``last``, ``best`` or a number of frames.
            stream: which episodes; each number has seeds of its own. 0 and 1 are those of the run's own
                evaluations, while training and at the end.
            device: where the policy acts.

        Returns:
            The ``eval/`` metrics, and ``returns`` and ``lengths`` of each episode.

        Raises:
            UserError: for ``episodes`` below 1, a missing checkpoint, and where :func:`hydrl.load` raises it.
        """
        if episodes < 1:
            raise UserError(f"episodes={episodes}: should be at least 1.")
        with self._evaluator(checkpoint, device) as (frames, evaluator):
            result = evaluator(frames, episodes, stream)
        return result.metrics() | {"returns": result.returns.numpy(), "lengths": result.lengths.numpy()}

    def record_video(self, checkpoint: str | int = "last", *, stream: int = 2, device: str = "cpu") -> Path:
        """Records the first episode of :meth:`evaluate` as a video, as ``scripts/evaluate.py`` does.

        Args:
            checkpoint, stream, device: see :meth:`evaluate`.

        Returns:
            ``video-CHECKPOINT.mp4`` in the folder; ``IPython.display.Video(path, embed=True)`` plays it.

        Raises:
            UserError: if PyAV is missing or the environment cannot be rendered, or as :meth:`evaluate`.
            RunError: if the file cannot be written.
        """
        path = self.folder / f"video-{checkpoint}.mp4"
        with self._evaluator(checkpoint, device, renders=True) as (frames, evaluator):
            _, steps, is_cut = record_episode(evaluator, path, frames, stream)
        if is_cut:
            print(f"{path.name} is cut short: the episode still ran after {steps:,} steps")
        return path

    film = record_video  # its earlier name

    @contextmanager
    def _evaluator(
        self, checkpoint: str | int, device: str, *, renders: bool = False
    ) -> Iterator[tuple[int, PolicyEvaluator]]:
        """Yields the frames a policy was trained for and its evaluator; restores the process afterwards."""
        with restore_process():
            python_classes.refresh()
            rendering.prepare(wanted=renders)  # before anything opens a window
            quieten_libraries()
            device = choose_device(device)
            _, frames, evaluator = open_run(
                self.folder, checkpoint=str(checkpoint), device=device, trust=self.trust
            )
            with closing(evaluator):
                yield frames, evaluator

    def resume(self, *words: str, **keys: Any) -> "Run":
        """Resumes the run: ``run.resume(total_frames=50_000)``; see :func:`hydrl.train`."""
        return train(*words, resume=self.folder, **{"trust": self.trust, **keys})

    def __repr__(self) -> str:
        """Algorithm, environment, seed and result."""
        summary = self.summary
        if not summary:
            return printable(f"<Run in {self.folder}, which has not ended>")
        rows = summary_rows(summary, self.folder)
        result = rows.get("evaluation", "not evaluated")
        return printable(f"<Run of {describe(summary)}: {result}, in {rows['folder']}>")

    def _repr_html_(self) -> str:
        """Its curves and summary table, for a notebook."""
        summary, image_file = self.summary, self.folder / "curves.png"
        if not summary:
            return escape(repr(self))
        curves = b64encode(image_file.read_bytes()).decode() if image_file.is_file() else ""
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>"
            for name, text in summary_rows(summary, self.folder).items()
        )
        image = f'<img alt="curves" width="560" src="data:image/png;base64,{curves}">' if curves else ""
        return f"<h4>{escape(describe(summary))}</h4>{image}<table>{rows}</table>"


def describe(summary: Mapping[str, Any]) -> str:
    """Algorithm, environment, seed and status in one line."""
    algo, env, seed, status = (summary.get(key, "?") for key in ("algo", "env", "seed", "status"))
    return f"{algo} on {env}, seed {seed}{'' if status == 'finished' else f' ({status})'}"


def train(*words: str, folder: str | Path | None = None, began: float | None = None, **keys: Any) -> Run:
    """See :func:`hydrl.train`; ``began`` is when it was called, by ``time.monotonic``."""
    if wrong := next((word for word in words if not isinstance(word, str)), None):
        raise UserError(f'{wrong!r}: not an override. Write "algo=ppo" or the keyword algo="ppo".')
    typed = [*words, *python_classes.to_overrides(keys)]
    if folder is not None:
        typed.append(f"hydra.run.dir={to_override(folder, 'folder')}")
    with TRAINING.begin(began) as session, new_command():
        python_classes.refresh()
        cfg = command_line.compose_for_python(typed, expand)
        place = Path(cfg.run_dir)
        python_classes.drop_unaccepted(cfg, [new_key(key_of(word)) for word in typed])
        if cfg.eval.backend == "auto":  # a background process imports the program, which may train again
            cfg.eval.backend = "inline"
        if options := python_classes.process_only_options(chosen_options()):
            refuse_workers(cfg, options)
            print(f"{', '.join(options)}: known to this process only; resume the run here")
        ended = run_training(cfg, session)
    if ended is not None and ended.exit_code != 128 + signal.SIGINT:  # the process itself was to end
        signal.raise_signal(ended.exit_code - 128)
    return Run(place, trust=True)


def refuse_workers(cfg: DictConfig, options: list[str]) -> None:
    """Refuses workers with an environment that only this process has; workers make theirs by name.

    Raises:
        UserError: if the run has workers and such an environment.
    """
    env = next((option for option in options if option.startswith("env=")), None)
    if env and has_workers(cfg):
        raise UserError(f"{env}: workers do not know this class. Use collector=single, or an option file.")


def run_training(cfg: DictConfig, session: Session) -> Interrupted | None:
    """Trains; returns the interrupt that ended a run after its first batch, if there was one.

    Raises:
        UserError: for a mistake in the configuration or in the task.
        RunError: for a run that diverged or could not be written.
        KeyboardInterrupt: where it was stopped before the first batch.
    """
    try:
        application()(cfg, session)
    except UserError:
        command_line.remove_unused_folder()
        raise
    except (Interrupted, KeyboardInterrupt) as error:
        if isinstance(error, Interrupted) and Path(cfg.run_dir, "summary.json").is_file():
            return error
        command_line.remove_unused_folder()
        raise KeyboardInterrupt("stopped before the first batch; nothing was saved") from None
    except SystemExit as error:  # of a task's own code
        raise RunError(f"the environment or a library ended the run by sys.exit({error.code!r})") from None
    except OSError as error:
        if error.errno not in command_line.UNWRITABLE:
            raise
        raise RunError(command_line.explain_unwritable(error, Path(cfg.run_dir))) from error
    return None


@cache
def application() -> Callable[[DictConfig, Session], None]:
    """``start`` of ``train.py``."""
    spec = spec_from_file_location("hydrl_train", ROOT / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.start


def runs(folder: str | Path, *, trust: bool = False) -> list[Run]:
    """See :func:`hydrl.runs`."""
    if not Path(folder).is_dir():
        raise UserError(f"{folder}: no such folder.")
    run_folders = sorted(file.parent for file in Path(folder).rglob("summary.json"))
    ended = [Run(path, trust=trust) for path in run_folders if (path / CONFIG).is_file()]
    return [run for run in ended if run.summary.get("status") == "finished"]


def sweep(*words: str, folder: str | Path | None = None, **keys: Any) -> list[Run]:
    """See :func:`hydrl.sweep`."""
    if own := next((key for key, value in keys.items() if callable(value)), None):
        raise UserError(
            f"{own}={keys[own]!r}: the runs of a sweep are other processes, which do not know it. Write an "
            "option file (docs/own_components.md)."
        )
    plain_keys = {key: value.tolist() if hasattr(value, "tolist") else value for key, value in keys.items()}
    several = {
        key: value if isinstance(value, list | range) else [value] for key, value in plain_keys.items()
    }
    typed = [
        f"{key}={','.join(to_override(value, key) for value in values)}" for key, values in several.items()
    ]
    place = Path(folder or f"outputs/sweeps/{datetime.now():%Y-%m-%d_%H-%M-%S-%f}")
    command = [sys.executable, str(ROOT / "train.py"), "-m", *words, *typed]
    plain = {key: value for key, value in os.environ.items() if key != "FORCE_COLOR"}  # a notebook sets it
    process = subprocess.Popen(
        [*command, f"hydra.sweep.dir={to_override(place, 'folder')}"], env=plain, preexec_fn=END_WITH_PARENT
    )
    try:
        code = process.wait()
    except BaseException:  # a notebook's stop button is pressed for this process alone
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    if code:
        hint = f"; hydrl.runs({str(place)!r}) lists the finished ones" if place.is_dir() else ""
        raise RunError(f"the sweep in {place} failed with exit code {code}; the output above says why{hint}")
    return runs(place, trust=True)
