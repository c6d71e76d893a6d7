import pytest
from conftest import settings

from hydrl.run.resume import check_same


@pytest.mark.parametrize(
    ("overrides", "chosen", "why"),
    [
        ("algo=ppo env=half_cheetah", True, "it pays in 156,480 updates"),
        ("algo=ppo env=inverted_double_pendulum", False, "5,120 updates are too few to pay for it"),
        ("algo=dqn env=cartpole", False, "12,544 updates are too few to pay for it"),
        ("algo=dqn env=cartpole total_frames=100_000", True, "it pays in 25,024 updates"),
        ("algo=dqn env=cartpole loss.compile_from=12_544", True, "it pays in 12,544 updates"),
        ("algo=sac env=pendulum", False, "12,032 updates are too few to pay for it"),
        ("algo=sac env=half_cheetah", True, "it pays in 1,000,000 updates"),
        ("algo=crossq env=half_cheetah", False, "CrossQLoss is not known to gain"),
        ("loss=kl_penalty", False, "KLPENPPOLoss is not known to gain"),
        ("algo=recurrent_ppo env=half_cheetah", False, "a memory cannot be compiled"),
        (
            "algo=iql env=half_cheetah collector.path=none",
            False,
            "IQLLoss is not known to gain",
        ),
    ],
)
def test_a_run_is_compiled_where_that_pays_within_it(overrides, chosen, why):
    found = settings(*overrides.split())
    assert found.compile is found.shown["compile"] is chosen
    (line,) = found.chosen
    assert line.startswith(f"compile=auto is {str(chosen).lower()}: {why}")


@pytest.mark.parametrize("said", [True, False])
def test_what_is_said_is_done_and_needs_no_line(said):
    found = settings("env=half_cheetah", f"compile={said}")
    assert (found.compile, found.chosen) == (said, [])


def test_without_a_compiler_a_long_run_is_not_compiled(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = settings("env=half_cheetah")
    assert found.compile is False
    assert found.chosen == [
        "compile=auto is false: it needs the C++ compiler no-such-compiler, which is not there"
    ]


def test_a_resumed_run_keeps_what_it_began_with_whatever_its_length():
    began = settings("env=half_cheetah", "total_frames=10_000", "anneal_frames=1_000_000")
    assert began.compile is False
    longer = settings("env=half_cheetah")
    assert longer.compile is True
    check_same(longer, began.shown)
    assert longer.compile is longer.shown["compile"] is False
    assert longer.chosen == ["compile=auto is false: as the run began"]
