"""What a configuration keeps to itself: secrets are used and shown nowhere.

A secret is a value whose key says so (*key*, *token*, *secret*, *password*), shown as ``***``,
or a text that came from an environment variable, shown as its reference ``${oc.env:NAME}``.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import hydra._internal.core_plugins.basic_launcher
import hydra._internal.core_plugins.basic_sweeper
import hydra._internal.hydra
import hydra.core.utils
from hydra.core.plugins import Plugins
from hydra.utils import get_object
from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.resolvers import oc

from hydrl.errors import UserError

HIDDEN = "***"
NAMES = re.compile(r"key|token|secret|password|^env_set$", re.IGNORECASE)
# What TorchRL and Hydra call the names of entries, whoever takes them.
ENTRIES = re.compile(r"(in|out|del|exclude|advantage|value|value_target|group)_keys?(_inv)?")
LIBRARIES = ("torchrl", "torch", "tensordict", "hydrl")
# Points elsewhere and holds nothing itself.
NODE = re.compile(r"\$\{[\w.:]+(,\s*(null|''|\"\"))?\}")
VARIABLE = re.compile(r"\$\{oc\.env:([^{},]+)\}")
# {key: value} inside what was typed.
GIVEN = re.compile(
    r"(?:(?<=[{,])|(?<=[{,] ))([\w.]*(?:key|token|secret|password)\w*)(\s*[:=]\s*)"
    r"(\$\{[^}]*\}|\"[^\"]*\"|'[^']*'|[^,{}\[\]\"']+)",
    re.IGNORECASE,
)

WORDS = {"true", "True", "false", "False", "null", "None", "none"}  # give nothing away

Change = Callable[[Any, bool], Any]
Values = Mapping[str, Any]

# Texts that no message may hold, with what stands for them.
_known: dict[str, str] = {}


def is_secret(key: str, part: Values) -> bool:
    """Whether ``key`` of ``part`` names a secret: not where a library's own argument is called so."""
    return bool(NAMES.search(key)) and not ENTRIES.fullmatch(key) and not declared(key, part)


def declared(key: str, part: Values) -> bool:
    """Whether ``part`` is TorchRL's, PyTorch's or hydrl's and lists ``key`` in its signature."""
    name = part.get("_target_")
    if not isinstance(name, str) or name.partition(".")[0] not in LIBRARIES:
        return False
    from hydrl.signatures import accepted_parameters  # which tells mistakes, whose values are hidden here

    try:
        return key in accepted_parameters(get_object(name))[0]
    except Exception:  # no such target; the checks will say so
        return False


def walk(values: Any, change: Change, secret: bool = False) -> Any:
    """``values`` with ``change(leaf, whether it is secret by its key)`` in each leaf's place."""
    if isinstance(values, Mapping):
        secret = secret and "_target_" not in values  # a part may be called anything
        return {
            key: walk(each, change, secret or is_secret(str(key), values)) for key, each in values.items()
        }
    if isinstance(values, list):
        return [walk(each, change, secret) for each in values]
    return change(values, secret)


def is_literal(leaf: Any) -> bool:
    """Whether a leaf could give something away: a reference, nothing, true and false do not."""
    return not (leaf in (None, "", "???") or isinstance(leaf, bool) or NODE.fullmatch(str(leaf)))


def masked(values: Any, root: Values) -> Any:
    """``values`` without secrets, references left as they are.

    Args:
        values: a configuration, a part of one, or a list of overrides.
        root: the whole configuration, which knows the secrets and what is none.
    """
    literals: set[str] = set()

    def collect(leaf: Any, secret: bool) -> None:
        if secret and is_literal(leaf):
            literals.update(remember(leaf))

    def mask(leaf: Any, secret: bool) -> Any:
        if secret and is_literal(leaf):
            return HIDDEN
        return replace(leaf, dict.fromkeys(literals, HIDDEN)) if isinstance(leaf, str) else leaf

    def mask_typed(leaf: Any, secret: bool) -> Any:
        return mask(typed(leaf, root) if isinstance(leaf, str) else leaf, secret)

    walk(root, collect)
    walk(values, collect)
    if isinstance(values, list):
        return walk(values, mask_typed)
    found = walk(values, mask)
    if "hydra" in values:  # may come without the configuration whose overrides it quotes
        literals.update(each for each, instead in _known.items() if instead == HIDDEN)
        found["hydra"] = walk(values["hydra"], mask_typed)
    return found


