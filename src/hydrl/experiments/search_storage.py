"""Storage of a search's trials: a file in its folder, or a database server shared by several machines."""

import socket
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError
from optuna.storages import RDBStorage, fail_stale_trials
from optuna.trial import FrozenTrial
from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError, DatabaseError, NoSuchModuleError, SQLAlchemyError

from hydrl.errors import RunError, UserError

HEARTBEAT_SECONDS = 30  # between two heartbeats of a trial
STALE_SECONDS = 300  # without a heartbeat, after which others repeat the trial
DRIVERS = {"postgresql": "psycopg[binary]", "mysql": "mysqlclient", "mysql+pymysql": "pymysql"}


def open_storage(
    url: str | None, out: Path, on_stale: Callable[[optuna.Study, FrozenTrial], None]
) -> RDBStorage:
    """Opens the storage of a search.

    Args:
        url: URL of a database; ``None`` takes ``study.db`` in the search's folder.
        out: the search's folder.
        on_stale: called with each stale trial.

    Raises:
        UserError: if there is no such database or no driver for it.
    """
    if url is None:
        return RDBStorage(f"sqlite:///{out / 'study.db'}")
    engine = {"pool_pre_ping": True}  # checked before each use, so that a server may restart
    watch: dict[str, Any] = {"heartbeat_interval": HEARTBEAT_SECONDS, "grace_period": STALE_SECONDS}
    connect = partial(RDBStorage, url, engine, heartbeat_stale_trial_callback=on_stale, **watch)
    try:
        with without_warnings():
            try:
                return connect()
            except DatabaseError:  # two processes created the tables at the same time
                return connect()
    except (ArgumentError, NoSuchModuleError):
        example = "storage=postgresql://USER@HOST/DATABASE"
        raise UserError(f"storage={without_password(url)}: not a database URL. Write {example}.") from None
    except ImportError:
        kind = make_url(url).drivername
        advice = f"Run pip install '{DRIVERS[kind]}'" if kind in DRIVERS else f"Install one for {kind}"
        raise UserError(f"storage={without_password(url)}: no driver. {advice}.") from None
    except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
        raise UserError(f"storage={without_password(url)}: {short_reason(error)}.") from None


def fail_stale(study: optuna.Study) -> None:
    """Marks stale trials as failed, so that they are repeated."""
    with without_warnings():
        fail_stale_trials(study)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Context without Optuna's warnings that heartbeats are experimental and meant for its own loop."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage")
        yield


@contextmanager
def report_failure(url: str | None) -> Iterator[None]:
    """Context that reports a failing storage in one line.

    Raises:
        RunError: in place of Optuna's error.
    """
    try:
        yield
    except StorageInternalError as error:
        database = f"storage={without_password(url)}" if url else "study.db"
        advice = "The runs have saved. Repeat the command to resume the search."
        raise RunError(f"{database}: {short_reason(error)}. {advice}") from None


def without_password(url: str) -> str:
    """A URL without its password."""
    try:
        return make_url(url).render_as_string()
    except ArgumentError:
        return url


def short_reason(error: Exception) -> str:
    """A database's error message in one line."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    return " ".join(str(getattr(cause, "orig", None) or cause).split())


def process_id(out: Path) -> str:
    """Id of a search process, the same when it resumes: host and folder."""
    return f"{socket.gethostname()}:{out.resolve()}"
