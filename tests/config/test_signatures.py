import re
from dataclasses import dataclass
from typing import Any

import pytest
from hydra.utils import get_object
from torchrl.objectives import ClipPPOLoss, DQNLoss, TD3Loss

from hydrl.config import CONFIGS
from hydrl.config.call_checks import check_keys, check_target
from hydrl.config.signatures import accepted_parameters, targets
from hydrl.config.source_annotations import has_range, own_parameters, own_ranges
from hydrl.envs import gymnasium_env
from hydrl.errors import UserError
from hydrl.networks.actors import q_value


def test_torchrl_keywords_handed_up_to_a_base_count_and_no_others():
    parameters, open_ended = accepted_parameters(ClipPPOLoss)
    assert {"clip_epsilon", "functional", "log_explained_variance"} <= parameters.keys()
    assert "clip_epsilonn" not in parameters
    assert not open_ended
    assert "double_dqn" in accepted_parameters(DQNLoss)[0]
    assert accepted_parameters(gymnasium_env)[1]


def test_keywords_that_are_unpacked_count_by_their_names_and_none_may_lack():
    parameters, open_ended = accepted_parameters(q_value)
    assert {"noisy", "dueling", "num_cells", "activation", "in_keys", "rnn", "norm"} <= parameters.keys()
    assert not open_ended
    node = {
        "_target_": "hydrl.networks.actors.q_value",
        "activation": "ReLU",
        "in_keys": ["observation"],
    }
    with pytest.raises(
        UserError, match=r"actor\._target_=.*: the call .* fails: missing a required argument: 'num_cells'"
    ):
        check_one("actor", node, {"actor": node, "loss": {"networks": {}}})
    whole = node | {"num_cells": [8]}
    check_one("actor", whole, {"actor": whole, "loss": {"networks": {}}})


def hold(path: str, kinds: dict[str, Any], values: dict[str, Any]) -> None:
    """Raises what is wrong with the keys at ``path``."""
    for message in dict(check_keys(path, kinds, values)).values():
        raise UserError(message)


def check_one(path: str, node: dict[str, Any], values: dict[str, Any]) -> None:
    """Raises what is wrong with a target."""
    for message in dict(check_target(path, node, values)).values():
        raise UserError(message)


@pytest.mark.parametrize(
    ("annotation", "value", "fits"),
    [
        (float, 1, True),
        (float, "1", False),
        (int, 1.0, False),
        (int | None, None, True),
        (bool, 1, False),
        (list[int], [64, 64], True),
        (list[int], 64, False),
        (Any, "anything", True),
        (float, {"_target_": "a.part"}, True),
    ],
)
def test_a_value_is_held_to_its_annotation(annotation: Any, value: Any, fits: bool):
    values = {"a": {"_target_": "some.part", "key": value}}
    if fits:
        hold("a", {"key": annotation}, values)
    else:
        with pytest.raises(UserError, match=r"a\.key=.*: should be "):
            hold("a", {"key": annotation}, values)


def test_null_is_not_offered_in_a_list():
    with pytest.raises(UserError, match=r"^a\.key=null: should be a list\.$"):
        hold("a", {"key": list[int]}, {"a": {"key": None}})


def test_the_right_key_of_a_part_in_a_list_is_named():
    values = {"mine": {"parts": [{}, {"_target_": f"{__name__}.three", "first": 1.5, "copy": 3}]}}
    with pytest.raises(UserError, match=r"^mine\.parts\.1\.first=1\.5: should be an integer\.$"):
        hold("mine.parts.1", {"first": int, "copy": int}, values)
    with pytest.raises(
        UserError, match=r"^mine\.parts\.1\.copy=3: should be a list\. Write mine\.parts\.1\.copy=\[3"
    ):
        hold("mine.parts.1", {"first": float, "copy": list[int]}, values)


def test_a_tuple_of_a_library_s_is_as_long_as_it_is_given():
    kinds = {"bounds": accepted_parameters(TD3Loss)[0]["bounds"]}
    for value in ([-1.0, 1.0], [0.5], None):
        hold("a", kinds, {"a": {"bounds": value}})
    with pytest.raises(UserError, match=r"a\.bounds=\[-1\.0, high\]: should be a valid number"):
        hold("a", kinds, {"a": {"bounds": [-1.0, "high"]}})


