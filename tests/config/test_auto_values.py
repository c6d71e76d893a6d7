import os
import sys

import pytest

from hydrl.errors import UserError
from hydrl.run.checkpoint.resume import check_same
from tests.conftest import CONFIGS, composed, settings


@pytest.mark.parametrize(
    ("overrides", "chosen", "why"),
    [
        (
            "algo=ppo env=half_cheetah",
            True,
            "this run makes up to 156,480 updates; torch.compile saves",
        ),
        (
            "algo=ppo env=inverted_double_pendulum",
            False,
            "this run makes up to 7,680 updates; torch.compile saves",
        ),
        (
            "algo=dqn env=cartpole",
            False,
            "this run makes up to 12,352 updates; torch.compile saves",
        ),
        (
            "algo=dqn env=cartpole total_frames=100_000",
            True,
            "this run makes up to 24,832 updates; torch.compile saves",
        ),
        (
            "algo=dqn env=cartpole loss.compile_min_updates=12_352",
            True,
            "this run makes up to 12,352 updates; torch.compile saves",
        ),
        (
            "algo=sac env=pendulum",
            False,
            "this run makes up to 11,072 updates; torch.compile saves",
        ),
        (
            "algo=sac env=half_cheetah",
            True,
            "this run makes up to 995,008 updates; torch.compile saves",
        ),
        ("algo=crossq env=half_cheetah", False, "torch.compile is not known to make CrossQLoss faster"),
        ("loss=kl_penalty", False, "torch.compile is not known to make KLPENPPOLoss faster"),
        ("algo=recurrent_ppo env=half_cheetah", False, "torch.compile does not work with an RNN"),
        (
            "algo=iql env=half_cheetah data.path=none",
            False,
            "torch.compile is not known to make IQLLoss faster",
        ),
    ],
)
def test_a_run_is_compiled_where_that_pays_within_it(overrides, chosen, why):
    found = settings(*overrides.split())
    assert found.compile is found.shown["compile"] is chosen
    line = found.chosen[0]
    assert line.startswith(f"compile=auto is {str(chosen).lower()}: {why}")


@pytest.mark.parametrize(
    ("words", "updates", "told"),
    [
        (["total_frames=512"], 0, "minibatches.warmup_frames=1000 is more than total_frames=512"),
        (["total_frames=768"], 0, "minibatches.warmup_frames=1000 is more than total_frames=768"),
        (["total_frames=769"], 64, ""),  # of four batches, 1,024 frames
        (["total_frames=1280"], 128, ""),
        (
            ["total_frames=512", "minibatches.warmup_frames=0", "minibatches.size=600"],
            0,
            "minibatches.size=600 is more than total_frames=512",
        ),
    ],
)
def test_a_memory_that_is_never_full_enough_is_told_of(words, updates, told):
    found = settings("algo=dqn", "env=cartpole", *words)
    assert found.updates == updates
    if told:
        assert found.chosen == [f"no update will be made: {told}"]
        assert found.compile is False
    else:
        assert "no update" not in str(found.chosen)


@pytest.mark.parametrize("said", [True, False])
def test_what_is_said_is_done_and_needs_no_line(said):
    found = settings("env=half_cheetah", f"compile={said}")
    assert (found.compile, found.chosen) == (said, [])


