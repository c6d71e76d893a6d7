"""On CUDA, everything that computes lives there, and a run trains."""

import subprocess
import sys

import pytest
import torch

import hydrl.training.learner
from hydrl.experience.minibatches import Epochs, Replay
from hydrl.run.checkpoint import archive
from tests.training.test_update import COMPILED, agree, twenty_updates

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

RUNS = {
    "ppo": ["algo=ppo", "env=pendulum", "buffer=rollout"],
    "dqn": ["algo=dqn", "env=cartpole", "buffer=replay", "minibatches.warmup_frames=256"],
    "dqn on disk": ["algo=dqn", "env=cartpole", "buffer=memmap", "minibatches.warmup_frames=256"],
    "bf16": ["algo=ppo", "env=pendulum", "buffer=rollout", "precision=bf16"],
    "running normaliser": ["algo=ppo", "env=pendulum", "transforms=running_norm"],
    "workers": [
        "algo=ppo",
        "env=pendulum",
        "collector=multi_sync",
        "collector.num_envs=1",
        "transforms=normalized",
        "init_stats_frames=1_000",
    ],
}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> dict:
    """The loss a run builds, its weights at the start, and the devices of every minibatch and buffer."""
    seen: dict = {"minibatches": set(), "storages": set()}

    class Watched(hydrl.training.Update):
        def __init__(self, loss, *args, **kwargs):
            super().__init__(loss, *args, **kwargs)
            seen["loss"], seen["start"] = loss, [each.detach().clone() for each in loss.parameters()]

        def __call__(self, minibatch):
            seen["minibatches"] |= {value.device.type for value in minibatch.values(True, True)}
            return super().__call__(minibatch)

    monkeypatch.setattr(hydrl.training.learner, "Update", Watched)

    def watched(minibatches):
        def spy(self, batch):
            yield from minibatches(self, batch)
            seen["storages"] |= {value.device.type for value in self.buffer[:].values(True, True)}

        return spy

    for kind in (Epochs, Replay):
        monkeypatch.setattr(kind, "__call__", watched(kind.__call__))
    return seen


@pytest.mark.parametrize("name", RUNS)
def test_a_run_trains_on_the_gpu(name, run, parts):
    small = ["total_frames=1_024", "collector.frames_per_batch=256", "minibatches.size=64"]
    evaluation = ["eval.every_frames=512", "eval.episodes=2", "eval.final_episodes=2", "eval.max_steps=50"]
    folder = run(*RUNS[name], "~tuned", "device=cuda", *small, *evaluation)

    loss = parts["loss"]
    targets = [value for key, value in loss.named_buffers() if key.startswith("target_")]
    assert {each.device.type for each in [*loss.parameters(), *targets]} == {"cuda"}
    assert parts["minibatches"] == {"cuda"}
    assert parts["storages"] == ({"cpu"} if name == "dqn on disk" else {"cuda"})
    assert all(torch.isfinite(each).all() for each in loss.parameters())
    assert any(
        not torch.equal(now, then) for now, then in zip(loss.parameters(), parts["start"], strict=True)
    )

    assert archive.frames_of(archive.find(folder, "last")) == 1_024
    assert (folder / "summary.json").exists()


def test_evaluation_leaves_the_gpu_s_random_generator_as_it_was():
    from hydrl.training.evaluator import preserve_rng

    before = torch.cuda.get_rng_state()
    with preserve_rng():
        torch.rand(10, device="cuda")
    assert torch.equal(torch.cuda.get_rng_state(), before)


@pytest.mark.parametrize("overrides", COMPILED.values(), ids=COMPILED.keys())
def test_a_compiled_update_agrees_with_the_eager_one_after_twenty_updates(overrides):
    for found, expected in zip(
        twenty_updates(overrides, device="cuda", compile=True),
        twenty_updates(overrides, device="cuda"),
        strict=True,
    ):
        agree(found, expected)


@pytest.mark.parametrize(  # losses that sample nothing
    ("name", "compile"),
    [("dqn", False), ("dqn", True), ("dueling dqn", False), ("dueling dqn", True), ("ppo on a choice", True)],
)
def test_a_cuda_graph_agrees_with_the_eager_update_after_twenty_updates(name, compile):
    for found, expected in zip(
        twenty_updates(COMPILED[name], device="cuda", compile=compile, cudagraph=True),
        twenty_updates(COMPILED[name], device="cuda"),
        strict=True,
    ):
        agree(found, expected)


def test_a_loss_that_no_cuda_graph_can_record_is_refused_in_a_line(tmp_path):
    """In a process of its own: what was recorded in part is of no use to CUDA."""
    words = [
        "train.py",
        "algo=ppo",
        "env=cartpole",
        "~tuned",
        "device=cuda",
        "cudagraph=true",
        "compile=false",
    ]
    words += [f"hydra.run.dir={tmp_path / 'run'}"]
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith("error: cudagraph=true: the loss waits for numbers")
