"""Setup of libraries in every process that builds environments: the run's own and its workers'."""

import logging
import random
import sys
import warnings
from importlib.util import find_spec

import mujoco
import numpy as np
import torch


def seed_generators(seed: int) -> None:
    """Seeds the global random generators of Python, NumPy and PyTorch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def quieten_libraries() -> None:
    """Hides what libraries log in a correct run: TorchRL's progress notes, and warnings by their text."""
    logging.getLogger("torchrl").setLevel(logging.WARNING)
    # Compiling for a CPU needs no CUDA, whose absence this one reports.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    # A decision transformer has numbers for words, and so no number for a sentence's first one.
    logging.getLogger("transformers.configuration_utils").setLevel(logging.ERROR)
    for text in (
        r".*share an object, therefore, modifying one will modify the other.*",  # each is copied
        r".*Box (low|high)'s precision lowered by casting.*",  # to what networks read
        r".*inline_inbuilt_nn_modules is deprecated.*",  # tensordict asks for it when it is compiled
        r".*environment .* is out of date.*",  # the documented task is version 4 on purpose
        r".*Support of \w+ for (unbatched )?container.*",  # VecNormV2, whose statistics are tested
        r".*lr_scheduler.step\(\)` before `optimizer.step\(\)`.*",  # it goes by batches, updates or none
        r".*init_random_frames .* is not exactly a multiple.*",  # they end with a batch
        r".*[Nn]o target network updater.*",  # dqn_intro leaves the target alone, as its document does
    ):
        warnings.filterwarnings("ignore", message=text)
    mujoco.set_mju_user_warning(warn_of_mujoco)


def warn_of_mujoco(message: str) -> None:
    """MuJoCo's warnings as Python's, instead of a line on the screen and a file in the working directory."""
    if "settotalmass" not in message:  # Gymnasium's own HalfCheetah file says it so
        warnings.warn(f"MuJoCo: {message}", stacklevel=2)


def remember_missing_packages() -> None:
    """Marks pandas as absent if it is not installed.

    tensordict checks at every module's output for pandas tables, and Python searches its whole path for a
    missing package each time. ``None`` is Python's own mark of an absent package.
    """
    # Without it an eager update takes 5-17 % longer for DQN and 4-12 % for PPO: medians of four interleaved
    # runs of 12 to 40 rounds, two cores, one thread.
    if find_spec("pandas") is None:
        sys.modules["pandas"] = None  # type: ignore[assignment]
