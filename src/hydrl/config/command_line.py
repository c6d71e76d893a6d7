"""The command line around Hydra: a user's mistake is one message and exit code 2, never a traceback."""

import atexit
import errno
import gc
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydrl.config import settings, tuned, user_dirs
from hydrl.config.hydra_errors import HYDRA_ERRORS, check_arguments, find_all_mistakes, translate
from hydrl.config.migrations import new_words
from hydrl.config.overrides import (
    current_command,
    expand_shorthands,
    key_of,
    localize_commands,
    new_command,
    quote_paths,
    unquote_path,
)
from hydrl.config.suggestions import no_such_key
from hydrl.errors import ConfigError, Interrupted, RunError, UserError, print_lines, warnings_of_one_run

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
COMPLETION = {"--shell-completion", "-sc"}

T = TypeVar("T")


def run(main: Callable[[], Any], expand: Callable[[Sequence[str]], list[str]] = list) -> int:
    """Calls Hydra's ``main`` and turns what comes of it into an exit code.

    Args:
        main: decorated by ``hydra.main``.
        expand: makes the command line that Hydra reads of the one that was typed.

    Returns:
        0 if all that Hydra was asked for was done, 2 for a user's mistake, 128 + signal when interrupted,
        and else what :func:`job` or a sweep ended with.
    """
    # Hydra's complaints arrive here instead of ending in its own exit(1).
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv[0] = os.environ.get("HYDRL_COMMAND", sys.argv[0])  # by which Hydra installs completion

    def work() -> None:
        if "--version" in sys.argv[1:]:
            return print(f"hydrl {version('hydrl')}")
        with new_command() as command, translated_errors(lambda: sys.argv[1:]):
            sys.argv[1:] = prepare_words(sys.argv[1:], expand)
            if not COMPLETION & set(sys.argv):
                command.added = tuned.find_added_words(sys.argv[1:])
                sys.argv += command.added
            with exit_on_signal():
                main()

    return exit_code(work)


def prepare_words(words: Sequence[str], expand: Callable[[Sequence[str]], list[str]]) -> list[str]:
    """The words that Hydra reads, checked for what it would misread.

    Args:
        words: as they were typed.
        expand: see :func:`run`.

    Raises:
        UserError: for one that it would.
    """
    spelled = expand_shorthands(expand(quote_paths(new_words(words))))
    # Options first, with what belongs to them: Hydra reads none that stand among overrides.
    ordered = sorted(spelled, key=lambda word: word[:1] != "-" and bool(re.search("^~|=", word)))
    check_arguments(ordered)
    user_dirs.add_folders(user_dirs.named_folders(ordered))
    remember_existing_folders(ordered)
    return ordered


@contextmanager
def translated_errors(words: Callable[[], Sequence[str]]) -> Iterator[None]:
    """Turns Hydra's errors into one message.

    Args:
        words: gives those that it reads, as they are by then.

    Raises:
        UserError: in place of an error of Hydra's own.
    """
    try:
        yield
    except UserError:
        raise
    except HYDRA_ERRORS as error:
        translation = translate(error, words())
        if isinstance(translation, ConfigError):
            translation = find_all_mistakes(translation, words(), settings.check_composed)
        raise translation from None
    except OSError as error:  # from Hydra's own work: what a job raises never gets here
        raise UserError(
            f"{error.filename or 'the run folder'} cannot be written: {error.strerror}. Choose a folder "
            "with hydra.run.dir=DIR (hydra.sweep.dir=DIR with -m)."
        ) from None


def exit_process(code: int) -> NoReturn:
    """Ends the process at once, when all is written, with what libraries ask to be called at its end.

    Python would take PyTorch apart object by object, which takes a second and a half and frees what the
    system frees anyway.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    gc.disable()  # what is imported at the end, as by Ray, would have everything searched for garbage
    atexit._run_exitfuncs()
    os._exit(code)


def script(main: Callable[[list[str]], None], usage: str | None) -> int:
    """Calls a script's ``main`` with the words of the command line; the exit code."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(localize_commands(usage or ""))
        return 0

    def work() -> None:
        try:
            main(sys.argv[1:])
        except KeyboardInterrupt:
            print_lines("\nstopped by Ctrl-C", sys.stderr)
            raise

    return exit_code(work)


def exit_code(work: Callable[[], None]) -> int:
    """The exit code of ``work``; a user's mistake or a failed run is printed as one message."""
    try:
        with warnings_of_one_run():
            work()
    except (UserError, RunError) as error:
        return print_error(str(error), error.exit_code)
    except Interrupted as error:
        return error.exit_code
    except SystemExit as end:  # of a job or a sweep, which have told why
        return int(end.code or 0)
    except KeyboardInterrupt:
        return 130
    return 0


