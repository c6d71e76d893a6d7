"""Parts that have moved are found where files of earlier name them."""

from hydra.utils import get_object

from hydrl.config.migrations import ENCODER, renamed, with_encoders

EARLIER = [
    "hydrl.parts.actors.tanh_normal",
    "hydrl.parts.agents.critic",
    "hydrl.parts.buffers.PrioritizedSampler",
    "hydrl.parts.collectors.make_collector",
    "hydrl.parts.critics.action_value",
    "hydrl.parts.encoders.BatchRenorm",
    "hydrl.envs.gymnasium_env",
    "hydrl.parts.minibatches.Epochs",
    "hydrl.envs.transforms.normalizer",
]


def test_each_part_of_earlier_is_found_also_where_it_is_nested():
    values = renamed([{"_target_": each, "norm": {"_target_": each, "size": 3}} for each in EARLIER])
    for was, value in zip(EARLIER, values, strict=True):
        name = value["_target_"]
        assert get_object(name).__name__ == was.rpartition(".")[2]
        assert value == {"_target_": name, "norm": {"_target_": name, "size": 3}}


def test_other_values_stay_as_they_are():
    values = {
        "_target_": "my_parts.actors.mine",
        "note": "hydrl.parts.actors.tanh_normal",
        "sizes": [1, None],
    }
    assert renamed(values) == values


def test_a_memory_of_earlier_is_the_part_that_it_became():
    found = renamed({"actor": {"memory": {"gru": 5}, "num_cells": [8]}})
    memory = {"_target_": "hydrl.networks.rnn.RecurrentLayer", "_partial_": True, "gru": 5}
    assert found == {"actor": {"memory": memory, "num_cells": [8]}}


def test_a_run_of_when_all_was_one_vector_compares_as_it_would_be_said_now():
    read, memory = {"_target_": "reader"}, {"_target_": "memory", "lstm": 64}
    then = {
        "actor": {"in_keys": ["observation"], "num_cells": [64], "memory": memory},
        "critic": {"in_keys": ["memory"], "num_cells": [64]},
        "value": None,
        "transforms": {"normalize": {"in_keys": ["observation"], "frames": 9}},
    }
    now = {
        "actor": {"in_keys": None, "num_cells": [64], "memory": memory, "encoder": read},
        "critic": {"in_keys": None, "num_cells": [64], "encoder": "shared"},
        "value": None,
        "transforms": {"normalize": {"in_keys": None, "frames": 9}},
        "encoder": read,
        "memory": memory,
    }
    names = ["actor", "critic", "value"]
    assert with_encoders(then, now, names) == now
    own = {**now, "critic": {**now["critic"], "encoder": read}}  # which would be another run
    assert with_encoders(then, own, names)["critic"]["encoder"] == "shared"
    hidden = {**then, "actor": {**then["actor"], "in_keys": ["speed"]}}
    assert with_encoders(hidden, now, names)["actor"]["in_keys"] == ["speed"]
    assert with_encoders(now, own, names) == now


def test_data_that_a_collector_named_is_a_part_of_its_own():
    target = "hydrl.datasets.collector.DatasetCollector"
    old = "hydrl.run.dataset.DataSet"
    then = {"collector": {"_target_": old, "path": "a", "task": "t", "num_envs": 1}, "data": None}
    data = {"_target_": "hydrl.datasets.collector.load_dataset", "path": "a", "task": "t"}
    assert renamed(then) == {"collector": {"_target_": target, "num_envs": 1}, "data": data}
    own = {"collector": {"_target_": "mine.Collector", "path": "a"}}
    assert renamed(own) == own


def test_an_encoder_of_before_there_was_a_choice_scales_as_it_did():
    then = {"actor": {"encoder": {"_target_": ENCODER, "reader": "cnn"}}, "encoder": {"_target_": "mine"}}
    found = renamed(then)
    assert found["actor"]["encoder"] == {"_target_": ENCODER, "reader": "cnn", "scale": "bytes"}
    assert found["encoder"] == {"_target_": "mine"}
    chosen = {"encoder": {"_target_": ENCODER, "scale": "bounds"}}
    assert renamed(chosen) == chosen
    assert renamed(then, scale="bounds")["actor"]["encoder"]["scale"] == "bounds"
