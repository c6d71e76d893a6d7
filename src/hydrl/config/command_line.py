"""The command line around Hydra: a user's mistake is a line or two and exit code 2, never a traceback."""

import atexit
import errno
import os
import re
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import wraps
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypeVar, cast

from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydrl.config import CONFIGS, tuned, user_dirs
from hydrl.config.migrations import new_words
from hydrl.config.overrides import as_typed, key_of, plain, quoted, spelled_out, with_paths
from hydrl.config.suggestions import (
    CALLED,
    INSTEAD,
    NEEDED_GROUPS,
    instead,
    missing,
    no_such_choice,
    no_such_key,
    unresolved,
)
from hydrl.config.tree import choices, paths
from hydrl.errors import Interrupted, RunError, UserError, print_lines

UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS)
# Hydra's own, and what each may be followed by.
OPTIONS = dict.fromkeys(["--help", "--hydra-help", "--version", "--multirun", "--run", "--resolve"], "")
OPTIONS |= dict.fromkeys(["-h", "-m", "-r", "--shell-completion", "-sc", "--package", "-p"], "")
OPTIONS |= dict.fromkeys(["--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"], "")
OPTIONS |= dict.fromkeys(["--info", "-i"], "|all|config|defaults|defaults-tree|plugins|searchpath")
OPTIONS |= dict.fromkeys(["--cfg", "-c"], "job|hydra|all")
COMPLETION = {"--shell-completion", "-sc"}
DASHES, QUOTES = "\u2010\u2011\u2012\u2013\u2014\u2212", "\u2018\u2019\u201c\u201d"  # as web pages have them

T = TypeVar("T")

# Folders that were there before this process' run, among which its own may be.
_stood: set[Path] = set()


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
        with translated(lambda: sys.argv[1:]):
            sys.argv[1:] = understood(sys.argv[1:], expand)
            if not COMPLETION & set(sys.argv):
                sys.argv += tuned.beside(sys.argv[1:])
            with stopped_early():
                main()

    return told(work)


def understood(words: Sequence[str], expand: Callable[[Sequence[str]], list[str]]) -> list[str]:
    """The words that Hydra reads, of those that were typed, found to be none that it would misread.

    Args:
        words: as they were typed.
        expand: see :func:`run`.

    Raises:
        UserError: for one that it would.
    """
    spelled = spelled_out(expand(with_paths(new_words(words))))
    # Options first, with what belongs to them: Hydra reads none that stand among overrides.
    ordered = sorted(spelled, key=lambda word: word[:1] != "-" and bool(re.search("^~|=", word)))
    check_arguments(ordered)
    user_dirs.use(user_dirs.folders(ordered))
    remember_folders(ordered)
    return ordered


@contextmanager
def translated(words: Callable[[], Sequence[str]]) -> Iterator[None]:
    """What Hydra complains of, in one line.

    Args:
        words: gives those that it reads, as they are by then.

    Raises:
        UserError: in place of an error of Hydra's own.
    """
    try:
        yield
    except UserError:
        raise
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise UserError(translate(error, words())) from None
    except OSError as error:  # from Hydra's own work: what a job raises never gets here
        raise UserError(
            f"{error.filename or 'the run folder'} cannot be written: {error.strerror}; choose a folder "
            "with hydra.run.dir=DIR (hydra.sweep.dir=DIR with -m)"
        ) from None


def leave(code: int) -> NoReturn:
    """Ends the process at once, when all is written, with what libraries ask to be called at its end.

    Python would take PyTorch apart object by object, which takes a second and a half and frees what the
    system frees anyway.
    """
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    atexit._run_exitfuncs()
    os._exit(code)


