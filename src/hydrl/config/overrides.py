"""Overrides on the command line, ``key=value``, and the commands before them."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString, Sweep
from hydra.errors import HydraException

from hydrl.config import CONFIGS, ROOT
from hydrl.errors import UserError

# Keys that name a folder, and those of them that a sweep may name several for.
PATHS = ("hydra.run.dir", "hydra.sweep.dir", "resume", "init_from", "init_from.run", "data.path", "out")
SWEPT_PATHS = ("init_from", "init_from.run", "data.path")
# Keys that no file need have and that are typed as any other: without Hydra's + for a new one.
OPTIONAL_KEYS = r"env\.(wrappers|info_keys|observe|weights)\b|encoder\.\w+="


@dataclass
class Command:
    """The command that runs in this process.

    Attributes:
        added: its overrides that nobody typed, such as a tuned preset.
        folders: folders that existed before it began.
    """

    added: list[str] = field(default_factory=list)
    folders: set[Path] = field(default_factory=set)

    def typed(self, overrides: Iterable[str]) -> list[str]:
        """The overrides that somebody typed."""
        return [override for override in overrides if override not in self.added]


COMMAND: ContextVar[Command | None] = ContextVar("command", default=None)


@contextmanager
def new_command() -> Iterator[Command]:
    """A command's :class:`Command`, which :func:`current_command` returns until it ends."""
    token = COMMAND.set(command := Command())
    try:
        yield command
    finally:
        COMMAND.reset(token)


def current_command() -> Command:
    """The running command; an empty one outside of :func:`new_command`."""
    return COMMAND.get() or Command()


def localize_commands(text: str) -> str:
    """A text with its commands as they work here: ``hydrl search`` for ``python scripts/search.py``."""
    if command := os.environ.get("HYDRL_COMMAND"):  # of hydrl.__main__
        text = re.sub(r"python scripts/(\w+)\.py", rf"{command} \1", text)
        return text.replace("python train.py", command)
    at = os.path.relpath(ROOT)
    return text if at == "." else re.sub(r"python ((scripts/\w+|train)\.py)", rf"python {at}/\1", text)


def key_of(override: str) -> str:
    """``+optim.lr=1`` to ``optim.lr``."""
    return override.partition("=")[0].lstrip("+~")


def typed_words() -> list[str]:
    """Overrides of this process's run as they were typed; none before Hydra has started one."""
    return list(HydraConfig.get().overrides.task) if HydraConfig.initialized() else []


def words_to_repeat(words: Sequence[str], folder: Path) -> list[str]:
    """Overrides that repeat the run of a folder: without ``resume`` of itself; a fork needs a new folder."""
    sources = [word.partition("=")[2].strip("'\"") for word in words if key_of(word) == "resume"]
    folders = [Path(source.partition("/checkpoints/")[0]) for source in sources if source != "auto"]
    if any(folder.resolve().parts[-len(path.parts) :] != path.parts for path in folders):
        return [*words, "hydra.run.dir=FOLDER"]
    return [word for word in words if key_of(word) != "resume"]


def chosen_options() -> Mapping[str, str]:
    """The option of each group in this process's run; none before Hydra has started one."""
    return HydraConfig.get().runtime.choices if HydraConfig.initialized() else {}


def quoted(path: Path | str) -> str:
    """A path as Hydra reads it back, whatever is in it."""
    return QuotedString(str(path), Quote.single).with_quotes()


def to_override(value: Any, key: str) -> str:
    """A Python value as it is typed after ``KEY=``.

    Raises:
        UserError: for what no configuration can hold.
    """
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str | Path):
        text = str(value)
        return text if parse_value(text) == text else quoted(text)
    if isinstance(value, list | tuple | range):
        return f"[{','.join(to_override(part, key) for part in value)}]"
    if isinstance(value, Mapping):
        return f"{{{','.join(f'{name}:{to_override(part, key)}' for name, part in value.items())}}}"
    if hasattr(value, "tolist"):  # of NumPy or PyTorch, a number or an array of them
        return to_override(value.tolist(), key)
    if isinstance(value, int | float):
        return repr(value)
    raise UserError(f"{key}={value!r}: give a number, text, true or false, or a list or dictionary of them")


def run_folder_of(named: Path | str) -> Path:
    """The run folder of a run folder or checkpoint."""
    path = Path(named)
    return path.parent.parent if path.suffix == ".torchrl" else path


def is_forked(resume: str | None, run_dir: Path | str) -> bool:
    """Whether a run continues in another folder than its own."""
    return resume not in (None, "auto") and run_folder_of(resume).resolve() != Path(run_dir).resolve()


def parse_value(value: str) -> Any:
    """A value as Hydra parses it; ``None`` if it cannot."""
    try:
        return OverridesParser.create().parse_override(f"key={value}").value()
    except HydraException:
        return None


def unquote_path(value: str) -> str:
    """A folder as it was typed, with or without the quotes that Hydra may ask for; ``~`` is home."""
    read = value if os.path.exists(value) else parse_value(value)
    return os.path.expanduser(read if isinstance(read, str) else value)


def quote_paths(arguments: Sequence[str]) -> list[str]:
    """A command line with home in place of ``~``, and quotes around each folder that Hydra needs them for.

    So whatever a folder is called, it is typed as for any other program.
    """
    return [quote_path(word, several="-m" in arguments or "--multirun" in arguments) for word in arguments]


def quote_path(word: str, *, several: bool = False) -> str:
    """See :func:`quote_paths`; ``several``: commas separate values of :data:`SWEPT_PATHS`."""
    key, _, value = word.partition("=")
    if key in ("--config-dir", "-cd"):
        return f"{key}={os.path.expanduser(value)}" if value else word
    if key.lstrip("+") not in PATHS or not value or value == "null":
        return word
    read, folder = parse_value(value), unquote_path(value)
    swept = several and key in SWEPT_PATHS and isinstance(read, Sweep)
    if swept or read == folder:
        return word
    return f"{key}={folder if parse_value(folder) == folder else quoted(folder)}"


def expand_shorthands(arguments: Sequence[str]) -> list[str]:
    """As Hydra has it what is typed shorter, and all else as it is.

    ``GROUP=none`` and ``GROUP=null`` are ``~GROUP``; ``logger.KEY`` is that of the one logger there is;
    ``init_from=DIR`` is ``init_from.run=DIR``, ``actor.rnn.KEY`` is ``rnn.KEY``; a new key of
    :data:`OPTIONAL_KEYS` is added.
    """
    added = [re.sub(rf"^(?={OPTIONAL_KEYS})", "++", argument) for argument in arguments]
    added = [re.sub(r"^(\+*)actor\.rnn\.", r"\1rnn.", word) for word in added]
    assignments = [re.sub("^init_from=", "init_from.run=", word).partition("=") for word in added]
    logger = {key: value for key, _, value in assignments}.get("logger", "")
    if re.fullmatch(r"\w+", logger) and (CONFIGS / "logger" / f"{logger}.yaml").is_file():
        own = rf"(\+*logger)\.(?!{logger}\.)"
        assignments = [
            (re.sub(own, rf"\1.{logger}.", key), equals, value) for key, equals, value in assignments
        ]
    return [
        f"~{key}" if value in ("none", "null") and (CONFIGS / key).is_dir() else f"{key}{equals}{value}"
        for key, equals, value in assignments
    ]
