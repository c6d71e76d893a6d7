"""Where the trials of a search are kept: a file in its folder, or a server, which several machines share."""

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

ALIVE = 30  # seconds between two signs of life of a trial
GIVEN_UP = 300  # seconds without one after which others make the trial
DRIVERS = {"postgresql": "psycopg[binary]", "mysql": "mysqlclient", "mysql+pymysql": "pymysql"}


def opened(url: str | None, out: Path, given_up: Callable[[optuna.Study, FrozenTrial], None]) -> RDBStorage:
    """Opens the storage of a search.

    Args:
        url: of a server's database; ``None`` takes ``study.db`` in the search's folder.
        out: that folder.
        given_up: called with a trial of a process of which nothing is heard any more.

    Raises:
        UserError: where there is no such database, or no driver for it.
    """
    if url is None:
        return RDBStorage(f"sqlite:///{out / 'study.db'}")
    engine = {"pool_pre_ping": True}  # tried before each use, so that a server may begin anew
    watch: dict[str, Any] = {"heartbeat_interval": ALIVE, "grace_period": GIVEN_UP}
    connect = partial(RDBStorage, url, engine, heartbeat_stale_trial_callback=given_up, **watch)
    try:
        with without_warnings():
            try:
                return connect()
            except DatabaseError:  # of two that make the tables at the same time one fails
                return connect()
    except (ArgumentError, NoSuchModuleError):
        example = "storage=postgresql://USER@HOST/DATABASE"
        raise UserError(f"storage={shown(url)} is no database's URL; write {example}") from None
    except ImportError:
        kind = make_url(url).drivername
        driver = f"pip install '{DRIVERS[kind]}'" if kind in DRIVERS else f"a driver of {kind} for Python"
        raise UserError(f"storage={shown(url)} needs {driver}") from None
    except (SQLAlchemyError, StorageInternalError, RuntimeError) as error:
        raise UserError(f"storage={shown(url)}: {reason(error)}") from None


def give_up(study: optuna.Study) -> None:
    """Takes trials of which nothing is heard any more for failed, so that they are made again."""
    with without_warnings():
        fail_stale_trials(study)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Optuna says of signs of life that they are experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        yield


@contextmanager
def told(url: str | None) -> Iterator[None]:
    """A storage that fails in the block, in a line.

    Raises:
        RunError: in place of Optuna's error.
    """
    try:
        yield
    except StorageInternalError as error:
        place = f"storage={shown(url)}" if url else "study.db"
        raise RunError(
            f"{place}: {reason(error)}; what the runs saved is whole, and the same command goes on"
        ) from None


def shown(url: str) -> str:
    """A URL without its password."""
    try:
        return make_url(url).render_as_string()
    except ArgumentError:
        return url


def reason(error: Exception) -> str:
    """What a database said, in a line."""
    cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ else error
    return " ".join(str(getattr(cause, "orig", None) or cause).split())


def process(out: Path) -> str:
    """By what a search on one of several machines is known, now and when it goes on."""
    return f"{socket.gethostname()}:{out.resolve()}"
