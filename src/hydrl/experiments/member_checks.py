"""Checks of a sweep's members before the first one starts."""

import json
import signal
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.utils import get_object
from omegaconf import DictConfig, open_dict, read_write

from hydrl.config.settings import Settings, check_values
from hydrl.errors import ConfigError, Interrupted, UserError

Member = tuple[dict[str, Any], dict[str, Any]]  # resolved settings and the same as they are saved


def check_members(configs: Iterable[DictConfig]) -> None:
    """Checks each member's configuration and, if pairs differ, its algorithm against its environment.

    Args:
        configs: what Hydra composed of each member, with its ``hydra`` node.

    Raises:
        ConfigError: with the message of each wrong member; equal messages once.
    """
    messages, pairs = list[str](), dict[str, Member]()
    for cfg in configs:
        try:
            settings = check_member(cfg)
        except UserError as error:
            messages.append(str(error))
            continue
        # What decides whether an algorithm can act in an environment.
        pair = [settings.algo, settings.actor, settings.env, settings.transforms]
        pairs[json.dumps(pair, default=str)] = settings.model_dump(), settings.shown
    if not messages and len(pairs) > 1:
        messages += check_envs_in_child([*pairs.values()])
    if messages:
        raise ConfigError({message: message for message in messages})


def check_member(cfg: DictConfig) -> Settings:
    """The checked settings of a member, which has no run folder yet."""
    hydra = HydraConfig.instance()
    before = hydra.cfg
    hydra.set_config(cfg)
    try:
        with read_write(cfg), open_dict(cfg):
            cfg.run_dir = "unused"
            del cfg["hydra"]
        return check_values(cfg)
    finally:
        hydra.cfg = before


def check_envs_in_child(members: Sequence[Member]) -> list[str]:
    """Messages of :func:`hydrl.run.env_checks.check_envs`, from a process of its own: it imports PyTorch.

    If that process fails in another way, there are none: the members then report it themselves.
    """
    ignored = (signal.SIGINT, signal.SIG_IGN)  # this process ends the other
    with ProcessPoolExecutor(1, get_context("spawn"), initializer=signal.signal, initargs=ignored) as pool:
        try:
            return pool.submit(call, "hydrl.run.env_checks.check_envs", members).result()
        except Interrupted:
            raise
        except Exception:
            return []


def call(target: str, *arguments: Any) -> Any:
    """Calls a function by its dotted name, so that only the child imports it."""
    return get_object(target)(*arguments)