def typed(text: str, root: Values | None = None) -> str:
    """``key=value`` as it was typed, without secrets.

    Args:
        text: an override.
        root: the configuration it is for, which knows what is no secret.
    """
    node, secret = dict(root or {}), False
    key, _, value = text.partition("=")
    for name in re.split(r"[./]", key.lstrip("+~")):
        secret = (secret and "_target_" not in node) or is_secret(name, node)
        below = node.get(name)
        node = below if isinstance(below, dict) else {}
    if secret and value:
        return f"{key}={value if not is_literal(value) else HIDDEN}"

    def mask(found: re.Match[str]) -> str:
        keep = not is_secret(found[1].rpartition(".")[2], {}) or not is_literal(found[3])
        return found[0] if keep else f"{found[1]}{found[2]}{HIDDEN}"

    return GIVEN.sub(mask, text)


def shown(cfg: DictConfig) -> dict[str, Any]:
    """The configuration, resolved, without secrets; numbers from the environment are kept."""
    plain = cast(dict[str, Any], OmegaConf.to_container(cfg, resolve=False))
    copy = OmegaConf.create(masked(plain, plain))
    OmegaConf.copy_cache(cfg, copy)
    with references():
        pointing = resolved(copy)
    return cast(dict[str, Any], masked(numbers_from(resolved(cfg), pointing), plain))


def resolved(node: Any) -> Any:
    """Plain containers with every interpolation resolved; what cannot be stays as it is."""

    def look(key: Any) -> Any:
        try:
            return resolved(node[key])
        except OmegaConfBaseException:
            return cast(Any, OmegaConf.to_container(node))[key]

    if isinstance(node, DictConfig):
        return {key: look(key) for key in node}
    if isinstance(node, ListConfig):
        return [look(position) for position in range(len(node))]
    return node


def numbers_from(real: Any, pointing: Any) -> Any:
    """``pointing`` with the real numbers where it has references to the environment."""
    if isinstance(real, dict) and isinstance(pointing, dict):
        return {key: numbers_from(real.get(key), each) for key, each in pointing.items()}
    if isinstance(real, list) and isinstance(pointing, list) and len(real) == len(pointing):
        return [numbers_from(*each) for each in zip(real, pointing, strict=True)]
    is_reference = isinstance(pointing, str) and VARIABLE.search(pointing)
    return real if is_reference and isinstance(real, int | float) else pointing


@contextmanager
def references() -> Iterator[None]:
    """Inside, ``${oc.env:NAME}`` stands for itself, and the values so left out are remembered."""

    def refer(name: str, *default: Any) -> Any:
        if name not in os.environ and default:
            return default[0]
        reference = f"${{oc.env:{name}}}"
        remember(os.environ.get(name, ""), reference)
        return reference

    OmegaConf.register_new_resolver("oc.env", refer, replace=True)
    try:
        yield
    finally:
        OmegaConf.register_new_resolver("oc.env", oc.env, replace=True)


def remember(value: Any, instead: str = HIDDEN) -> set[str]:
    """Keeps a secret out of every later message, in whatever way a message may quote it.

    Returns:
        its spellings; none for what is so short that it would be found everywhere.
    """
    text = str(value)
    spellings = {text, " ".join(text.split()), repr(text)[1:-1], json.dumps(text)[1:-1], *text.splitlines()}
    spellings |= {each.replace('"', "") for each in spellings}
    found = {each for each in spellings if len(each) >= (6 if each.isdecimal() else 4)} - WORDS
    _known.update(dict.fromkeys(found, instead))
    return found


