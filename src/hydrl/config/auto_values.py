"""Values of ``auto``, from the configuration and the machine alone, so that a command is reproducible."""

import math
import os
import shutil
import sys

from hydra.utils import get_object
from omegaconf import DictConfig, OmegaConf

from hydrl.openmp import is_limited

MAX_SEQUENCE = 32  # default upper limit of minibatches.sequence
SECOND_THREAD_WORK = 60_000_000  # multiplications in a layer from which two threads are faster


def compiler() -> str:
    """The C++ compiler that PyTorch compiles with."""
    return os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")


def choose_compile(loss: str, updates: int, min_updates: int | None, *, recurrent: bool) -> tuple[bool, str]:
    """Whether to compile the update, and why; measurements are in docs/notes/performance.md.

    Args:
        loss: class name of the loss.
        updates: updates in the whole run.
        min_updates: updates from which compiling is faster; ``None``: never.
        recurrent: whether the policy is recurrent.
    """
    size = f"this run makes up to {updates:,} updates"
    if recurrent:
        return False, "torch.compile does not work with an RNN"
    if min_updates is None:
        return False, f"torch.compile is not known to make {loss} faster (loss.compile_min_updates=null)"
    if updates < min_updates:
        return False, f"{size}; torch.compile saves time from {min_updates:,}"
    if shutil.which(compiler()) is None:
        return False, f"torch.compile needs the C++ compiler {compiler()}, which is not installed"
    return True, f"{size}; torch.compile saves time from {min_updates:,}, and may take a minute at the first"


def count_cores() -> int:
    """Number of cores that this process may use; ``OMP_NUM_THREADS`` lowers it for parallel runs."""
    cores_here = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("OMP_NUM_THREADS", "")  # a list, for nested threads, is ignored
    return min(cores_here, int(limit)) if limit.isdecimal() else cores_here


def choose_threads(work: int, *, workers: bool) -> tuple[int, str]:
    """Number of PyTorch's threads, and why: two if the networks are large and a core is free.

    Args:
        work: rows of a minibatch times the largest product of neighbouring hidden widths.
        workers: whether the run has worker processes.
    """
    if work < SECOND_THREAD_WORK or workers or count_cores() < 2:
        return 1, ""
    if not is_limited():
        return 1, (
            "PyTorch was imported before hydrl, and two threads would be slow beside other work; "
            "import hydrl first"
        )
    return 2, "a second core is faster for networks and minibatches of this size"


def choose_pipelined(busy_cores: int, updates: int, min_updates: int | None) -> tuple[bool, str]:
    """Whether ``collector=auto`` collects in the background, and why.

    Args:
        busy_cores: cores that the learner uses.
        updates: updates in the whole run.
        min_updates: updates from which it is faster; ``None``: never.
    """
    if min_updates is None:
        return False, "not shown to learn as well with data one update older (pipelined_min_updates=null)"
    if updates < min_updates:
        size = f"this run makes up to {updates:,} updates"
        return False, f"{size}; a second process saves time from {min_updates:,}"
    if count_cores() <= busy_cores:
        return False, "no core is free"
    return True, "a core is free, and the algorithm learns as well with data one update older"


def choose_eval_backend(busy_cores: int, device: str, frames: int, every: int) -> tuple[str, str]:
    """What plays evaluations, and why: a background process if a core is free, else the training loop.

    Args:
        busy_cores: cores that the learner and the collector use.
        device: of the run.
        frames: of the whole run.
        every: frames between evaluations.
    """
    if count_cores() <= busy_cores or not is_on_cpu(device) or frames <= every:
        return "inline", ""
    return "process", "a core is free; results are the same as with inline"


def is_on_cpu(device: str) -> bool:
    """Whether a run with this ``device`` is on the CPU."""
    return device == "cpu" or (device == "auto" and not os.path.exists("/dev/nvidiactl"))


def has_bf16(cpuinfo: str = "/proc/cpuinfo") -> bool:
    """Whether the CPU multiplies bfloat16 itself; true where no file says so, as on macOS."""
    try:
        with open(cpuinfo, encoding="utf-8") as file:
            flags = next((line for line in file if line.lower().startswith(("flags", "features"))), "")
    except OSError:
        return True
    return not flags or bool({"amx_bf16", "avx512_bf16", "bf16"} & {*flags.split()})  # the last is Arm's


def sequence(*, _root_: DictConfig) -> int | None:
    """Length of sequences, ``${sequence:}`` in YAML; ``None`` without an RNN.

    The largest number up to 32 that divides both a minibatch and each environment's steps in a batch.
    """
    if not OmegaConf.select(_root_, "actor.rnn"):
        return None
    sizes = (OmegaConf.select(_root_, f"collector.{name}") for name in ("frames_per_batch", "num_envs"))
    try:
        frames, envs = (int(size) for size in sizes)
        several = (OmegaConf.select(_root_, f"collector.num_{kind}") for kind in ("workers", "collectors"))
        steps = frames // (envs * next(filter(None, several), 1))
        together = math.gcd(steps, OmegaConf.select(_root_, "minibatches.size"))
    except (TypeError, ValueError, ZeroDivisionError):  # the checks report it
        return MAX_SEQUENCE
    return max(
        (length for length in range(1, MAX_SEQUENCE + 1) if together % length == 0), default=MAX_SEQUENCE
    )


def fraction_of_frames(fraction: float, *, _root_: DictConfig) -> int:
    """A fraction of ``total_frames``, ``${fraction_of_frames:0.1}`` in YAML for a tenth."""
    return round(fraction * _root_.total_frames)


def discount(*, _root_: DictConfig) -> float:
    """Discount for environments without a tuned preset, ``${discount:}`` in YAML.

    It is 1 - 5 / (Gymnasium's time limit in steps), between 0.95 and 0.995, as in TD-MPC2 (Hansen et al.
    2024); 0.99 without a limit, and for families (``env.make``), whose limits are never reached.
    """

    from hydrl.config.trust import trusted_names  # which needs this package

    if OmegaConf.select(_root_, "env.make"):  # its ids are registered when it makes an environment
        return 0.99
    id = str(OmegaConf.select(_root_, "env.id"))
    module, _, name = id.rpartition(":")
    stranger = _root_.resume not in (None, "auto") and not _root_.trust and id not in trusted_names()
    try:
        if module and not stranger:  # whose module could do anything
            get_object(module)
        spec = get_object("gymnasium.spec")(name)
        limit = OmegaConf.select(_root_, "env.max_episode_steps") or spec.max_episode_steps
        return min(max(1 - 5 / limit, 0.95), 0.995) if limit else 0.99
    except Exception:  # reported when the environment is made
        return 0.99
