"""A replay memory that keeps each picture once gives what one with whole stacks gives, byte for byte."""

import json
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer
from torchrl.data.replay_buffers import SamplerWithoutReplacement
from torchrl.envs import CatFrames, ToTensorImage

import hydrl.run.checkpoint.replay_buffer
from hydrl.envs import gymnasium_env, make_env
from hydrl.errors import UserError
from hydrl.experience.buffers import PrioritizedSampler, prepare_buffer
from hydrl.experience.frame_dedup import FrameDedup, find_frame_dedup
from hydrl.experience.minibatches import Replay
from hydrl.run.checkpoint import archive
from hydrl.run.checkpoint.replay_buffer import BufferFiles
from hydrl.specs import stacked_images

LOSS = SimpleNamespace(
    value_estimator=SimpleNamespace(gamma=torch.tensor(0.9)),
    tensor_keys=SimpleNamespace(priority="td_error"),
)


class Film:
    """Pictures ``[C, 3, 3]`` that are stacked and never come twice, in episodes of one environment.

    Args:
        seed: of the lengths of episodes and of the pictures.
        stacked: frames in a stack; the first of an episode is repeated.
        channels: of a frame.
        longest: steps of an episode; every third is cut short by a time limit.
    """

    def __init__(self, seed: int, stacked: int = 4, channels: int = 1, longest: int = 9) -> None:
        self.draw = torch.Generator().manual_seed(seed)
        self.stacked, self.channels, self.longest, self.episodes = stacked, channels, longest, 0
        self.begin()

    def frame(self):
        return torch.randint(256, (self.channels, 3, 3), generator=self.draw, dtype=torch.uint8)

    def begin(self):
        self.stack, self.left = [self.frame()] * self.stacked, self.number(1, self.longest + 1)
        self.episodes += 1

    def number(self, low, high):
        return int(torch.randint(low, high, (), generator=self.draw))

    def step(self):
        before, self.left = torch.cat(self.stack), self.left - 1
        self.stack = [*self.stack[1:], self.frame()]
        ended = self.left == 0
        flags = {"terminated": ended and self.episodes % 3 > 0, "truncated": ended and not self.episodes % 3}
        flags = {name: torch.tensor([flag]) for name, flag in {**flags, "done": ended}.items()}
        reward = torch.tensor([float(self.number(0, 9))])
        row = {"pixels": before, "next": {"pixels": torch.cat(self.stack), "reward": reward, **flags}}
        if ended:
            self.begin()
        return TensorDict(row)


