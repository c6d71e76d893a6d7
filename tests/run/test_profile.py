import gzip
import json


def test_the_last_batches_leave_a_trace_and_the_costliest_operators(run):
    folder = run("algo=ppo", "env=cartpole", "debug=fast", "~tuned", "profile_batches=1")
    events = json.loads(gzip.decompress((folder / "trace.json.gz").read_bytes()))["traceEvents"]
    assert sum(event["name"] == "Optimizer.step#Adam.step" for event in events) == 10 * (256 // 64)
    table = (folder / "profile.txt").read_text()
    assert "aten::addmm" in table
    assert "Self CPU" in table


def test_a_run_that_ends_before_them_leaves_none(run):
    overrides = ("eval.solved_at=5", "eval.stop_when_solved=true", "profile_batches=1")
    folder = run("algo=ppo", "env=cartpole", "debug=fast", "~tuned", *overrides)
    assert json.loads((folder / "summary.json").read_text())["frames"] == 1024
    assert not list(folder.glob("trace*"))
    assert not (folder / "profile.txt").exists()