def script(main: Callable[[list[str]], None], usage: str | None) -> int:
    """Calls a script's ``main`` with the words of the command line; the exit code."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(as_typed(usage or ""))
        return 0
    return told(lambda: main(sys.argv[1:]))


def told(work: Callable[[], None]) -> int:
    """Calls ``work`` and tells in a line what it raises that is no defect; the exit code."""
    try:
        work()
    except (UserError, RunError) as error:
        return complain(str(error), error.exit_code)
    except Interrupted as error:
        return error.exit_code
    except SystemExit as end:  # of a job or a sweep, which have told why
        return int(end.code or 0)
    except KeyboardInterrupt:
        return 130
    return 0


def job(train: Callable[[DictConfig], None]) -> Callable[[DictConfig], None]:
    """Makes a function Hydra's job: a failure is told here, as Hydra would tell it at length.

    Raises:
        SystemExit: with the exit code of a failure.
    """

    @wraps(train)
    def wrapper(cfg: DictConfig) -> None:
        keep_what_was_typed()
        try:
            train(cfg)
        except (UserError, RunError) as error:
            code = complain(str(error), error.exit_code)
        except (Interrupted, KeyboardInterrupt):
            remove_unused_folder()
            raise
        except SystemExit as error:  # of a task's own code, which must not look like a run that finished
            code = complain(f"the environment or a library ended the run by sys.exit({error.code!r})", 1)
        except Exception as error:
            code = 1
            if isinstance(error, OSError) and error.errno in UNWRITABLE:
                where = error.filename or "the run folder"
                complain(f"{where} cannot be written: {error.strerror}; what was saved before is intact")
            else:
                traceback.print_exc()
        else:
            return
        if code == 2:
            remove_unused_folder()
        raise SystemExit(code)

    return wrapper


def keep_what_was_typed() -> None:
    """Takes out of the words that Hydra has, which are those that a run folder keeps, what nobody typed."""
    hydra = HydraConfig.get()
    words = cast(list[str], OmegaConf.to_container(hydra.overrides.task, resolve=False))
    with read_write(hydra):
        hydra.overrides.task = tuned.typed(words)


def in_python(words: Sequence[str], expand: Callable[[Sequence[str]], list[str]]) -> DictConfig:
    """What Hydra makes of the words of a run that begins in somebody else's process.

    Hydra then knows of the run as if it had begun it. Arguments as of :func:`understood`.

    Raises:
        UserError: for words that are for the shell, or that Hydra cannot compose.
    """
    read = list(words)
    with translated(lambda: read):
        named, others = user_dirs.split(read)
        if option := next((each for each in others if each[:1] == "-"), None):
            raise UserError(f"{option}: options are for the command line; --config-dir=DIR is taken here too")
        read[:] = understood([*([user_dirs.searchpath(named)] if named else []), *others], expand)
        read += tuned.beside(read)
        cfg = tuned.composed(read, return_hydra_config=True)
        HydraConfig.instance().set_config(deepcopy(cfg))  # the choices made, for what is told of the folder
        with read_write(cfg), open_dict(cfg):
            cfg.hydra.runtime.output_dir = os.path.abspath(cfg.hydra.run.dir)
    HydraConfig.instance().set_config(cfg)
    keep_what_was_typed()
    with read_write(cfg), open_dict(cfg):
        del cfg["hydra"]
    return cfg


def remember_folders(arguments: Sequence[str]) -> None:
    """Keeps in mind which folders there are already, for :func:`remove_unused_folder`."""
    named = [
        each.partition("=")[2] for each in arguments if key_of(each) in ("hydra.run.dir", "hydra.sweep.dir")
    ]
    _stood.clear()
    for folder in (Path.cwd(), *(Path(plain(each)).absolute() for each in named)):
        _stood.update(each for each in (folder, *folder.parents) if each.is_dir())


def remove_unused_folder() -> None:
    """Takes away the empty folder that Hydra made for a run which did not begin, and those it lies in."""
    folder = Path(HydraConfig.get().runtime.output_dir)
    for each in (folder, *folder.parents):
        if each in _stood:
            return
        try:
            each.rmdir()
        except OSError:  # it holds something
            return


@contextmanager
def stopped_early() -> Iterator[None]:
    """Ctrl-C and SIGTERM end what has not begun, and say so; a run takes them over before its loop."""

    def end(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_DFL)  # another one kills
        os.write(2, b"\nstopped before the first batch; nothing new was saved\n")
        raise Interrupted(signum)

    previous = {each: signal.signal(each, end) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


def complain(message: str, code: int = 2) -> int:
    """Prints what is no defect, as a user's mistake; the exit code for it."""
    print_lines(f"error: {as_typed(message)}", sys.stderr)
    return code


def read(kind: type[T], words: list[str], example: str) -> T:
    """``key=value`` words to a script's arguments.

    Args:
        kind: a dataclass of the keys with their types and defaults.
        words: of the command line.
        example: shown to who leaves the ``=`` out.

    Raises:
        UserError: for an unknown key or a wrong type.
    """
    arguments = OmegaConf.structured(kind)
    for word in words:
        key, equals, value = word.partition("=")
        if "trust" in kind.__annotations__ and user_dirs.folders([word]):
            raise UserError(f"{word}: the run remembers its folders; write trust=true, which takes them")
        if not equals:
            raise UserError(f"{word}: write key=value, as {example}")
        if key not in kind.__annotations__:
            raise UserError(no_such_key(key, value, dict.fromkeys(kind.__annotations__)))
        try:
            if kind.__annotations__[key] is str:  # a folder's name may hold what YAML reads otherwise
                arguments[key] = plain(value)
            else:
                arguments.merge_with_dotlist([word])
            OmegaConf.resolve(arguments)
        except (OmegaConfBaseException, YAMLError) as error:
            raise UserError(f"{word}: {str(error).splitlines()[0]}") from None
    if missing := sorted(OmegaConf.missing_keys(arguments)):
        raise UserError(f"{missing[0]} has no value; give one, as {example}")
    return cast(T, OmegaConf.to_object(arguments))