def batches(count, envs=3, time=7, workers=0, **film):
    """Batches ``[envs, time]``, ``[workers, envs of each, time]``, or ``[time]`` of no environments."""
    films = [Film(seed, **film) for seed in range(envs or 1)]
    for _ in range(count):
        batch = torch.stack([torch.stack([film.step() for _ in range(time)]) for film in films])
        batch = batch.unflatten(0, (workers, envs // workers)) if workers else batch
        yield batch if envs else batch[0]


def kept_in(storage, buffer=ReplayBuffer, keys=("pixels",), stacked=4):
    """A replay memory that keeps each frame once; whole stacks where no ``keys`` are pictures."""
    sampler = {} if buffer is ReplayBuffer else {"sampler": PrioritizedSampler(storage.max_size, 0.6, 0.4)}
    built = buffer(storage=storage, **sampler)
    return built.append_transform(FrameDedup(built.storage, keys, stacked)) if keys else built


def replay(buffer, **numbers):
    numbers = {"updates": 2, "size": 16, "warmup_frames": 0, "n_steps": 1, "draw": "batch", **numbers}
    return Replay(buffer, LOSS, **numbers)


def drawn(minibatches, batch, seed):
    """Minibatches that a batch leads to, with priorities after each."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    minibatch_list = []
    for minibatch in minibatches(batch):
        minibatch_list.append(minibatch.clone())
        minibatch["td_error"] = minibatch["next", "reward"][:, 0] + 0.1
    return minibatch_list


def same(some, others):
    """Whether two rows or minibatches have the same entries, byte for byte."""
    keys = set(some.keys(True, True))
    return keys == set(others.keys(True, True)) and all(torch.equal(some[key], others[key]) for key in keys)


def compare(whole, once, shown):
    """Learns from batches by both memories, and finds all that they draw and hold equal; the rows stored."""
    for at, batch in enumerate(shown):
        before = batch.clone()
        pairs = zip(drawn(whole, batch, at), drawn(once, batch, at), strict=True)
        assert all(same(*pair) for pair in pairs)
        assert same(batch, before)
    assert same(whole.buffer[:], once.buffer[:])
    assert (
        len(once.buffer) == once.buffer.storage.max_size < once.buffer.write_count
    )  # it is full and went round


CASES = [
    ({}, {}),
    ({"envs": 0}, {}),
    ({"envs": 1, "time": 3}, {"n_steps": 4}),
    ({}, {"n_steps": 3}),
    ({"channels": 3}, {"n_steps": 2}),
    ({"stacked": 1, "channels": 3}, {}),
    ({"longest": 1}, {}),
    ({"longest": 2, "stacked": 1}, {"n_steps": 3}),
    ({"longest": 50, "time": 3}, {"n_steps": 5}),
    ({"envs": 4, "workers": 2}, {"n_steps": 2}),
]


@pytest.mark.parametrize(("film", "numbers"), CASES)
def test_what_is_drawn_and_held_is_what_whole_stacks_give(film, numbers):
    """Over ends and time limits of one environment and several, round the memory more than once."""
    count = 240 // (film.get("envs", 3) or 1) // film.get("time", 7)
    stacked = film.get("stacked", 4)
    whole = replay(kept_in(LazyTensorStorage(60), keys=()), **numbers)
    once = replay(kept_in(LazyTensorStorage(60), stacked=stacked), **numbers)
    compare(whole, once, batches(count, **film))


def test_priorities_are_those_of_whole_stacks():
    numbers = {"draw": "minibatch", "n_steps": 3}
    pair = [kept_in(LazyTensorStorage(60), TensorDictReplayBuffer, keys) for keys in ((), ("pixels",))]
    compare(*(replay(stored, **numbers) for stored in pair), batches(20))


def test_on_disk_it_is_the_same_and_one_memory_of_frames_stays_when_it_grows(tmp_path):
    pair = [
        kept_in(LazyMemmapStorage(60, scratch_dir=tmp_path / name, existsok=True), keys=keys)
        for name, keys in {"whole": (), "once": ("pixels",)}.items()
    ]
    compare(*map(replay, pair), batches(20, longest=2))
    capacity = find_frame_dedup(pair[1]).buffer.storage.max_size
    assert capacity > 80
    assert [path.name for path in (tmp_path / "once").glob("frames-*")] == [f"frames-{capacity}"]


def test_each_frame_is_kept_once():
    memory, shown_stacks = replay(kept_in(LazyTensorStorage(1_000))), set()
    for batch in batches(20):
        drawn(memory, batch, 0)
        for stacks in (batch["pixels"], batch["next", "pixels"]):
            shown_stacks |= {tuple(frame) for frame in stacks.reshape(-1, 9).tolist()}
    frames = find_frame_dedup(memory.buffer).buffer
    assert frames.write_count == len(shown_stacks) > 420
    assert frames.storage.get(slice(None))["pixels"].shape == (len(shown_stacks), 1, 3, 3)
    assert memory.buffer.storage.get(0)["pixels"].dtype == torch.int64


def test_frames_that_no_row_needs_make_room_and_none_else():
    """Long episodes never make it grow; where each is of one step, rows need twice as many and have them."""
    sizes = {}
    for longest in (10_000, 1):
        memory = replay(kept_in(LazyTensorStorage(600)), warmup_frames=1_000)
        for batch in batches(150, envs=2, time=5, longest=longest):
            drawn(memory, batch, 0)
        frames = find_frame_dedup(memory.buffer).buffer
        assert frames.write_count > 2 * frames.storage.max_size
        sizes[longest] = frames.storage.max_size
    assert sizes[10_000] == 630
    assert 1_200 < sizes[1] < 1_400


@pytest.mark.parametrize("keys", [("pixels", "camera"), ("pixels", ("robot", "camera"))])
def test_pictures_of_any_name_and_size_are_kept_together(keys):
    def shown():
        for batch in batches(20):
            for rows in (batch, batch["next"]):
                rows[keys[1]] = torch.stack([rows["pixels"].flip(-1)] * 2, -1).flatten(-2)
                rows["position"] = rows["pixels"].sum((-1, -2)).float()
            yield batch

    pair = [kept_in(LazyTensorStorage(60), keys=image_keys) for image_keys in ((), keys)]
    compare(*map(replay, pair), shown())
    assert pair[1].storage.get(0)[keys[1]].shape == (4,)


def test_a_stack_that_no_step_leads_to_is_stored_anew():
    """A task that jumps in the middle of an episode, and one that stands still."""

    def shown():
        for batch in batches(30):
            batch["pixels"][:, 3] = torch.randint(256, batch["pixels"][:, 3].shape)
            batch["next", "pixels"][:, 5] = batch["pixels"][:, 5]
            yield batch

    pair = [kept_in(LazyTensorStorage(60), keys=image_keys) for image_keys in ((), ("pixels",))]
    compare(*(replay(stored, n_steps=2) for stored in pair), shown())


def saved(memory, folder):
    """A checkpoint of what a memory keeps: what its metadata tell, as JSON, and the writer's state."""
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    state = memory.save()
    archive.save(folder, {"part": {}}, {"frames": memory.buffer.write_count, "memory": state}, keep=2)
    memory.prune()
    return json.loads(json.dumps(state)), memory.buffer.writer.state_dict()


def gone_on(state, folder, minibatches, buffer):
    """Another process's memory and minibatches, from what was saved."""
    memory, (rows_state, writer) = BufferFiles(buffer, folder), state
    memory.load(rows_state, torch.device("cpu"))
    buffer.writer.load_state_dict(writer)
    again = replay(buffer, n_steps=2)
    again.load_state_dict(minibatches.state_dict())
    return memory, again


@pytest.mark.parametrize("longest", [2, 30])
@pytest.mark.parametrize("kind", [LazyTensorStorage, LazyMemmapStorage])
def test_what_goes_on_from_a_checkpoint_is_what_was_never_stopped(longest, kind, tmp_path):
    """Stopped at every fourth batch: before the memory is full, after, and after it grew."""

    def empty():
        place = {"scratch_dir": tmp_path / "replay", "existsok": True} if kind is LazyMemmapStorage else {}
        return kept_in(kind(100, **place))

    unbroken = replay(kept_in(LazyTensorStorage(100)), n_steps=2)
    buffer = empty()
    stopped, memory = replay(buffer, n_steps=2), BufferFiles(buffer, tmp_path)
    for at, batch in enumerate(batches(24, longest=longest)):
        pairs = zip(drawn(unbroken, batch, at), drawn(stopped, batch, at), strict=True)
        assert all(same(*pair) for pair in pairs)
        if at % 4 == 3:
            state = saved(memory, tmp_path)
            memory, stopped = gone_on(state, tmp_path, stopped, empty())
    ours, theirs = (find_frame_dedup(run.buffer) for run in (unbroken, stopped))
    assert ours.state() == theirs.state()
    assert same(ours.buffer.storage.get(slice(None)), theirs.buffer.storage.get(slice(None)))
    assert 105 < ours.buffer.storage.max_size < ours.buffer.write_count / 2


def test_frames_are_written_once_and_those_that_no_checkpoint_needs_go(tmp_path, monkeypatch):
    monkeypatch.setattr(hydrl.run.checkpoint.replay_buffer, "SMALL", 0)
    minibatches = replay(kept_in(LazyTensorStorage(200)))
    memory, all_files = BufferFiles(minibatches.buffer, tmp_path), set()
    for batch in batches(30, longest=40):
        drawn(minibatches, batch, 0)
        saved_state, _ = saved(memory, tmp_path)
        files = saved_state["frames"]["files"]
        spans = [archive.span(name) for name in files]
        assert all(end == begin for (_, end), (begin, _) in pairwise(spans))
        assert spans[-1][1] == saved_state["frames"]["rows"][1] == memory.image_files.buffer.write_count
        frame_files = [
            path for path in (tmp_path / "checkpoints").iterdir() if path.name.startswith("frames-")
        ]
        assert {*files} <= {file.name for file in frame_files}
        held = sum(end - begin for begin, end in (archive.span(file.name) for file in frame_files))
        assert held <= 2.5 * len(memory.image_files.buffer)
        all_files |= {*files}
    assert len(all_files) > 20
    begun = tmp_path / "checkpoints" / sorted(files)[0]
    begun.write_bytes(begun.read_bytes()[:-3])
    newest = archive.archives(tmp_path)[0]
    with pytest.raises(UserError, match=f"{begun} is damaged"):
        archive.verify(newest, with_rows=True)


def test_rows_of_an_older_run_that_have_their_pictures_whole_go_on_with_numbers(tmp_path):
    older = replay(kept_in(LazyTensorStorage(100), keys=()), n_steps=2)
    *shown, last = batches(12)
    for at, batch in enumerate(shown):
        batch["features"] = torch.zeros(*batch.shape, 8)
        drawn(older, batch, at)
    memory = BufferFiles(older.buffer, tmp_path)
    state = saved(memory, tmp_path)
    assert "frames" not in state[0]
    memory, newer = gone_on(
        state, tmp_path, replay(kept_in(LazyTensorStorage(100))), kept_in(LazyTensorStorage(100))
    )
    assert same(older.buffer[:].exclude("features"), newer.buffer[:])
    assert newer.buffer.storage.get(slice(None))["next", "pixels"].shape == (100, 4)
    state = saved(memory, tmp_path)
    assert len(state[0]["files"]) == len(state[0]["frames"]["files"]) == 1
    memory, newer = gone_on(state, tmp_path, newer, kept_in(LazyTensorStorage(100)))
    assert same(older.buffer[:].exclude("features"), newer.buffer[:])
    drawn(newer, last, 0)
    assert newer.buffer.write_count == older.buffer.write_count + 3 * (7 - 2)


def test_a_fork_writes_all_that_it_goes_on_from_into_a_folder_of_its_own(tmp_path):
    minibatches = replay(kept_in(LazyTensorStorage(100)), n_steps=2)
    for at, batch in enumerate(batches(20)):
        drawn(minibatches, batch, at)
    (rows_state, _) = state = saved(BufferFiles(minibatches.buffer, tmp_path / "run"), tmp_path / "run")
    fork = kept_in(LazyTensorStorage(100))
    memory = BufferFiles(fork, tmp_path / "fork")
    memory.load(rows_state, torch.device("cpu"), tmp_path / "run" / "checkpoints")
    fork.writer.load_state_dict(state[1])
    assert same(minibatches.buffer[:], fork[:])
    again, _ = saved(memory, tmp_path / "fork")
    assert again["frames"]["rows"] == rows_state["frames"]["rows"]
    assert {*again["frames"]["files"]} < {path.name for path in (tmp_path / "fork" / "checkpoints").iterdir()}
    with pytest.raises(UserError, match="has rows with images, and this run's rows have none"):
        BufferFiles(kept_in(LazyTensorStorage(100), keys=()), tmp_path / "run").load(
            rows_state, torch.device("cpu")
        )


STACK = partial(gymnasium.wrappers.FrameStackObservation, stack_size=3)


@pytest.mark.parametrize(
    ("task", "transforms", "expected"),
    [
        ({"id": "tests.fakes.pixel_envs:Dot-v0", "wrappers": {"stack": STACK}}, [], (["pixels"], 3)),
        ({"id": "tests.fakes.pixel_envs:Dot-v0"}, [], (["pixels"], 1)),
        (
            {"id": "tests.fakes.pixel_envs:Dot-v0"},
            [partial(CatFrames, N=4, dim=-3, in_keys=["pixels"])],
            (["pixels"], 4),
        ),
        ({"id": "tests.fakes.pixel_envs:Dot-v0"}, [partial(ToTensorImage, in_keys=["pixels"])], ([], 1)),
        ({"id": "tests.fakes.pixel_envs:Scene-v0"}, [], (["camera"], 1)),
        ({"id": "CartPole-v1"}, [], ([], 1)),
    ],
)
@pytest.mark.parametrize("num_envs", [1, 2])
def test_what_is_a_picture_and_of_how_many_frames_the_environment_says(task, transforms, expected, num_envs):
    env = make_env(partial(gymnasium_env, **task), transforms, num_envs=num_envs)
    keys, stacked = stacked_images(env)
    assert (keys, stacked if keys else 1) == expected
    buffer = prepare_buffer(ReplayBuffer(storage=LazyTensorStorage(1_000)), env)
    assert (find_frame_dedup(buffer) is not None) == bool(keys)
    assert len(buffer.transform) == len(keys)  # nothing where all are vectors
    dealt = ReplayBuffer(storage=LazyTensorStorage(10), sampler=SamplerWithoutReplacement())
    assert find_frame_dedup(prepare_buffer(dealt, env)) is None


def test_the_room_that_is_asked_for_counts_each_frame_once():
    make = partial(
        gymnasium_env, "tests.fakes.pixel_envs:Dot-v0", channels=None, size=84, wrappers={"stack": STACK}
    )
    env = make_env(make, [], num_envs=2)
    buffer = prepare_buffer(ReplayBuffer(storage=LazyTensorStorage(1_000)), env)
    size = 84 * 84
    whole, once = (
        hydrl.run.checkpoint.replay_buffer.row_bytes(env, dedup) for dedup in (None, find_frame_dedup(buffer))
    )
    assert whole - once == pytest.approx(6 * size - 1.05 * size - 2 * 3 * 8)
    assert once < 1.07 * size
