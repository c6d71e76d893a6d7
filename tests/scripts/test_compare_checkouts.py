"""Two checkouts compared: what counts as renamed, what as changed, and a small comparison of both kinds."""

import json
import shutil
import tempfile
from pathlib import Path

import pytest
import torch

from scripts.compare_checkouts import (
    DATA,
    QUICK,
    Checkout,
    first_difference,
    flatten,
    main,
    read_algorithm,
    read_migrations,
    reads_data,
)
from tests.conftest import ROOT

MIGRATIONS = read_migrations(Checkout(ROOT, Path(tempfile.mkdtemp()) / "out"))
OLD = {
    "algo": "ppo",
    "fits": {"actor": ["stochastic"]},
    "memory": {"_target_": "hydrl.parts.networks.memory.Memory", "lstm": 64, "needs": {"compile": [False]}},
    "eval": {"mode": "loop"},
    "transforms": {"clip": {"low": 0}, "scale": {"by": 2}},
    "target": None,
}
NEW = {
    "algo": "ppo",
    "compatible_with": {"actor": ["stochastic", "because"]},
    "rnn": {
        "_target_": MIGRATIONS.new_name("hydrl.networks.rnn.Memory"),
        "cell": "lstm",
        "hidden_size": 64,
        "limits": {"hidden_size": [1, 1000]},
    },
    "eval": {"backend": "inline"},
    "transforms": {"clip": {"low": 0}, "scale": {"by": 2}},
    "target": None,
}


def test_a_renamed_configuration_is_the_same_and_rules_do_not_count():
    assert dict(flatten(MIGRATIONS.new_config(OLD))) == dict(flatten(NEW))


def test_a_changed_value_and_another_order_of_transforms_count():
    other = {**NEW, "transforms": dict(reversed(NEW["transforms"].items())), "target": {"tau": 0.1}}
    before, after = dict(flatten(MIGRATIONS.new_config(OLD))), dict(flatten(other))
    keys = {key for key in {**before, **after} if before.get(key, ...) != after.get(key, ...)}
    assert keys == {"transforms (order)", "target", "target.tau"}


def test_the_first_value_that_differs_is_named():
    def run(last: float) -> dict[str, list]:
        step = [torch.ones(2), torch.tensor([1.0, last])]
        return {name: [step, step] for name in ("minibatches", "gradients", "parameters", "optimizer")}

    assert first_difference(run(2.0), run(2.0)) == ""
    assert first_difference(run(float("nan")), run(float("nan"))) == ""
    assert first_difference(run(2.0), run(2.5)) == (
        "minibatches of update 1, value 2 of 2: 1 of 2 numbers differ, by 0.5 at most"
    )
    shorter = {name: steps[:1] for name, steps in run(2.0).items()}
    assert first_difference(run(2.0), shorter) == "minibatches: 2 updates, now 1"
    assert first_difference({**run(2.0), "parameters": []}, run(2.0)) == "no update was made"


def test_every_algorithm_has_a_quick_environment_and_data_where_it_needs_it(tmp_path: Path):
    checkout = Checkout(ROOT, tmp_path / "out")
    offline = {"bc", "cql", "cql_discrete", "decision_transformer", "gail", "iql", "iql_discrete"}
    assert {algo for algo in checkout.names("algo") if reads_data(checkout, algo)} == {
        *offline, "iql_online", "td3_bc",
    }  # fmt: skip
    for algo in checkout.names("algo"):
        env = QUICK[read_algorithm(checkout, algo)["action_spaces"][0]]
        assert algo not in offline or env[0].removeprefix("env=") in DATA


@pytest.mark.slow
def test_a_checkout_is_compared_with_one_that_learns_otherwise(tmp_path: Path, capsys):
    for name in ("src", "configs"):
        shutil.copytree(ROOT / name, tmp_path / "copy" / name)
    shutil.copy(ROOT / "train.py", tmp_path / "copy")
    words = ["--old", str(ROOT), "--new", str(tmp_path / "copy"), "--algos", "a2c,bc"]
    assert main([*words, "--envs", "pendulum"]) == 0
    output = capsys.readouterr().out
    assert "configs: 2 pairs, 2 compose; 0 differ" in output
    assert "  a2c: equal, 8 updates" in output
    assert "  bc: equal, 8 updates" in output
    assert "updates: 2 algorithms; 0 differ" in output

    optim = tmp_path / "copy" / "configs" / "optim" / "adam.yaml"
    optim.write_text(optim.read_text().replace("eps: 1e-8", "eps: 1e-3"))
    assert main([*words, "--envs", "pendulum", "--keep", str(tmp_path / "out")]) == 1
    output = capsys.readouterr().out
    assert "optim.eps: 1e-08 -> 0.001\n    in 1: bc pendulum" in output  # a2c has its own
    assert "configs: 2 pairs, 2 compose; 1 differ" in output
    assert "  a2c: equal, 8 updates" in output
    assert "  bc: parameters of update 1, value 1 of" in output
    composed = json.loads((tmp_path / "out" / "new" / "configs.json").read_text())
    assert composed["bc pendulum"]["config"]["optim"]["eps"] == 0.001
