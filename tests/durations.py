"""A fast test is short: one that takes more than ``SECONDS`` fails, unless ``LONGER`` says why it may.

Counted is processor time, of the test's process and of those that it started and that have ended: where other
work crowds the machine, a test waits longer and computes as long. Waiting is not counted; pytest-timeout ends
it.
"""

import os

SECONDS = 20
# Tests of whatever parameters, with the seconds they may take and why they take them.
LONGER: dict[str, tuple[int, str]] = {
    "tests/parts/experience/test_collectors.py::test_worker_batches_have_time_last_and_unbroken": (
        40,
        "workers start for it, and for the tests after it",
    ),
    "tests/run/test_resume_exact.py::test_a_stop_loses_nothing": (40, "three runs in processes of their own"),
    "tests/study/test_results.py::test_each_run_is_kept_as_it_ends_and_a_table_goes_on_from_what_is_kept": (
        40,
        "a run in a process of its own, and two tables",
    ),
    "tests/study/test_sweep.py::test_ctrl_c_lets_all_members_save_and_another_list_goes_on_with_them": (
        40,
        "two members in processes of their own",
    ),
    "tests/test_algorithms.py::test_a_report_compares_them_all": (
        90,
        "where it is run alone it trains them all",
    ),
    "tests/test_documented.py::test_experiment_equals_the_document_bit_for_bit": (
        40,
        "two batches of the document as it stands, and of ours",
    ),
    "tests/test_train.py::test_a_sweep_runs_each_member_as_it_runs_alone_and_a_failed_one_ends_no_other": (
        40,
        "a run in a process of its own, one that is refused there, and one here",
    ),
    "tests/loop/test_gpu.py::test_a_run_trains_on_the_gpu": (60, "workers import for themselves"),
    "tests/loop/test_gpu.py::test_a_compiled_update_agrees_with_the_eager_one_after_twenty_updates": (
        120,
        "it compiles for CUDA, in several processes",
    ),
}


def spent() -> float:
    """Seconds of processor time so far, of this process and of its children that have ended."""
    return sum(os.times()[:4])


def too_long(test: str, seconds: float) -> str | None:
    """What is said of a test, ``tests/test_a.py::test_b[0]``, that took so many seconds; None for nothing."""
    allowed, _ = LONGER.get(test.partition("[")[0], (SECONDS, ""))
    if seconds <= allowed:
        return None
    return (
        f"{test} took {seconds:.0f} s of processor time and may take {allowed}: "
        "shorten it, mark it slow, or say in tests/durations.py why it takes longer"
    )
