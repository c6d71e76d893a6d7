"""What Hydra would misread, pass over or answer at length, each as one line."""

import re
import shlex
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from hydrl.config import CONFIGS, tuned, user_dirs
from hydrl.config.overrides import OPTIONAL_KEYS, key_of, quoted
from hydrl.config.ranges import take_limits
from hydrl.config.suggestions import (
    REQUIRED_GROUPS,
    advise_key,
    env_words,
    explain_missing,
    explain_unresolved,
    join_or,
    no_such_choice,
    no_such_key,
    read_advice,
    translate_alias,
)
from hydrl.config.tree import find, option_names, paths, read_option
from hydrl.errors import ConfigError, UserError

# Hydra's options, and the words that each may be followed by.
OPTIONS = dict.fromkeys(["--help", "--hydra-help", "--version", "--multirun", "--run", "--resolve"], "")
OPTIONS |= dict.fromkeys(["-h", "-m", "-r", "--shell-completion", "-sc", "--package", "-p"], "")
OPTIONS |= dict.fromkeys(["--config-path", "-cp", "--config-name", "-cn", "--config-dir", "-cd"], "")
OPTIONS |= dict.fromkeys(["--info", "-i"], "|all|config|defaults|defaults-tree|plugins|searchpath")
OPTIONS |= dict.fromkeys(["--cfg", "-c"], "job|hydra|all")
HYDRA_ERRORS = (HydraException, OmegaConfBaseException, YAMLError, ValueError)


def find_all_mistakes(
    error: ConfigError, arguments: Sequence[str], check: Callable[[DictConfig], Any]
) -> ConfigError:
    """The unknown keys and wrong values of a command line, of which ``error`` has the first.

    Args:
        error: of the whole command line.
        arguments: its words.
        check: raises the error of what Hydra composed.
    """
    lines, left = dict(error.lines), [*arguments]
    while True:
        wrong = [word for word in left if sets_key(word) and any(overlap(key_of(word), key) for key in lines)]
        left = [word for word in left if word not in wrong]
        if not wrong or not any(sets_key(word) for word in left):
            return ConfigError(lines)
        try:
            check(tuned.compose_run([*left, "run_dir=unused"]))
            return ConfigError(lines)
        except ConfigError as others:
            lines |= others.lines
        except UserError:  # of what does not go together, and may without what is left out
            return ConfigError(lines)
        except HYDRA_ERRORS as others:
            translated = translate(others, left)
            if not isinstance(translated, ConfigError):
                return ConfigError(lines)
            lines |= translated.lines


def overlap(key: str, other: str) -> bool:
    """Whether two dotted keys are the same, or one lies within the other."""
    return key == other or key.startswith(f"{other}.") or other.startswith(f"{key}.")


def sets_key(word: str) -> bool:
    """Whether a word sets a key of the run, and chooses no option."""
    key = key_of(word).partition("@")[0]
    return (
        "=" in word and key.partition(".")[0] != "hydra" and not (CONFIGS / key).is_dir() and key != "run_dir"
    )


def translate(error: Exception, arguments: Sequence[str]) -> UserError:
    """Hydra's error in one line, with what to write where a name is unknown."""
    text = " ".join(str(error).split()).partition(" Config search path")[0].partition(" full_key")[0]
    if isinstance(error, OverrideParseException):
        return UserError(explain_unreadable(error.override or ""))
    if isinstance(error, OmegaConfBaseException):
        return UserError(explain_unresolved(error))
    if match := re.match(r"Could not override '(\S+?)'\. To append to your config use \+[^=]+=(.*)", text):
        return ConfigError({match[1]: no_such_key(match[1], match[2], compose_options(arguments))})
    if match := re.match(r"Could not delete from config\. '(\S+)'", text):
        known = list(paths(compose_options(arguments)))
        text = advise_key(match[1], "", known).replace("Write ", "Write ~").replace("=", "")
        return ConfigError({match[1]: f"~{match[1]}: no such key. {text}."})
    return UserError(explain_error(error, text, arguments))


