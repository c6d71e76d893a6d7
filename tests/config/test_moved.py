"""Parts that have moved are found where files of earlier name them."""

from hydra.utils import get_object

from hydrl.config.moved import renamed

EARLIER = [
    "hydrl.parts.actors.tanh_normal",
    "hydrl.parts.agents.critic",
    "hydrl.parts.buffers.PrioritizedSampler",
    "hydrl.parts.collectors.make_collector",
    "hydrl.parts.critics.action_value",
    "hydrl.parts.encoders.BatchRenorm",
    "hydrl.parts.environments.gymnasium_env",
    "hydrl.parts.minibatches.Epochs",
    "hydrl.parts.transforms.normaliser",
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
    memory = {"_target_": "hydrl.parts.networks.memory.Memory", "_partial_": True, "gru": 5}
    assert found == {"actor": {"memory": memory, "num_cells": [8]}}