def check_arguments(arguments: Sequence[str]) -> None:
    """What Hydra would pass over in silence, or answer at length.

    Raises:
        UserError: for an option Hydra does not have, an empty folder, and tuned numbers that are not there.
    """
    # Optional in configs/train.yaml, so that Hydra would miss none.
    files = [name for each in (CONFIGS, *user_dirs.folders(arguments)) for name in choices(each / "tuned")]
    check_options(arguments)
    for word in arguments:
        key, _, value = word.partition("=")
        if not re.search(r"\w", key):
            raise UserError(f"cannot read {word}; write KEY=VALUE, without blanks")
        if key in ("hydra.run.dir", "hydra.sweep.dir") and not value:
            raise UserError(f"{word} names no folder; write {key}=DIR")
        if key == "run_dir":  # which would be another than Hydra's
            raise UserError(f"{word}: it follows from hydra.run.dir; write hydra.run.dir={value or 'DIR'}")
        if key in NEEDED_GROUPS and value.startswith("["):
            several = value.strip("[]")
            raise UserError(
                f"{word}: a run has one; write {key}=CHOICE, or -m {key}={several} to run them all"
            )
        if key in ("~algo", "~env", "~loss", "~collector", "~optim"):
            raise UserError(missing(key[1:]))
        if (CONFIGS / key).is_dir() and re.fullmatch(r"true|false|\d+", value, re.IGNORECASE):
            raise UserError(no_such_choice(key, value, choices(CONFIGS / key)))
        if (CONFIGS / key).is_dir() and value.endswith((".yaml", ".yml")):  # which no tuned numbers are for
            name = value.rpartition(".")[0].removeprefix("configs/").removeprefix(f"{key}/")
            raise UserError(f"{word}: a choice is named without its folder and ending; write {key}={name}")
        if key.lstrip("+") == "search":
            raise UserError(f"{word}: a search is made by python scripts/search.py, as search={value}")
        if key == "tuned" and value not in files and re.fullmatch(r"[\w/]+", value):
            raise UserError(no_such_choice(key, value, files))


def check_options(arguments: Sequence[str]) -> None:
    """What is typed as an option is one, with what belongs to it.

    Raises:
        UserError: if it is not.
    """
    for word, following in pairwise([*arguments, ""]):
        key, equals, value = word.partition("=")
        if key[:1] in (*DASHES,) or (key[:1] == "-" and set(key) & set(DASHES)):
            name = key.strip(DASHES + "-")
            wanted = f"{'-' if len(name) < 3 else '--'}{name}{equals}{value}"
            raise UserError(f"{word}: its dash is not that of the keyboard; write {wanted}")
        if key[:1] != "-":
            continue
        if key not in OPTIONS:
            raise UserError(no_such_option(word, following))
        given = value if equals else following
        if able := OPTIONS[key]:
            if given not in able.split("|"):
                advice = able.strip("|").replace("|", ", ")
                raise UserError(f"{key} {given}: it is followed by one of {advice}")
        elif key in ("--config-dir", "-cd") and not (given and Path(given).is_dir()):
            told = f"{key}={given}: there is no such folder" if given else f"{key} names no folder"
            raise UserError(f"{told}; write --config-dir=DIR, of one that holds actor/, env/ or the like")
        elif key in ("--config-name", "-cn", "--config-path", "-cp"):
            raise UserError(f"{word}: leave it out; --config-dir=DIR adds files of your own")
        elif equals and key in ("--help", "-h", "--multirun", "-m"):
            raise UserError(f"{word}: it takes no value; write {key}")


def no_such_option(word: str, following: str) -> str:
    """What was meant by an option as other libraries have it, ``--total-timesteps 1000``."""
    key, equals, value = word.partition("=")
    name = key.strip("-").replace("-", "_")
    if not equals:
        value = following if re.match(r"[^-=][^=]*$", following) else "VALUE"
    meant = next((each for each, names in CALLED.items() if name in (each, *names.split())), "")
    example = f", as {meant}={value}" if meant else ""
    return f"{word}: there is no such option; write key=value{example}, and see --help"