def explain_error(error: Exception, text: str, arguments: Sequence[str]) -> str:
    """See :func:`translate`; of what is no unknown key."""
    if match := re.match(r"Could not override '(\S+?)'\. Did you mean to override (?:one of )?(.+)\?", text):
        value = next((word for word in arguments if key_of(word) == match[1]), "").partition("=")[2]
        groups = join_or(f"{group}={value}" for group in match[2].split(", "))
        return f"{match[1]}={value}: no such group. Write {groups}."
    if match := re.search(r"(?:Multiple values for |not supported: '\++)([^\s.=]+)", text):
        return f"+{match[1]}: an option is chosen already. Leave out the +, as {match[1]}=OPTION."
    if text.startswith("Config group override must be"):
        is_null = text.endswith("NoneType")
        pattern = re.compile(r"[\w/]+=" + (r".*\bnull\b.*" if is_null else r"\d.*"))
        word = next((word for word in arguments if pattern.fullmatch(word)), "")
        if is_null:
            return f"{word}: a sweep cannot leave a group out. Start {key_of(word)}=null as a run by itself."
        return f"{word}: no such option. --help lists the options of each group."
    if match := re.match(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", text):
        advice = "[VALUE,VALUE] for a list, or add -m to run them all"
        if match[1].startswith("seed="):
            advice = f"-m {shlex.quote(match[1])} to run them all"
        elif re.search(r"=[1-9]\d{0,2}(,\d{3})+$", match[1]):  # thousands and decimals with a comma
            advice = match[1].replace(",", "_")
        elif re.search(r"=0,\d+$", match[1]):
            default = find(compose_options(arguments), match[1].partition("=")[0])
            if isinstance(default, float) or re.search(r"=0,0\d+$", match[1]):
                advice = match[1].replace(",", ".")
        return f"{match[1]}: more than one value. Write {advice}."
    if "Cannot merge" in str(error.__cause__) and (
        match := re.match(r"Error merging override ([^\s=]+)(=\S*)", text)
    ):
        return f"{match[1]}{match[2]}: this is a group of keys. Set one of them, as {match[1]}.KEY=VALUE."
    if match := re.match(r"Error merging override (\S+)", text):
        return f"{match[1]}: {str(error.__cause__ or text).splitlines()[0]}."
    if match := re.match(r"Could not append to config\. An item is already at '(\S+)'\.", text):
        word = next((word for word in arguments if word.startswith(f"+{match[1]}=")), f"+{match[1]}=VALUE")
        return f"{word}: this key is there already. Write {word.lstrip('+')}."
    if match := re.search(r"Could not (?:find|load) '((?:hydra/)?[^/']+)/([^']*?)'", text):
        group, option = match[1], match[2]
        offered = text.partition("Available options in ")[2].split()[1:] or option_names(CONFIGS / group)
        typed = (key_of(word) for word in arguments if word.endswith(f"={option}"))
        others = [word for word in arguments if word != f"{group}={option}"]
        values = compose_options(others) if (CONFIGS / group).is_dir() and group != "algo" else {}
        return no_such_choice(next((key for key in typed if "@" in key), group), option, offered, values)
    return f"{text}: {str(error.__cause__).splitlines()[0]}" if error.__cause__ else text


def compose_options(arguments: Sequence[str]) -> dict[str, Any]:
    """The configuration of the options on a command line, without its values and tuned hyperparameters."""
    plain = [word for word in arguments if re.fullmatch(r"~?[\w/]+(=[\w./-]+)?", word)]
    chosen = [word for word in plain if (CONFIGS / key_of(word)).is_dir()]
    chosen.append(user_dirs.searchpath(user_dirs.named_folders(arguments)))
    try:
        cfg = tuned.compose_run(chosen, return_hydra_config=True)
    except HYDRA_ERRORS:
        return {}
    values = cast(dict[str, Any], OmegaConf.to_container(cfg))
    take_limits(values)
    return values


def check_arguments(arguments: Sequence[str]) -> None:
    """What Hydra would pass over in silence, or answer at length.

    Raises:
        UserError: for an option Hydra does not have, an empty folder, and tuned presets that are not there.
    """
    check_options(arguments)
    check_choices(arguments)
    for word in arguments:
        key, _, value = word.partition("=")
        group = CONFIGS / key if key else CONFIGS / "-"
        if not re.search(r"\w", key):
            raise UserError(f"{word}: this cannot be read. Write KEY=VALUE, without blanks.")
        if key in ("hydra.run.dir", "hydra.sweep.dir") and not value:
            raise UserError(f"{word}: no folder is named. Write {key}=DIR.")
        if key == "run_dir":  # which would be another than Hydra's
            raise UserError(f"{word}: it follows from hydra.run.dir. Write hydra.run.dir={value or 'DIR'}.")
        if key in REQUIRED_GROUPS and value.startswith("["):
            several = value.strip("[]")
            raise UserError(
                f"{word}: a run has one. Write {key}=OPTION, or -m {key}={several} to run them all."
            )
        if key[1:] in REQUIRED_GROUPS and key[0] == "~":
            raise UserError(explain_missing(key[1:]))
        if group.is_dir() and re.fullmatch(r"true|false|\d+", value, re.IGNORECASE):
            raise UserError(no_such_choice(key, value, option_names(group)))
        if group.is_dir() and value.endswith((".yaml", ".yml")):  # for which there are no tuned presets
            name = value.rpartition(".")[0].removeprefix("configs/").removeprefix(f"{key}/")
            raise UserError(f"{word}: an option has no folder and no ending here. Write {key}={name}.")
        if key.lstrip("+") == "search":
            raise UserError(f"{word}: no key of a run. Start python scripts/search.py search={value}.")
        if key == "tuned" and re.fullmatch(r"[\w/]+", value):  # optional in configs/train.yaml
            presets = [
                name
                for folder in (CONFIGS, *user_dirs.named_folders(arguments))
                for name in option_names(folder / "tuned")
            ]
            if value not in presets:
                raise UserError(no_such_choice(key, value, presets))


def check_choices(arguments: Sequence[str]) -> None:
    """Several unknown options of groups and keys, of which Hydra reports the first.

    Raises:
        ConfigError: if there are more than one, with an unknown option among them.
    """
    if any("pkg://" in word for word in arguments):
        return
    folders, lines = (CONFIGS, *user_dirs.named_folders(arguments)), dict[str, str]()
    for word in arguments:
        group, _, option = word.partition("=")
        if not re.fullmatch(r"[a-z_]+=[A-Za-z][\w/-]*", word) or not (CONFIGS / group).is_dir():
            continue
        offered = [name for folder in folders for name in option_names(folder / group)]
        if option not in (*offered, "null", "true", "false") and group not in ("tuned", "search"):
            lines[group] = no_such_choice(group, option, offered)
    if lines:
        lines |= unknown_keys([word for word in arguments if key_of(word) not in lines], folders)
    if len(lines) > 1:
        raise ConfigError(lines)


def unknown_keys(arguments: Sequence[str], folders: tuple[Path, ...]) -> dict[str, str]:
    """Messages for keys that no file has, whatever the options; by key.

    Args:
        arguments: words of the command line without unknown options.
        folders: those with the files of options.
    """
    known = {*paths(read_option("/train"))}
    for option in {str(file.relative_to(folder)) for folder in folders for file in folder.rglob("*/*.yaml")}:
        values = read_option(f"/{option.removesuffix('.yaml')}", folders)
        known |= {*paths(values)} | {f"{option.partition('/')[0]}.{path}" for path in paths(values)}
    wrong = [
        word
        for word in arguments
        if sets_key(word) and word[0] not in "+~-" and key_of(word) not in known
        if not re.match(OPTIONAL_KEYS, word)
    ]
    values = compose_options(arguments) if wrong else {}
    pairs = (word.partition("=")[::2] for word in wrong)
    return {key: no_such_key(key, value, values) for key, value in pairs}


def check_options(arguments: Sequence[str]) -> None:
    """What is typed as an option of Hydra's is one, with what belongs to it.

    Raises:
        UserError: if it is not.
    """
    wrong_options = {
        word: no_such_option(word, following)
        for word, following in pairwise([*arguments, ""])
        if word[:1] == "-" and word.partition("=")[0] not in OPTIONS
    }
    if wrong_options:
        raise ConfigError(wrong_options)
    for word, following in pairwise([*arguments, ""]):
        key, equals, value = word.partition("=")
        if key[:1] != "-":
            continue
        argument = value if equals else following
        if able := OPTIONS[key]:
            words = [option for option in able.split("|") if option]
            if argument not in able.split("|"):
                raise UserError(f"{key} {argument}: no such word. Write {join_or(words)}.")
        elif key in ("--config-dir", "-cd") and not (argument and Path(argument).is_dir()):
            wrong = f"{key}={argument}: no such folder" if argument else f"{key}: no folder is named"
            raise UserError(f"{wrong}. Write --config-dir=DIR, which holds groups such as actor/ or env/.")
        elif key in ("--config-name", "-cn", "--config-path", "-cp"):
            raise UserError(f"{word}: there is one root. Leave it out; --config-dir=DIR adds your own files.")
        elif equals and key in ("--help", "-h", "--multirun", "-m"):
            raise UserError(f"{word}: it takes no value. Write {key}.")


def no_such_option(word: str, following: str) -> str:
    """The message for an option as other libraries have it, ``--total-timesteps 1000``."""
    key, equals, value = word.partition("=")
    name = key.strip("-").replace("-", "_")
    if not equals and re.match(r"[^-=][^=]*$", following):
        word, value = f"{word} {following}", following
    value = value or "VALUE"
    is_known = (CONFIGS / name).is_dir() or name in read_option("/train")
    meant = [f"{name}={value}"] if is_known else [typed for _, typed in translate_alias(name, value)]
    if f"env={value}" in meant and re.search(r"-v\d+$", value):
        meant = env_words(value)
    return f"{word}: no such option. Write {meant[0] if meant else 'KEY=VALUE'}, and see --help."


def explain_unreadable(word: str) -> str:
    """The message for a word that Hydra cannot read."""
    key, equals, value = word.partition("=")
    line = f"{word or chr(39) * 2}: this cannot be read. Write "
    if word in ("help", "version"):
        return f"{line}--{word}."
    files = [file for file in CONFIGS.glob(f"*/{word}.yaml") if word.isidentifier()]
    if groups := sorted({file.parent.name for file in files} - {"search"}):
        return f"{line}{join_or(f'{group}={word}' for group in groups)}."
    if not equals:
        return f"{line}KEY=VALUE, without blanks; for the shell quote a word with blanks, 'KEY=A VALUE'."
    if re.fullmatch(r"[+~]*[\w./@-]+", key):
        if read_advice(key, value):
            return no_such_key(key, value, {})
        if numbers := re.fullmatch(r"[\[({][\d\s,;]*[\])}]?", value) and re.findall(r"\d+", value):
            return f"{line}'{key}=[{','.join(numbers)}]'."
        has_bracket = re.search(r"\w.*[][=#(){}'\"]|[][=#(){}'\"].*\w", value)
        if has_bracket and not re.match(r"\w+\(.*\)$|.*\$", value):
            whole = f"{key}={quoted(value)}"
            return line + (shlex.quote(whole) if set(whole) & set('"\\`!') else f'"{whole}"') + "."
    return f"{line}KEY=VALUE, without blanks, and quote what has brackets."
