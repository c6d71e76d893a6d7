import pytest

from hydrl.config.suggestions import instead, no_such_choice, no_such_key
from hydrl.config.tree import paths, show
from tests.conftest import settings

VALUES = {
    "seed": 0,
    "optim": {"_target_": "torch.optim.Adam", "lr": 1e-3, "eps": 1e-8},
    "loss": {"value_estimator": {"gamma": 0.99}},
    "actor": {"num_cells": [64]},
    "critic": {"num_cells": [64]},
}


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("optim.lrr", ["optim.lr"]),  # a sibling
        ("optim/lr", ["optim.lr"]),
        ("lr", ["optim.lr"]),  # the right name in the wrong place
        ("optm.lr", ["optim.lr"]),
        ("num_cells", ["actor.num_cells", "critic.num_cells"]),
        ("sead", ["seed"]),
    ],
)
def test_what_was_meant(wrong: str, right: list[str]):
    assert instead(wrong, list(paths(VALUES))) == f"; did you mean {' or '.join(right)}?"


def test_a_family_s_task_may_be_called_as_another_choice_of_env():
    """The family says which of its own are near."""
    assert settings("algo=sac", "env=dm_control", "env.id=cartpole").task == "cartpole"


def test_a_wrong_key_is_told_with_what_lies_beside_it():
    known = list(paths(VALUES))
    assert instead("loss.value_estimator.other", known) == "; loss.value_estimator has gamma"
    assert instead("optim.deep.other", known) == "; optim has lr, eps"
    assert no_such_key("optim.momentum", "0.9", VALUES) == (
        "optim.momentum=0.9: there is no such key; optim has lr, eps"
    )
    assert no_such_key("optim.amsgrad", "true", VALUES) == (
        "optim.amsgrad=true: there is no such key; optim has lr, eps. "
        "For another argument of torch.optim.Adam write +optim.amsgrad=true"
    )


def test_the_nearest_choice_comes_first():
    offered = ["acrobot", "cartpole", "pendulum"]
    assert (
        no_such_choice("env", "pendulm", offered)
        == "env=pendulm: no such choice; try pendulum, acrobot, cartpole"
    )


@pytest.mark.parametrize(
    ("value", "typed"),
    [(True, "true"), (None, "null"), ("abc", "abc"), ([64, "a"], "[64, a]"), (1e-3, "0.001")],
)
def test_values_are_shown_as_they_are_typed(value: object, typed: str):
    assert show(value) == typed
    assert len(show(list(range(100)))) == 60


@pytest.mark.parametrize(
    ("key", "advice"),
    [
        ("clip_epsilonn", "did you mean +loss.module.clip_epsilon=1?"),
        ("foo", "torchrl.objectives.ClipPPOLoss takes clip_epsilon, entropy_bonus, "),
        ("entropy_coeff", "write +loss.module.entropy_coeff=1"),
    ],
)
def test_a_part_that_is_its_target_alone_lists_what_that_takes(key: str, advice: str):
    networks = {"actor_network": "actor", "critic_network": "critic"}
    values = {"loss": {"module": {"_target_": "torchrl.objectives.ClipPPOLoss"}, "networks": networks}}
    line = no_such_key(f"loss.module.{key}", "1", values)
    assert line.startswith(f"loss.module.{key}=1: there is no such key; {advice}")
    assert "actor_network" not in line
