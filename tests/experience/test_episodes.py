"""Episodes are numbered as they are collected, and pieces of them are drawn from data."""

import pytest
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer, TensorDictReplayBuffer

from hydrl.experience.episodes import (
    EPISODE,
    RETURN_TO_GO,
    EpisodeCounter,
    EpisodeWindows,
    complete_episodes,
    has_episodes,
)


def stepped(*lines: list[tuple[float, bool]]) -> TensorDict:
    """A batch ``[envs, time]``; of each step what is seen and whether it ends its episode."""
    observations = torch.tensor([[value for value, _ in line] for line in lines]).unsqueeze(-1)
    done = torch.tensor([[end for _, end in line] for line in lines]).unsqueeze(-1)
    following = {"observation": observations + 1, "done": done, "reward": torch.ones_like(observations)}
    root = {"observation": observations, "done": torch.zeros_like(done)}
    return TensorDict({**root, "next": TensorDict(following, observations.shape[:2])}, observations.shape[:2])


def test_an_episode_has_one_number_from_batch_to_batch_and_each_environment_its_own():
    episodes = EpisodeCounter()
    first = episodes.add_episode_ids(
        stepped([(0, False), (1, True), (0, False)], [(5, False), (6, False), (7, False)])
    )
    assert first[EPISODE].tolist() == [[0, 0, 1], [2, 2, 2]]
    assert first[EPISODE].dtype == torch.int32  # four bytes a row
    second = episodes.add_episode_ids(stepped([(1, False), (2, True)], [(8, True), (0, False)]))
    assert second[EPISODE].tolist() == [[1, 1], [2, 3]]
    after = episodes.add_episode_ids(stepped([(0, False)], [(1, False)]))
    assert after[EPISODE].tolist() == [[4], [3]]


def test_what_does_not_follow_what_was_seen_last_is_another_episode():
    episodes = EpisodeCounter()
    episodes.add_episode_ids(stepped([(0, False), (1, False)]))
    assert episodes.add_episode_ids(stepped([(7, False), (8, False)]))[EPISODE].tolist() == [
        [1, 1]
    ]  # of another
    assert episodes.add_episode_ids(stepped([(9, False)], [(9, False)]))[EPISODE].tolist() == [
        [2],
        [3],
    ]  # of more


def test_numbers_go_on_where_they_stood():
    episodes, other = EpisodeCounter(), EpisodeCounter()
    episodes.add_episode_ids(stepped([(0, False), (1, False)]))
    other.load_state_dict(episodes.state_dict())
    batch = stepped([(2, True), (0, False)])
    assert (
        other.add_episode_ids(batch)[EPISODE].tolist()
        == episodes.add_episode_ids(batch)[EPISODE].tolist()
        == [[0, 1]]
    )


def test_rows_of_older_runs_have_none():
    buffer = ReplayBuffer(storage=LazyTensorStorage(4))
    assert has_episodes(buffer)
    buffer.extend(TensorDict({"observation": torch.zeros(2, 1)}, [2]))
    assert not has_episodes(buffer)


def stored_rows() -> TensorDict:
    """Rows as a memory has them after it has wrapped: two environments, two steps a batch."""
    episode = torch.tensor([4, 4, 7, 7, 4, 9, 7, 7, 9, 9], dtype=torch.int32)
    before = torch.tensor([2.0, 3, 0, 1, 4, 0, 2, 3, 1, 2]).unsqueeze(-1)
    done = torch.tensor([0, 0, 0, 0, 1, 0, 0, 1, 0, 0]).bool().unsqueeze(-1)
    after = TensorDict({"episode_reward": before + 1, "done": done}, [10])
    return TensorDict({EPISODE: episode, "episode_reward": before, "next": after}, [10])


def test_whole_episodes_stand_together_with_what_they_returned_from_each_row_on():
    rows = complete_episodes(stored_rows())
    assert rows[EPISODE].tolist() == [4, 4, 4, 7, 7, 7, 7]  # the ninth is under way
    assert rows[RETURN_TO_GO].flatten().tolist() == [
        3,
        2,
        1,
        4,
        3,
        2,
        1,
    ]  # of the fourth two rows were written over
    assert rows["episode_reward"].flatten().tolist() == [2, 3, 4, 0, 1, 2, 3]


def test_an_episode_that_was_cut_short_has_no_known_return():
    rows = stored_rows()
    rows["next", "cut_short"] = torch.zeros(10, 1, dtype=torch.bool)
    rows["next", "cut_short"][4] = True
    assert complete_episodes(rows)[EPISODE].unique().tolist() == [7]


def test_pieces_lie_within_an_episode_and_are_drawn_alike():
    episode = torch.tensor([0] * 6 + [1] * 2 + [2] * 3, dtype=torch.int32)
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(11), sampler=EpisodeWindows(episode, 3), batch_size=3
    )
    buffer.extend(TensorDict({"row": torch.arange(11)}, [11]))
    torch.manual_seed(0)
    drawn = buffer.sample(3 * 6_000)
    pieces, mask = drawn["row"].view(-1, 3), drawn["collector", "mask"].view(-1, 3)
    windows = {tuple(value) for value in pieces.tolist()}
    # An episode of two has its last row again, which does not count.
    assert windows == {(0, 1, 2), (1, 2, 3), (2, 3, 4), (3, 4, 5), (6, 7, 7), (8, 9, 10)}
    assert {tuple(value) for value in mask[pieces[:, 0] == 6].tolist()} == {(True, True, False)}
    assert mask[pieces[:, 0] != 6].all()
    for first in (0, 6, 8):
        assert (pieces[:, 0] == first).float().mean().item() == pytest.approx(1 / 6, abs=0.02)