def test_without_a_compiler_a_long_run_is_not_compiled(monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    found = settings("env=half_cheetah")
    assert found.compile is False
    assert found.chosen == [
        "compile=auto is false: torch.compile needs the C++ compiler no-such-compiler, which is not installed"
    ]


def test_a_resumed_run_keeps_what_it_began_with_whatever_its_length():
    began = settings("env=half_cheetah", "total_frames=10_000", "anneal_frames=1_000_000")
    assert began.compile is False
    longer = settings("env=half_cheetah")
    assert longer.compile is True
    check_same(longer.shown, began.shown, longer.keep_auto_values)
    assert longer.compile is longer.shown["compile"] is False
    assert "compile=auto is false: the run was started with it" in longer.chosen


WIDE = "critic.num_cells=[512,512]"


@pytest.fixture
def cores(monkeypatch):
    """Sets how many cores this process may use."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("GOMP_SPINCOUNT", "0")  # as where hydrl is imported before PyTorch
    return lambda count: monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(count), raising=False)


@pytest.mark.parametrize(
    ("overrides", "count", "chosen"),
    [
        (f"algo=sac env=half_cheetah {WIDE}", 2, 2),
        (f"algo=td3 env=half_cheetah {WIDE}", 8, 2),
        ("algo=sac env=half_cheetah minibatches.size=1024", 2, 2),
        (f"algo=sac env=half_cheetah {WIDE}", 1, 1),
        (f"algo=sac env=half_cheetah {WIDE} collector=pipelined", 2, 1),
        (f"algo=sac env=half_cheetah {WIDE} torch_threads=1", 2, 1),
        (f"algo=sac env=half_cheetah {WIDE} minibatches.size=128", 2, 1),
        ("algo=sac env=half_cheetah critic.num_cells=[400,400]", 2, 1),
        ("algo=sac env=half_cheetah", 2, 1),
        ("algo=ppo env=half_cheetah", 2, 1),
        ("algo=dqn env=cartpole", 2, 1),
    ],
)
def test_a_second_thread_is_taken_for_large_networks_where_a_core_is_free(cores, overrides, count, chosen):
    cores(count)
    found = settings(*overrides.split())
    assert found.torch_threads == found.shown["torch_threads"] == chosen
    assert any("torch_threads=auto is 2" in line for line in found.chosen) is (chosen == 2)


def test_a_run_beside_others_takes_one_thread(cores, monkeypatch):
    cores(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert settings("algo=sac", "env=half_cheetah", WIDE).torch_threads == 1


@pytest.mark.parametrize(("name", "chosen"), [("GOMP_SPINCOUNT", 2), ("OMP_WAIT_POLICY", 2), ("OTHER", 1)])
def test_a_second_thread_needs_threads_that_do_not_spin(cores, monkeypatch, name, chosen):
    cores(2)
    for each in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(each, raising=False)
    monkeypatch.setenv(name, "PASSIVE")
    found = settings("algo=sac", "env=half_cheetah", WIDE)
    assert found.torch_threads == chosen
    assert any("PyTorch was imported before hydrl" in line for line in found.chosen) is (chosen == 1)


def test_a_resumed_run_keeps_its_threads(cores):
    cores(1)
    began = settings("algo=sac", "env=half_cheetah", WIDE)
    cores(2)
    longer = settings("algo=sac", "env=half_cheetah", WIDE)
    check_same(longer.shown, began.shown, longer.keep_auto_values)
    assert longer.torch_threads == longer.shown["torch_threads"] == 1


@pytest.mark.parametrize(
    ("overrides", "count", "chosen"),
    [
        ("algo=ppo env=cartpole", 2, "process"),
        ("algo=ppo env=cartpole", 1, "inline"),
        ("algo=ppo env=cartpole eval.backend=inline", 2, "inline"),
        ("algo=ppo env=cartpole collector=multi_sync", 2, "inline"),
        ("algo=ppo env=cartpole collector=multi_sync", 4, "process"),
        ("algo=dqn env=cartpole collector=pipelined", 2, "inline"),
        ("algo=dqn env=cartpole collector=pipelined", 3, "process"),
        (f"algo=sac env=half_cheetah {WIDE}", 2, "inline"),  # which takes both cores for its update
        (f"algo=sac env=half_cheetah {WIDE}", 3, "process"),
        ("algo=ppo env=cartpole torch_threads=2", 2, "inline"),
        ("algo=ppo env=cartpole device=cuda", 2, "inline"),
        ("algo=ppo env=cartpole eval.every_frames=1_000_000", 2, "inline"),  # there is only the final one
    ],
)
def test_evaluations_take_a_core_that_nothing_else_uses(cores, overrides, count, chosen):
    cores(count)
    run = settings(*overrides.split())
    assert run.eval.backend == run.shown["eval"]["backend"] == chosen
    line = "eval.backend=auto is process: a core is free; results are the same as with inline"
    assert (line in run.chosen) is (chosen == "process")


LONG = "pipelined_min_updates=20_000 total_frames=100_000"


@pytest.mark.parametrize(
    ("overrides", "count", "chosen", "why"),
    [
        (f"algo=dqn env=cartpole {LONG}", 2, True, "a core is free, and the algorithm learns as well"),
        (f"algo=dqn env=cartpole {LONG}", 1, False, "no core is free"),
        (f"algo=dqn env=cartpole {LONG} total_frames=50_000", 2, False, "this run makes up to 12,"),
        (f"algo=sac env=half_cheetah {LONG} {WIDE}", 2, False, "no core is free"),  # its update has both
        (f"algo=sac env=half_cheetah {LONG} {WIDE}", 3, True, "a core is free"),
        ("algo=ppo env=cartpole", 2, False, "not shown to learn as well"),
        ("algo=dqn env=cartpole collector.pipelined=true", 1, True, None),
    ],
)
def test_a_free_core_collects_before_it_evaluates(cores, overrides, count, chosen, why):
    cores(count)
    run = settings("collector=auto", *overrides.split())
    assert run.collector["pipelined"] is run.shown["collector"]["pipelined"] is chosen
    lines = [line for line in run.chosen if line.startswith("collector=auto is ")]
    assert [why in line for line in lines] == [True] * (why is not None)
    is_free = count > run.torch_threads + chosen
    assert run.eval.backend == ("process" if is_free else "inline")


def test_only_algorithms_that_learned_as_well_with_older_data_are_pipelined():
    """DQN and SAC, by the five seeds of docs/speed.md; what is made of them was not compared."""
    algos = sorted(path.stem for path in (CONFIGS / "algo").glob("*.yaml"))
    chosen = {algo: composed(f"algo={algo}").pipelined_min_updates for algo in algos}
    assert {algo: updates for algo, updates in chosen.items() if updates} == {"dqn": 60_000, "sac": 40_000}


def test_a_resumed_run_keeps_its_collector(cores):
    cores(1)
    longer = settings("collector=auto", "algo=dqn", "env=cartpole", *LONG.split())
    then = {**longer.shown, "collector": {**longer.shown["collector"], "pipelined": True}}
    check_same(longer.shown, then, longer.keep_auto_values)
    assert longer.collector["pipelined"] is longer.shown["collector"]["pipelined"] is True


def test_a_run_beside_others_evaluates_inline(cores, monkeypatch):
    cores(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert settings("algo=ppo", "env=cartpole").eval.backend == "inline"


@pytest.mark.parametrize("before", ["inline", "process", None])
def test_a_resumed_run_keeps_its_backend_of_evaluations(cores, before):
    cores(2 if before == "inline" else 1)
    longer = settings("algo=ppo", "env=cartpole")
    evaluation = {key: value for key, value in longer.shown["eval"].items() if key != "backend"}
    then = {**longer.shown, "eval": evaluation | ({"backend": before} if before else {})}
    check_same(longer.shown, then, longer.keep_auto_values)
    assert longer.eval.backend == longer.shown["eval"]["backend"] == (before or "inline")


def test_a_run_goes_on_where_its_algorithm_has_come_to_fit_more():
    now = settings("algo=dqn", "env=cartpole")
    of_then = {key: each for key, each in now.shown["loss"].items() if key != "compatible_with"}
    fits = now.shown["compatible_with"] | {"loss": ["dqn"]}
    check_same(now.shown, {**now.shown, "loss": of_then, "compatible_with": fits}, now.keep_auto_values)


def test_threads_of_a_run_that_did_not_choose_stay_one_and_a_list_of_openmp_s_is_no_limit(cores, monkeypatch):
    cores(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "4,2")
    longer = settings("algo=sac", "env=half_cheetah", WIDE)
    assert longer.torch_threads == 2
    check_same(longer.shown, longer.shown | {"torch_threads": "auto"}, longer.keep_auto_values)
    assert longer.torch_threads == 1


@pytest.mark.parametrize(
    ("overrides", "gamma"),
    [
        ("env=gym env.id=Reacher-v5", 0.95),  # 50 steps
        ("env=gym env.id=Pusher-v5", 0.95),  # 100
        ("env=gym env.id=Pendulum-v1", 0.975),  # 200
        ("env=gym env.id=Pendulum-v1 +env.max_episode_steps=400", 0.9875),
        ("env=gym env.id=CartPole-v1", 0.99),  # 500
        ("env=gym env.id=Swimmer-v5", 0.995),  # 1,000
        ("env=gym env.id=CliffWalking-v1", 0.99),  # without a limit
        ("env=minatar env.id=MinAtar/Breakout-v1 env.max_episode_steps=100", 0.99),  # a family's
        ("env=gym env.id=tests.fakes.probe_envs:Clockwork-v0", 0.95),  # a task of one's own
        ("env=gym env.id=tests.fakes.probe_envs:Clockwork-v0 resume=theirs trust=true", 0.95),
        ("env=gym env.id=Pusher-v5 loss.value_estimator.gamma=0.98", 0.98),
        ("env=pendulum", 0.9),  # by its tuned numbers
        ("experiment=quickstart", 0.99),
    ],
)
def test_the_discount_follows_from_how_long_episodes_are(overrides, gamma):
    found = settings("algo=ppo", *overrides.split())
    assert found.loss.value_estimator["gamma"] == found.shown["loss"]["value_estimator"]["gamma"] == gamma


def test_no_module_of_a_stranger_s_task_is_imported_for_its_discount():
    sys.modules.pop("antigravity", None)
    with pytest.raises(UserError, match="antigravity"):
        settings("algo=ppo", "env=gym", "env.id=antigravity:Env-v0", "resume=theirs")
    assert "antigravity" not in sys.modules
