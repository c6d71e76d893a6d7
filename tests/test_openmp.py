"""OpenMP's threads sleep soon in every process of a run: by what OpenMP itself says that it has read."""

import os
import re
import subprocess
import sys

import pytest

from tests.conftest import HANGING, ROOT

OWN = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
VARIABLE = "import os; print(os.environ.get('GOMP_SPINCOUNT'))"
# As workers and the process that evaluates are begun: copies of one that has imported PyTorch.
COPIED = f"""
import hydrl, torchrl.collectors
from hydrl.experience.forkserver import worker_context
with worker_context(blocked_signals=set()) as context:
    copy = context.Process(target=exec, args=({VARIABLE!r},))
    copy.start()
    copy.join()
"""


def told(program: str, **variables: str) -> tuple[list[str], list[str]]:
    """What a program prints, and the spins that each OpenMP in it was loaded with."""
    plain = {key: each for key, each in os.environ.items() if key not in OWN}
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=plain | {"PYTHONPATH": str(ROOT / "src"), "OMP_DISPLAY_ENV": "verbose"} | variables,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=HANGING,
    )
    return done.stdout.split(), re.findall(r"GOMP_SPINCOUNT = '(\d+)'", done.stderr)


@pytest.mark.parametrize(
    ("before", "variables", "value"),
    [
        ("", {}, "0"),
        ("", {"GOMP_SPINCOUNT": "7"}, "7"),
        ("", {"OMP_WAIT_POLICY": "PASSIVE"}, "None"),
        ("import sys; sys.modules['torch'] = sys; ", {}, "None"),  # which could read it no more
    ],
)
def test_the_user_s_own_variables_and_a_pytorch_that_is_there_are_left_alone(before, variables, value):
    assert told(f"{before}import hydrl; {VARIABLE}", **variables)[0] == [value]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere PyTorch has another OpenMP")
def test_openmp_reads_it_in_the_run_s_process_and_in_what_workers_and_evaluations_are_copies_of():
    printed, spins = told(COPIED)
    assert printed == ["0"]
    assert spins == ["0", "0"]  # of the run's process, and of the one that is copied


@pytest.mark.parametrize("script", ["train.py", "scripts/evaluate.py"])
def test_a_script_imports_hydrl_before_pytorch(script):
    program = f"import runpy, sys; runpy.run_path({script!r}, run_name='imported')"
    assert told(f"{program}; print('torch' in sys.modules); {VARIABLE}")[0] == ["False", "0"]
