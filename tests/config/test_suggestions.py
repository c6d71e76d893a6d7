import pytest

from hydrl.config.suggestions import advise_key, no_such_choice, no_such_key
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
def test_near_keys(wrong: str, right: list[str]):
    words = " or ".join(f"{key}=3" for key in right)
    assert advise_key(wrong, "3", list(paths(VALUES))) == f"Write {words}"


def test_a_family_s_task_may_be_called_as_another_choice_of_env():
    """The family says which of its own are near."""
    assert settings("algo=sac", "env=dm_control", "env.id=cartpole").task == "cartpole"


def test_a_wrong_key_is_answered_with_what_lies_beside_it():
    known = list(paths(VALUES))
    assert advise_key("loss.value_estimator.other", "3", known) == "loss.value_estimator has gamma"
    assert advise_key("optim.deep.other", "3", known) == "optim has lr, eps"
    assert (
        no_such_key("optim.momentum", "0.9", VALUES) == "optim.momentum=0.9: no such key. optim has lr, eps."
    )
    assert no_such_key("optim.amsgrad", "true", VALUES) == (
        "optim.amsgrad=true: no such key. Write +optim.amsgrad=true."
    )


def test_the_nearest_option_comes_first():
    offered = ["acrobot", "cartpole", "pendulum"]
    assert (
        no_such_choice("env", "pendulm", offered)
        == "env=pendulm: no such option. Try pendulum, acrobot, cartpole."
    )


def test_only_options_that_the_algorithm_learns_with_are_named():
    values = {"compatible_with": {"critic": ["state_value"], "exploration": [None, "e_greedy"]}}
    offered = ["action_value", "quantiles", "state_value"]
    assert no_such_choice("critic", "q_value", offered, values).endswith(". Try state_value.")
    assert no_such_choice("exploration", "None", ["e_greedy", "gaussian"], values).endswith(
        ". Try null, e_greedy."
    )


@pytest.mark.parametrize(
    ("algo", "word", "translation"),
    [
        ("sac", "ent_coef=auto", "loss.module.alpha_init=1.0 (the temperature is learned from there)"),
        ("sac", "ent_coef=0.2", "+loss.module.fixed_alpha=true loss.module.alpha_init=0.2"),
        ("sac", "target_entropy=-3", "loss.module.target_entropy=-3"),
        ("ppo", "ent_coef=0.2", "loss.module.entropy_coeff=0.2"),
        ("ppo", "cuda=false", "device=cpu"),
    ],
)
def test_words_of_other_libraries_are_translated_with_their_values(algo: str, word: str, translation: str):
    values = settings(f"algo={algo}", "env=pendulum").model_dump()
    key, _, value = word.partition("=")
    assert no_such_key(key, value, values) == f"{word}: no such key. Write {translation}."


def test_an_option_in_the_working_folder_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder, advice in (
        ("actor", "Add --config-dir=., which has it."),
        ("conf/actor", "--config-dir=conf"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "net.yaml").touch()
        assert advice in no_such_choice("actor", "net", ["stochastic"])


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
        ("clip_epsilonn", "Write +loss.module.clip_epsilon=1."),
        ("foo", "torchrl.objectives.ClipPPOLoss takes clip_epsilon, entropy_bonus, "),
        ("entropy_coeff", "Write +loss.module.entropy_coeff=1."),
    ],
)
def test_a_part_that_is_its_target_alone_lists_what_that_takes(key: str, advice: str):
    networks = {"actor_network": "actor", "critic_network": "critic"}
    values = {"loss": {"module": {"_target_": "torchrl.objectives.ClipPPOLoss"}, "networks": networks}}
    line = no_such_key(f"loss.module.{key}", "1", values)
    assert line.startswith(f"loss.module.{key}=1: no such key. {advice}")
    assert "actor_network" not in line