def unreadable(word: str) -> str:
    """A word that Hydra cannot read, with what may have been meant."""
    key, equals, value = word.partition("=")
    line = f"cannot read {word or chr(39) * 2}; write KEY=VALUE, without blanks, and quote what has brackets"
    files = [each for each in CONFIGS.glob(f"*/{word}.yaml") if word.isidentifier()]
    if word in ("help", "version"):
        return f"{word}: write --{word}"
    if groups := sorted({each.parent.name for each in files} - {"search"}):
        return f"{word}: write {' or '.join(f'{each}={word}' for each in groups)}"
    if not equals or not re.fullmatch(r"[+~]*[\w./@-]+", key):
        return line if equals else f"{line}; for the shell quote all of a word with blanks, 'KEY=A VALUE'"
    if key in INSTEAD:
        return no_such_key(key, value, {})
    if set(value) & set(QUOTES):
        plainly = re.sub(f"[{QUOTES}]", "", value)
        return f"cannot read {word}: its quotes are not those of the keyboard; write '{key}={plainly}'"
    if numbers := re.fullmatch(r"[\[({][\d\s,;]*[\])}]?", value) and re.findall(r"\d+", value):
        return f"{line}; a list is '{key}=[{','.join(numbers)}]'"
    if re.search(r"\w.*[][=#(){}'\"]|[][=#(){}'\"].*\w", value) and not re.match(r"\w+\(.*\)$|.*\$", value):
        whole = f"{key}={quoted(value)}"
        return f"{line}, as " + (shlex.quote(whole) if set(whole) & set('"\\`!') else f'"{whole}"')
    return line


def translate(error: Exception, arguments: Sequence[str]) -> str:
    """Hydra's complaint in one line, with what was meant where it is a name."""
    text = " ".join(str(error).split()).partition(" Config search path")[0].partition(" full_key")[0]
    if isinstance(error, OverrideParseException):
        return unreadable(error.override or "")
    if isinstance(error, OmegaConfBaseException):
        return unresolved(error)
    if found := re.match(r"Could not override '(\S+?)'\. To append to your config use \+[^=]+=(.*)", text):
        return no_such_key(found[1], found[2], composed(arguments))
    if found := re.match(r"Could not override '(\S+?)'\. Did you mean to override (?:one of )?(.+)\?", text):
        said = next((each for each in arguments if key_of(each) == found[1]), "").partition("=")[2]
        offered = " or ".join(f"{each}={said}" for each in found[2].split(", "))
        return f"{found[1]}={said}: there is no such group; did you mean {offered}?"
    if found := re.search(r"(?:Multiple values for |not supported: '\++)([^\s.=]+)", text):
        return f"+{found[1]}: it is chosen already; leave out the +, as {found[1]}=CHOICE"
    if text.startswith("Config group override must be"):
        meant = re.compile(r"[\w/]+=" + (r".*\bnull\b.*" if text.endswith("NoneType") else r"\d.*"))
        word = next((each for each in arguments if meant.fullmatch(each)), "")
        if not text.endswith("NoneType"):
            return f"{word}: there is no such choice"
        return f"{word}: a sweep cannot leave a group out; make a run of {key_of(word)}=null by itself"
    if found := re.match(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", text):
        if re.search(r"=[1-9]\d{0,2}(,\d{3})+$", found[1]):  # thousands and decimals with a comma
            return f"{found[1]}: more than one value; write {found[1].replace(',', '_')}"
        if re.search(r"=0,\d+$", found[1]):
            return f"{found[1]}: more than one value; write {found[1].replace(',', '.')}"
        return f"{found[1]}: more than one value; write [VALUE,VALUE] for a list, or add -m to run them all"
    if "Cannot merge" in str(error.__cause__) and (
        found := re.match(r"Error merging override ([^\s=]+)(=\S*)", text)
    ):
        return f"{found[1]}{found[2]}: it is a group of keys; set one of them, as {found[1]}.KEY=VALUE"
    if found := re.match(r"Could not delete from config\. '(\S+)'", text):
        return f"~{found[1]}: there is no such key{instead(found[1], list(paths(composed(arguments))))}"
    if found := re.search(r"Could not (?:find|load) '((?:hydra/)?[^/']+)/([^']*?)'", text):
        group, choice = found[1], found[2]
        able = text.partition("Available options in ")[2].split()[1:] or choices(CONFIGS / group)
        typed = (key_of(each) for each in arguments if each.endswith(f"={choice}"))
        return no_such_choice(next((each for each in typed if "@" in each), group), choice, able)
    return f"{text}: {str(error.__cause__).splitlines()[0]}" if error.__cause__ else text


def composed(arguments: Sequence[str]) -> dict[str, Any]:
    """What a wrong key is looked for in: the choices of a command line, and none of its values."""
    plain = [each for each in arguments if re.fullmatch(r"~?[\w/]+(=[\w./-]+)?", each)]
    chosen = [each for each in plain if (CONFIGS / key_of(each)).is_dir()]
    chosen.append(user_dirs.searchpath(user_dirs.folders(arguments)))
    try:
        cfg = tuned.composed(chosen, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, ValueError):
        return {}
    return cast(dict[str, Any], OmegaConf.to_container(cfg))