@dataclass
class Unhashable:
    """A callable that compares by value, and so has no hash."""

    clip: float = 0.2

    def __call__(self, *, size: int) -> None: ...


def test_a_callable_without_a_hash_has_its_parameters():
    for _ in range(2):
        assert accepted_parameters(Unhashable()) == ({"size": Any}, False)


def own_loss(actor: object, critic: object, *, clip: float) -> None:
    """A loss of somebody's own, which knows nothing of a discount."""


def test_a_loss_is_asked_for_what_the_run_gives_it_and_nothing_else():
    node = {"_target_": f"{__name__}.own_loss", "clip": 0.2}
    both = {"actor": "actor", "critic": "critic"}
    check_one("loss.module", node, {"loss": {"module": node, "networks": both}})
    wrong = node | {"gamma": 0.9}
    with pytest.raises(
        UserError,
        match=r"^loss\.module\.gamma=0\.9: .*own_loss takes no gamma\. loss\.module has clip",
    ):
        check_one("loss.module", wrong, {"loss": {"module": wrong, "networks": both}})
    with pytest.raises(UserError, match=r"^loss\.module\._target_=.* argument: 'critic'"):
        check_one("loss.module", node, {"loss": {"module": node, "networks": {"actor": "actor"}}})
    mistaken = {**both, "value_network": "value"}
    with pytest.raises(
        UserError, match=r"^loss\.networks\.value_network=value: .*own_loss takes no value_network\. "
    ):
        check_one("loss.module", node, {"loss": {"module": node, "networks": mistaken}})


def three(first: int, second: int, *, third: int, fourth: int = 4) -> None:
    """What a part of somebody's own may look like."""


def check(path: str, node: dict[str, Any]) -> None:
    check_one(path, node, {"critic": None, path: node})


def test_a_call_must_be_complete_before_it_is_made():
    node = {"_target_": f"{__name__}.three", "first": 1, "second": 2}
    with pytest.raises(UserError, match=r"^mine\._target_=.*three: .*missing a required argument: 'third'"):
        check("mine", node)
    check("mine", node | {"third": 3})
    with pytest.raises(UserError, match=r"optim\.first=1: the run fills this in\. Leave it out"):
        check("optim", node | {"third": 3})
    with pytest.raises(UserError, match=r"mine\.fourt=5: .*three takes no fourt\. Write mine\.fourth=5"):
        check("mine", node | {"third": 3, "fourt": 5})
    with pytest.raises(UserError, match=r"mine\.third=abc: should be an integer"):
        check("mine", node | {"third": "abc"})


def test_an_environment_must_accept_a_device():
    check("env", {"_target_": "torchrl.envs.PendulumEnv"})
    with pytest.raises(UserError, match="unexpected keyword argument 'device'"):
        check("env", {"_target_": "hydrl.library_setup.quieten_libraries"})


def test_nested_targets_are_found_with_their_paths():
    values = {"buffer": {"_target_": "a", "storage": {"_target_": "b"}}, "seed": 0}
    assert [(path, node["_target_"]) for path, node in targets(values)] == [
        ("buffer", "a"),
        ("buffer.storage", "b"),
    ]


def test_annotations_in_the_source_are_those_of_the_imported_component():
    text = "\n".join(file.read_text() for file in CONFIGS.rglob("*.yaml"))
    ranges = 0
    for target in sorted(set(re.findall(r"_target_: (hydrl\.[\w.]+)", text))):
        imported, _ = accepted_parameters(get_object(target))
        own = own_parameters(target)
        assert own.keys() <= imported.keys(), target
        for name, kind in imported.items():
            if has_range(kind) or name in own:
                assert repr(own[name]) == repr(kind), (target, name)
        ranges += len(own_ranges(target))
    assert ranges >= 81
    assert own_parameters("torchrl.objectives.DQNLoss") == {}
