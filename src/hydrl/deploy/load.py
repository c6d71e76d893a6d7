"""Loading of a trained policy from a run folder, with its observation normalizer."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from pydantic import ValidationError
from torch import nn
from torchrl.checkpoint import Checkpoint
from torchrl.envs import EnvBase

from hydrl import envs
from hydrl.config import user_dirs
from hydrl.config.migrations import new_config
from hydrl.config.settings import Settings
from hydrl.config.suggestions import explain
from hydrl.config.trust import check_addresses, check_trust
from hydrl.envs.nash_conv import NashConvMeter
from hydrl.errors import UserError
from hydrl.networks.multi_agent import partly_untrained
from hydrl.run.checkpoint.archive import find, frames_of, load
from hydrl.run.checkpoint.user_classes import record_classes, warn_of_changed
from hydrl.run.run_folder import UNREADABLE, refuse_links, require_run
from hydrl.run.trained_run import TrainedRun
from hydrl.specs import mask_key
from hydrl.training.evaluator import PolicyEvaluator

ACTING_COMPONENTS = ("env", "transforms", "encoder", "rnn", "actor")  # needed to act


def read_settings(run: Path, *, trust: bool) -> Settings:
    """Reads a run's resolved configuration.

    Args:
        run: a run folder.
        trust: allows any ``_target_``, such as your own environment's. Without it only those of hydrl's
            configs and TorchRL's transforms are allowed; a stranger's folder could name anything.

    Raises:
        UserError: if it is no run folder or names a target that is not allowed.
    """
    refuse_links(run)
    require_run(run)
    config: Any = {}
    try:
        loaded = OmegaConf.load(run / "config_resolved.yaml")
        saved: Any = new_config(OmegaConf.to_container(loaded))
        config = new_config(OmegaConf.to_container(loaded, resolve=True))
        if trust:
            user_dirs.add_folders(user_dirs.saved_folders(run))
        else:
            check_trust(config, f"run={run}")
            check_addresses({name: config.get(name) for name in ACTING_COMPONENTS}, f"run={run}")
        return Settings.of(config, saved)
    except ValidationError as error:
        reason = " ".join(str(explain(error, config)).split())
        raise UserError(f"run={run}: config_resolved.yaml is not valid: {reason}") from None
    except UNREADABLE as error:
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise UserError(f"run={run}: config_resolved.yaml cannot be read: {reason}") from None


def open_run(
    run: Path,
    *,
    checkpoint: str,
    device: str,
    trust: bool,
    or_last: bool = False,
    untrained: Sequence[str] = (),
) -> tuple[TrainedRun, int, PolicyEvaluator]:
    """Rebuilds the policy of a run from a checkpoint.

    Args:
        run: a run folder.
        checkpoint: ``best``, ``last`` or a number of frames.
        device: device of the policy.
        trust: see :func:`read_settings`.
        or_last: takes the last checkpoint, with a warning, of a run without evaluations.
        untrained: agent groups that act with their initial weights.

    Returns:
        the run, the frames the policy was trained for, and its evaluator.

    Raises:
        UserError: if the folder, the checkpoint, the environment or a group is missing.
    """
    settings = read_settings(run, trust=trust)
    archive = find(run, checkpoint, or_last=or_last)
    state = load(archive, ("actor", "normaliser"), device)
    build, transforms = settings.build, settings.transform_builders
    make_env = partial(envs.make_env, build("env"), transforms, device=device)
    env = make_env(normalizer=state["normaliser"], seed=settings.seed)
    actor = build("actor")(env)
    load_weights(actor, state["actor"], env, f"run={run}: the policy in {archive.name}")
    recorded = Checkpoint.manifest(archive)["metadata"].get("classes")
    warn_of_changed(record_classes(settings.shown), recorded, archive)
    if untrained:
        actor = partly_untrained(actor, build("actor")(env), untrained, env)
    env.close()
    trained_run = TrainedRun(
        settings.algo, settings.task, settings.seed, settings.env, settings.shown, build, transforms
    )
    family = envs.find_family(build("env"))
    play: dict[str, Any] = {"max_steps": settings.eval.max_steps, "play": family.evaluate}
    evaluator = PolicyEvaluator(make_env, actor, lambda: state["normaliser"], seed=settings.seed, **play)
    return trained_run, frames_of(archive), evaluator


def measure_nash(run: Path, checkpoint: str, evaluator: PolicyEvaluator) -> dict[str, float]:
    """The NashConv of a loaded policy and of the average of the opponent pool in its checkpoint.

    Args:
        run: a run folder.
        checkpoint: see :func:`open_run`.
        evaluator: of that policy.

    Raises:
        UserError: see :class:`hydrl.envs.nash_conv.NashConvMeter`.
    """
    env = evaluator.env_of(1)
    envs.load_normalizer(env, evaluator.normaliser())
    meter = NashConvMeter(env, evaluator.actor, "nash")
    collector = load(find(run, checkpoint), ("collector",))["collector"]
    return meter.measure(collector.get("opponents", {}).get("policies", ()))


def load_weights(actor: nn.Module, weights: Mapping[str, Any], env: EnvBase, label: str) -> None:
    """Loads a saved policy; ``label`` names it in the message.

    Raises:
        UserError: if it was saved for other observations or actions than those of ``env``.
    """
    try:
        actor.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        advice = " If the run observed its mask, write env.action_mask: false into config_resolved.yaml."
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"{label} does not fit its environment: {reason}.{advice * bool(mask_key(env))}"
        ) from error