def job(train: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Makes a function Hydra's job, whose failures are printed as one message instead of Hydra's traceback.

    Raises:
        SystemExit: with the exit code of a failure.
    """

    @wraps(train)
    def wrapper(cfg: DictConfig) -> None:
        if "torch" not in sys.modules:
            gc.disable()  # importing it makes much and no garbage; process.prepare turns it on again
        drop_added_words()
        try:
            with warnings_of_one_run():
                train(cfg)
        except (UserError, RunError) as error:
            code = print_error(str(error), error.exit_code)
        except (Interrupted, KeyboardInterrupt):
            remove_unused_folder()
            raise
        except SystemExit as error:  # of a task's own code, which must not look like a run that finished
            code = print_error(f"the environment or a library ended the run by sys.exit({error.code!r})", 1)
        except Exception as error:
            code = 1
            if isinstance(error, OSError) and error.errno in UNWRITABLE:
                print_error(explain_unwritable(error, Path(HydraConfig.get().runtime.output_dir)))
            else:
                traceback.print_exc()
        else:
            return
        if code == 2:
            remove_unused_folder()
        raise SystemExit(code)

    return wrapper


def explain_unwritable(error: OSError, run: Path) -> str:
    """The message for a file that cannot be written; whether earlier checkpoints of the run are intact."""
    is_saved = any((run / "checkpoints").glob("checkpoint-*.torchrl"))
    intact = " What was saved before is intact." * is_saved
    return f"{error.filename or 'the run folder'} cannot be written: {error.strerror}.{intact}"


def drop_added_words() -> None:
    """Removes what nobody typed from Hydra's overrides, which the run folder keeps."""
    hydra = HydraConfig.get()
    words = cast(list[str], OmegaConf.to_container(hydra.overrides.task, resolve=False))
    with read_write(hydra):
        hydra.overrides.task = current_command().typed(words)


def compose_for_python(words: Sequence[str], expand: Callable[[Sequence[str]], list[str]]) -> DictConfig:
    """Hydra's configuration for a run inside another program, as a notebook.

    HydraConfig is set as if Hydra had started it. Call it inside of
    :func:`~hydrl.config.overrides.new_command`, with arguments as of :func:`prepare_words`.

    Raises:
        UserError: for words that are for the shell, or that Hydra cannot compose.
    """
    read = list(words)
    with translated_errors(lambda: read):
        named, others = user_dirs.split_folders(read)
        if option := next((word for word in others if word[:1] == "-"), None):
            raise UserError(
                f"{option}: options are for the command line, but for --config-dir=DIR. Leave it out."
            )
        read[:] = prepare_words([*([user_dirs.searchpath(named)] if named else []), *others], expand)
        current_command().added = tuned.find_added_words(read)
        read += current_command().added
        cfg = tuned.compose_run(read, return_hydra_config=True)
        HydraConfig.instance().set_config(deepcopy(cfg))  # the choices made, for what is told of the folder
        with read_write(cfg), open_dict(cfg):
            cfg.hydra.runtime.output_dir = os.path.abspath(cfg.hydra.run.dir)
    HydraConfig.instance().set_config(cfg)
    drop_added_words()
    with read_write(cfg), open_dict(cfg):
        del cfg["hydra"]
    return cfg


def remember_existing_folders(arguments: Sequence[str]) -> None:
    """Remembers which folders exist, for :func:`remove_unused_folder`."""
    named = [
        word.partition("=")[2] for word in arguments if key_of(word) in ("hydra.run.dir", "hydra.sweep.dir")
    ]
    folders = current_command().folders
    for folder in (Path.cwd(), *(Path(unquote_path(name)).absolute() for name in named)):
        folders.update(parent for parent in (folder, *folder.parents) if parent.is_dir())


def remove_unused_folder() -> None:
    """Removes the empty folder of a run that did not begin, and those that Hydra made around it."""
    remove_empty_folders(Path(HydraConfig.get().runtime.output_dir))


def remove_empty_folders(folder: Path) -> None:
    """Removes an empty folder and the empty ones around it, but those that existed before the command."""
    for parent in (folder, *folder.parents):
        if parent in current_command().folders:
            return
        try:
            parent.rmdir()
        except OSError:  # it holds something
            return


@contextmanager
def exit_on_signal() -> Iterator[None]:
    """Ctrl-C and SIGTERM end what has not begun, and say so; a run takes them over before its loop."""

    def end(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)  # another one kills
        os.write(2, b"\nstopped before the first batch; nothing new was saved\n")
        raise Interrupted(signum)

    previous = {signum: signal.signal(signum, end) for signum in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signum, handler in previous.items():
            signal.signal(signum, handler)


def print_error(message: str, code: int = 2) -> int:
    """Prints an error message; returns the exit code."""
    print_lines(f"error: {localize_commands(message)}", sys.stderr)
    return code


def read_arguments(kind: type[T], words: list[str], example: str) -> T:
    """``key=value`` words to a script's arguments.

    Args:
        kind: a dataclass of the keys with their types and defaults.
        words: of the command line.
        example: shown to who leaves the ``=`` out.

    Raises:
        ConfigError: for unknown keys and wrong types.
        UserError: for a word without ``=``, and a required key without a value.
    """
    arguments, mistakes = OmegaConf.structured(kind), dict[str, str]()
    for word in words:
        key, equals, value = word.partition("=")
        if "trust" in kind.__annotations__ and user_dirs.named_folders([word]):
            raise UserError(f"{word}: the run remembers its folders. Write trust=true, which takes them.")
        if not equals:
            is_run = "run" in kind.__annotations__ and Path(word).is_dir()
            advice = f"run={word}" if is_run else f"KEY=VALUE, such as {example}"
            raise UserError(f"{word}: no value. Write {advice}.")
        if key not in kind.__annotations__:
            mistakes[key] = no_such_key(key, value, dict.fromkeys(kind.__annotations__))
            continue
        try:
            if kind.__annotations__[key] is str:  # a folder's name may hold what YAML reads otherwise
                arguments[key] = unquote_path(value)
            else:
                arguments.merge_with_dotlist([word])
            OmegaConf.resolve(arguments)
        except (OmegaConfBaseException, YAMLError) as error:
            mistakes[key] = f"{word}: {str(error).splitlines()[0]}."
    if mistakes:
        raise ConfigError(mistakes)
    if missing := sorted(OmegaConf.missing_keys(arguments)):
        raise UserError(f"{missing[0]}: no value. Write {missing[0]}=VALUE, such as {example}.")
    return cast(T, OmegaConf.to_object(arguments))
