"""NashConv of policies and of averages of policies, against OpenSpiel's values of tables made by hand."""

import json
from contextlib import closing, contextmanager

import pytest
import torch
from torch import nn

from hydrl import envs
from hydrl.envs import nash_conv
from hydrl.envs.nash_conv import NashConvMeter
from hydrl.errors import UserError
from tests.conftest import SMALL_PPO, logged, settings, typed

pyspiel = pytest.importorskip("pyspiel")


@contextmanager
def policy_of(id, *overrides, algo="ppo"):
    """An environment of a game and a policy that prefers no action."""
    chosen = settings(f"algo={algo}", "env=open_spiel", f"env.id={id}", "transforms=plain", *overrides)
    with closing(envs.make_env(chosen.build("env"), chosen.transform_builders, seed=0)) as env:
        actor = chosen.build("actor")(env)
        yield env, prefer(actor, 0.0)


def prefer(actor, *logits):
    """Sets the logits of a policy for every observation."""
    *_, last = (module for module in actor.modules() if isinstance(module, nn.Linear))
    nn.init.zeros_(last.weight)
    with torch.no_grad():
        last.bias.copy_(torch.tensor(logits))
    return actor


def weights_of(actor, *logits):
    return {name: value.clone() for name, value in prefer(actor, *logits).state_dict().items()}


@pytest.mark.parametrize(("id", "expected"), [("kuhn_poker", 0.916667), ("leduc_poker", 4.747222)])
def test_uniform_play(id, expected):
    with policy_of(id) as (env, actor):
        values = NashConvMeter(env, actor, "nash").measure()
    assert values["nash_conv"] == pytest.approx(expected, abs=1e-5)
    assert values["nash_policies"] == 0
    assert values["nash_conv_average"] != values["nash_conv_average"]  # NaN: there is no opponent


def kuhn_table(first):
    """The same probability of passing, or by information state, everywhere in Kuhn poker."""
    names = [card + moves for card in "012" for moves in ("", "p", "b", "pb")]
    return {name: [(0, first(name)), (1, 1 - first(name))] for name in names}


def test_probabilities_count_and_not_the_likeliest_action():
    probability = torch.tensor([0.5, 0.0]).softmax(0)[0].item()
    expected = pyspiel.nash_conv(pyspiel.load_game("kuhn_poker"), kuhn_table(lambda name: probability))
    greedy = pyspiel.nash_conv(pyspiel.load_game("kuhn_poker"), kuhn_table(lambda name: 1.0))
    with policy_of("kuhn_poker") as (env, actor):
        measured = NashConvMeter(env, prefer(actor, 0.5, 0.0), "nash").measure()["nash_conv"]
    assert measured == pytest.approx(expected, abs=1e-6)
    assert abs(measured - greedy) > 0.1


def test_invalid_actions_have_no_probability():
    """Folding is what the policy prefers, where nobody has bet too: it is no move there."""
    with policy_of("leduc_poker") as (env, actor):
        meter = NashConvMeter(env, prefer(actor, 3.0, 0.0, 0.0), "nash")
        table = meter.tabulate(actor)
    rows = {name: row for name, row in table.items() if 0 not in row}
    assert len(rows) > 50
    assert all(sum(row.values()) == pytest.approx(1) for row in table.values())
    raises_and_calls = [row for row in rows.values() if len(row) == 2]
    assert all(probability == pytest.approx(0.5) for row in raises_and_calls for probability in row.values())


def test_an_average_is_weighted_by_how_likely_each_policy_comes_there():
    """One of two always passes, one always bets: only the first passes and then meets a bet."""
    first_to_move = {"": 0.5, "p": 0.5, "b": 0.5, "pb": 1.0}
    by_reach = kuhn_table(lambda name: first_to_move[name[1:]])
    expected = pyspiel.nash_conv(pyspiel.load_game("kuhn_poker"), by_reach)
    plain_mean = pyspiel.nash_conv(pyspiel.load_game("kuhn_poker"), kuhn_table(lambda name: 0.5))
    with policy_of("kuhn_poker") as (env, actor):
        pool = [weights_of(actor, 60.0, 0.0), weights_of(actor, 0.0, 60.0)]
        values = NashConvMeter(env, prefer(actor, 0.0), "nash").measure(pool)
    assert values["nash_conv_average"] == pytest.approx(expected, abs=1e-6)
    assert values["nash_policies"] == 2
    assert values["nash_conv"] == pytest.approx(plain_mean, abs=1e-6)
    assert abs(expected - plain_mean) > 0.05


