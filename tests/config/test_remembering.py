"""A memory is one word that brings what it needs; where nothing here can learn one, a line says why."""

import pytest

from hydrl.config.migrations import new_words
from hydrl.config.settings import read_action_spaces
from hydrl.errors import UserError
from tests.conftest import data_of, settings

TASKS = {"discrete": ["env=cartpole_masked"], "continuous": ["env=pendulum_masked"]}
TASKS |= {
    f"multi-agent {kind}": ["env=custom", "env._target_=tests.fakes.envs.CountingTeam"] for kind in TASKS
}
TASKS |= {"text": ["env=digits"]}
FRESH = {"ppo": 32, "recurrent_ppo": 32, "a2c": 5, "impala": 20, "reinforce": 32}
REPLAYED = ["dqn", "prioritized_dqn", "r2d2", "sac", "td3"]


def words(algo, *more):
    return [f"algo={algo}", *TASKS[read_action_spaces()[algo][0]], "~tuned", *data_of(algo), *more]


@pytest.mark.parametrize("algo", read_action_spaces())
def test_every_algorithm_learns_a_memory_or_says_why_not(algo):
    asked = words(algo, "rnn=lstm")
    if algo not in [*FRESH, *REPLAYED]:
        named = r"^rnn=({cell: lstm, hidden_size: 64}|gru)"
        why = named + r": does not go with [\w=]+, which .{20,}\. Use rnn=null\.$"
        with pytest.raises(UserError, match=why):
            settings(*asked)
        return
    chosen = settings(*asked)
    assert chosen.actor["rnn"]["hidden_size"] == 64
    assert chosen.minibatches["sequence"] == FRESH.get(algo, 32)
    assert chosen.steps_per_row == (1 if algo in FRESH else 32)
    target = chosen.minibatches["_target_"].rpartition(".")[2]
    assert target == ("Epochs" if algo in FRESH else "SequenceReplay")
    loss = chosen.loss.module["_target_"].rpartition(".")[2]
    assert (loss == "RecurrentDQNLoss") == ("dqn" in algo or algo == "r2d2")


@pytest.mark.parametrize("algo", ["ppo", "dqn"])
def test_without_the_word_nothing_of_it_is_there(algo):
    chosen = settings(*words(algo))
    assert chosen.actor["rnn"] is None
    assert chosen.minibatches.get("sequence") is None
    assert chosen.build("buffer")().storage.max_size == chosen.buffer["storage"]["max_size"]


def test_a_memory_holds_so_many_frames_whatever_its_rows_are():
    for choice in ("replay", "prioritized"):
        chosen = settings(*words("dqn", "rnn=lstm", f"buffer={choice}", "minibatches.sequence=40"))
        assert chosen.buffer["storage"]["max_size"] == 100_000
        assert chosen.build("buffer")().storage.max_size == 5_000


def test_tuned_numbers_hold_for_what_a_memory_learns_by():
    chosen = settings("algo=dqn", "env=cartpole", "rnn=lstm")
    assert (chosen.minibatches["updates"], chosen.minibatches["size"], chosen.minibatches["burn_in"]) == (
        64,
        128,
        8,
    )
    assert chosen.loss.value_estimator["gamma"] == 0.98


REFUSED = {
    "algo=dqn rnn=lstm minibatches=replay": [
        "minibatches=replay: does not go with",
        "Use minibatches=sequences",
    ],
    "algo=dqn rnn=lstm loss=dqn": ["loss=recurrent_dqn learns from sequences"],
    "algo=r2d2 ~rnn": ["minibatches=sequences: is for an RNN. Use rnn=lstm, or another algorithm"],
    "algo=ppo rnn=gru minibatches.sequence=7": ["Use minibatches.sequence=4"],
    "algo=ppo rnn=gru minibatches.sequence=2 minibatches.size=3": ["Use minibatches.size=2 "],
    "algo=ppo rnn=gru minibatches.sequence=1": ["an RNN learns nothing from single steps"],
    "algo=sac rnn=lstm minibatches.n_steps=3": ["minibatches.n_steps=3", "loss=sac", "Use 1"],
    "algo=td3 rnn=gru minibatches.sequence=1 minibatches.burn_in=0": ["minibatches.sequence=1", "Use 2"],
    "algo=r2d2 minibatches.burn_in=32": [
        "minibatches.sequence=32: should be more than minibatches.burn_in=32"
    ],
    "algo=r2d2 minibatches.sequence=2_000": ["minibatches.sequence=2000", "minibatches.size=1024"],
    "algo=r2d2 buffer.storage.max_size=1_024 collector.num_envs=64": [
        "max_size=1024: too small for minibatches.sequence=",
        "64 environ",
    ],
    "algo=dqn rnn=lstm collector=multi_async": ["collector.sync=false", "Use collector=multi_sync"],
    "algo=dqn rnn=lstm loss=c51 actor=distributional": ["does not go with DistributionalDQNLoss"],
}


@pytest.mark.parametrize("typed", REFUSED)
def test_what_would_go_wrong_in_silence_is_refused(typed):
    algo, *more = typed.removeprefix("algo=").split()
    with pytest.raises(UserError) as error:
        settings(*words(algo, *more))
    assert all(each in str(error.value) for each in REFUSED[typed]), error.value


@pytest.mark.parametrize("typed", ["encoder=lstm", "encoder@actor=lstm"])
def test_words_of_older_runs_choose_it_too(typed):
    chosen = settings("algo=ppo", "env=cartpole", "~tuned", *new_words([typed]))
    assert (chosen.actor["rnn"]["hidden_size"], chosen.minibatches["sequence"]) == (64, 32)


def test_one_worker_that_never_waits_does_for_sequences():
    assert settings(*words("dqn", "rnn=lstm", "collector=pipelined")).steps_per_row == 32