def remember_typed(arguments: Iterable[str]) -> None:
    """Keeps the secrets of a command line out of every later message."""
    for argument in arguments:
        key, _, value = argument.partition("=")
        if typed(argument) == f"{key}={HIDDEN}":
            for each in [value, *value.split(",")]:
                remember(each.strip("'\" "))
        for found in GIVEN.finditer(argument):
            if is_secret(found[1].rpartition(".")[2], {}) and is_literal(found[3]):
                remember(found[3].strip("'\" "))


def hide(text: str) -> str:
    """A message without the secrets met so far."""
    return replace(text, _known)


def replace(text: str, known: Mapping[str, str]) -> str:
    """The longest first, since a secret may hold another."""
    for each in sorted(known, key=len, reverse=True):
        text = text.replace(each, known[each])
    return text


def restore(values: Any, path: str = "") -> Any:
    """A configuration read back from a run folder, its references looked up in the environment.

    Nothing else is resolved: the folder may be a stranger's.

    Raises:
        UserError: for a secret that was not kept, a variable that is not set and any other interpolation.
    """
    if isinstance(values, Mapping):
        return {key: restore(each, f"{path}.{key}" if path else str(key)) for key, each in values.items()}
    if isinstance(values, list):
        return [restore(each, f"{path}.{position}") for position, each in enumerate(values)]
    if not isinstance(values, str):
        return values
    if HIDDEN in values:
        raise UserError(
            f"{path} was a secret and was not kept; write {path}=${{oc.env:NAME}} in its "
            "config_resolved.yaml and set NAME in the environment"
        )
    if "${" in VARIABLE.sub("", values):
        raise UserError(f"{path}={values}: should hold no reference other than ${{oc.env:NAME}}")

    def look_up(found: re.Match[str]) -> str:
        value = os.environ.get(found[1])
        if value is None:
            raise UserError(f"{path}={values}: the environment variable {found[1]} is not set")
        remember(value, found[0])
        return value

    return VARIABLE.sub(look_up, values)


class Masking(OmegaConf):
    """OmegaConf for Hydra's own writing: ``.hydra/``, ``multirun.yaml``, ``--cfg`` and ``--info``."""

    @staticmethod
    def to_yaml(cfg: Any, *, resolve: bool = False, sort_keys: bool = False) -> str:
        """As OmegaConf's, without secrets."""
        if resolve and isinstance(cfg, DictConfig):
            values: Any = shown(cfg)
        else:
            root = cfg._get_root() if isinstance(cfg, Container) else cfg
            values = masked(OmegaConf.to_container(cfg), cast(Values, OmegaConf.to_container(root)))
        return OmegaConf.to_yaml(OmegaConf.create(values), sort_keys=sort_keys)

    @staticmethod
    def save(config: Any, f: Any, resolve: bool = False) -> None:
        """As OmegaConf's to a path, without secrets."""
        with open(f, "w", encoding="utf-8") as file:
            file.write(Masking.to_yaml(config, resolve=resolve))

    @staticmethod
    def resolve(cfg: Any) -> None:
        """As OmegaConf's, with references to the environment left in."""
        whole = OmegaConf.create(shown(cfg._get_root()))
        key = cfg._get_full_key(None)
        cfg.merge_with(OmegaConf.select(whole, key) if key else whole)


# Hydra writes all this before a run starts and asks nobody; so it never has a secret to write.
Plugins.instance()  # loads the plugins, which would undo what follows
hydra.core.utils.OmegaConf = Masking
hydra._internal.hydra.OmegaConf = Masking
hydra._internal.core_plugins.basic_sweeper.OmegaConf = Masking
hydra._internal.core_plugins.basic_launcher.filter_overrides = lambda overrides: [
    hide(typed(each)) for each in hydra.core.utils.filter_overrides(overrides)
]