def test_a_policy_reads_observations_by_its_normalizer():
    with policy_of("kuhn_poker", "transforms=normalized_rewards") as (env, actor):
        env.rollout(40, break_when_any_done=False)
        meter = NashConvMeter(env, actor, "nash")
        assert meter.measure()["nash_conv"] == pytest.approx(0.916667, abs=1e-5)


@pytest.mark.parametrize(
    ("id", "overrides", "algo", "message"),
    [
        (
            "connect_four",
            [],
            "ppo",
            "connect_four has more than 100,000 information states. Leave it out.$",
        ),
        ("kuhn_poker", ["+env.players=3"], "ppo", "has 3 players, not two"),
        ("backgammon", [], "ppo", "does not name its information states"),
        (
            "kuhn_poker",
            ["env.seat=player_1"],
            "ppo",
            "player_1 learns one player only. Write env.seat=null",
        ),
        (
            "kuhn_poker",
            [],
            "dqn",
            "this policy has no action probabilities. Use an algorithm",
        ),
    ],
)
def test_games_and_policies_without_it(id, overrides, algo, message):
    chosen = settings(f"algo={algo}", "env=open_spiel", f"env.id={id}", "transforms=plain", *overrides)
    with closing(envs.make_env(chosen.build("env"), chosen.transform_builders, seed=0)) as env:
        actor = chosen.build("actor")(env)
        with pytest.raises(UserError, match=f"^nash=true: .*{message}"):
            NashConvMeter(env, actor, "nash")


def test_other_environments_are_refused(run):
    with pytest.raises(UserError, match=r"^eval\.nash=true: it needs a game of OpenSpiel\. Write"):
        run(*SMALL_PPO, "env=cartpole", "eval.nash=true")


def test_it_does_not_go_with_a_pool_in_another_process():
    words = ["algo=ppo", "env=open_spiel", "env.id=kuhn_poker", "collector=pipelined", "eval.nash=true"]
    with pytest.raises(UserError, match=r"keeps the opponent pool in another process.*Use eval\.nash=false"):
        settings(*words)


@pytest.mark.parametrize("backend", ["inline", "process"])
def test_a_run_logs_it_and_a_script_measures_the_same(run, backend, monkeypatch):
    measured = []
    measure = NashConvMeter.measure

    def noted(self, pool_weights=()):
        measured.append(measure(self, pool_weights))
        return measured[-1]

    monkeypatch.setattr(nash_conv.NashConvMeter, "measure", noted)
    words = ["env=open_spiel", "env.id=kuhn_poker", "env.opponents.every_frames=64", "collector.num_envs=4"]
    folder = run(*SMALL_PPO, *words, "optim.lr=1e-2", "eval.nash=true", f"eval.backend={backend}")
    rows = [row for row in logged(folder) if row["eval/nash_conv"]]
    assert [int(row["frames"]) for row in rows] == [128, 256]
    assert [float(row["eval/nash_policies"]) for row in rows] == [2, 4]
    for row, values in zip(rows, measured, strict=False):
        assert float(row["eval/nash_conv"]) == pytest.approx(values["nash_conv"], rel=1e-5)
        assert float(row["eval/nash_conv_average"]) == pytest.approx(values["nash_conv_average"], rel=1e-5)
    assert len({row["eval/nash_conv"] for row in rows}) == 2
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["eval/nash_conv"] == pytest.approx(measured[-1]["nash_conv"], rel=1e-5)
    finished = typed(f"run={folder}", "episodes=3", "nash=true", script="scripts/evaluate.py")
    assert finished.returncode == 0, finished.stderr
    assert "of the average over 4 kept opponents" in " ".join(finished.stdout.split())
    scores = json.loads((folder / "evaluation.json").read_text())
    for name in ("nash_conv", "nash_conv_average", "nash_policies"):
        assert scores[f"eval/{name}"] == pytest.approx(float(rows[-1][f"eval/{name}"]), rel=1e-4)
