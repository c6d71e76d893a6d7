"""Parts that have moved are found where files of earlier name them."""

import pytest
from hydra.utils import get_object

from hydrl.config.call_checks import check_target
from hydrl.config.migrations import (
    new_config,
    new_name,
    new_word,
    new_words,
    old_config,
    old_word,
    table,
    with_encoders,
    with_pipelined,
)
from hydrl.config.user_dirs import add_folders
from hydrl.errors import UserError

ENCODER, RNN = (table()["targets"][name] for name in ("encoder", "rnn"))
EARLIER = [
    "hydrl.parts.actors.tanh_normal",
    "hydrl.parts.agents.critic",
    "hydrl.parts.buffers.PrioritizedSampler",
    "hydrl.parts.collectors.make_collector",
    "hydrl.parts.critics.action_value",
    "hydrl.parts.encoders.BatchRenorm",
    "hydrl.parts.environments.gymnasium_env",
    "hydrl.parts.minibatches.Epochs",
    "hydrl.parts.transforms.action_scaling",
]


def test_each_part_of_earlier_is_found_also_where_it_is_nested():
    values = new_config([{"_target_": each, "norm": {"_target_": each, "size": 3}} for each in EARLIER])
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
    assert new_config(values) == values


def test_a_memory_of_earlier_is_the_part_that_it_became():
    found = new_config({"actor": {"memory": {"gru": 5}, "num_cells": [8]}})
    rnn = {"_target_": new_name(RNN), "_partial_": True, "cell": "gru", "hidden_size": 5}
    assert found == {"actor": {"rnn": rnn, "num_cells": [8]}}


def test_a_run_of_when_all_was_one_vector_compares_as_it_would_be_said_now():
    read, rnn = {"_target_": "reader"}, {"_target_": "memory", "lstm": 64}
    then = {
        "actor": {"in_keys": ["observation"], "num_cells": [64], "rnn": rnn},
        "critic": {"in_keys": ["memory"], "num_cells": [64]},
        "value": None,
        "transforms": {"normalize": {"in_keys": ["observation"], "frames": 9}},
    }
    now = {
        "actor": {"in_keys": None, "num_cells": [64], "rnn": rnn, "encoder": read},
        "critic": {"in_keys": None, "num_cells": [64], "encoder": "shared"},
        "value": None,
        "transforms": {"normalize": {"in_keys": None, "frames": 9}},
        "encoder": read,
        "rnn": rnn,
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
    assert new_config(then) == {"collector": {"_target_": target, "num_envs": 1}, "data": data}
    own = {"collector": {"_target_": "mine.Collector", "path": "a"}}
    assert new_config(own) == own


def test_an_encoder_of_before_there_was_a_choice_scales_as_it_did():
    then = {"actor": {"encoder": {"_target_": ENCODER, "reader": "cnn"}}, "encoder": {"_target_": "mine"}}
    found = new_config(then)
    assert found["actor"]["encoder"] == {"_target_": ENCODER, "reader": "cnn", "scale": "bytes"}
    assert found["encoder"] == {"_target_": "mine"}
    chosen = {"encoder": {"_target_": ENCODER, "scale": "bounds"}}
    assert new_config(chosen) == chosen
    assert new_config(then, scale="bounds")["actor"]["encoder"]["scale"] == "bounds"


def test_only_an_overlapped_collector_is_compared_as_a_pipelined_one():
    target = table()["targets"]["pipelined"]
    overlap = {"_target_": "make", "sync": False, "num_workers": 1, "frames_per_batch": 64}
    now = {"collector": {"_target_": target, "frames_per_batch": 64}}
    assert with_pipelined({"collector": overlap, "seed": 1}, now) == {**now, "seed": 1}
    workers = {"collector": {**overlap, "num_workers": 2}}
    assert with_pipelined(workers, now) == workers
    assert with_pipelined({"collector": overlap}, workers) == {"collector": overlap}
    assert get_object(target).__name__ == "pipelined_collector"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data=run", "data=replay_buffer"),
        ("+data=run", "+data=replay_buffer"),
        ("data=run,npz", "data=replay_buffer,npz"),
        ("data=choice(npz,run)", "data=choice(npz,replay_buffer)"),
        ("data.path=run", "data.path=run"),
        ("collector.path=a/b", "data.path=a/b"),
        ("before.x.loss.fits={}", "extra_learners.x.loss.compatible_with={}"),
        ("minibatches=cut", "minibatches=split"),
        ("minibatches=whole,mixed", "minibatches=trajectories,mixed"),
        ("env.opponents.chance=0.5", "env.opponents.random_prob=0.5"),
        ("loss.compile_from=null", "loss.compile_min_updates=null"),
        ("eval.solved_at=${eval.solved_at}", "eval.reward_threshold=${eval.reward_threshold}"),
        ("eval.mode=loop", "eval.backend=inline"),
        ("eval.mode=ray", "eval.backend=ray"),
        ("~transforms.random_horizon", "~transforms.random_truncation"),
        ("memory=lstm,gru", "rnn=lstm,gru"),
        ("~memory", "~rnn"),
        ("memory@critic.memory=gru", "rnn@critic.rnn=gru"),
        ("memory.gru=8", "rnn.hidden_size=8"),
        ("actor.memory.span=8", "actor.rnn.span=8"),
        ("+critic.memory.lstm=8", "+critic.rnn.hidden_size=8"),
        ("encoder@actor=lstm", "rnn=lstm"),
        (
            "actor._target_=hydrl.parts.networks.actors.tanh_normal",
            "actor._target_=hydrl.networks.actors.tanh_normal",
        ),
        ("env.id=hydrl.parts.environments.t_maze:TMaze-v0", "env.id=hydrl.envs.toy_t_maze:TMaze-v0"),
        ("data.path=hydrl.parts/x.npz", "data.path=hydrl.parts/x.npz"),
        ("~tuned", "~tuned"),
        ("collector=overlap", "collector=pipelined"),
        ("collector=single,overlap", "collector=single,pipelined"),
        ("collector=overlapping", "collector=overlapping"),
    ],
)
def test_an_old_override_is_rewritten(old: str, new: str):
    assert new_word(old) == new
    assert new_word(new) == new


def test_each_rewritten_override_is_printed_once(capsys):
    assert (
        new_words(["algo=bc", "data=run", "data=run", "--config-dir=conf"])[1:3] == ["data=replay_buffer"] * 2
    )
    assert capsys.readouterr().err == "data=run is now data=replay_buffer\n"


@pytest.mark.parametrize(
    ("word", "old"),
    [
        ("rnn=gru", "memory=gru"),
        ("rnn.hidden_size=8", "memory.lstm=8"),
        ("minibatches=split", "minibatches=cut"),
        ("eval.backend=inline", "eval.mode=loop"),
        ("extra_learners.d.loss.requires={}", "before.d.loss.needs={}"),
        ("memory=gru", "memory=gru"),
        ("collector=pipelined", "collector=pipelined"),  # no new name of an old option
        ("seed=1", "seed=1"),
    ],
)
def test_a_folder_keeps_its_first_name(word: str, old: str):
    assert old_word(word) == old


def test_wandb_keeps_its_first_keys():
    then = {
        "memory": {"_target_": RNN, "lstm": 3, "span": None},
        "actor": {"memory": None},
        "eval": {"mode": "ray", "solved_at": 1.0},
        "before": {"d": {"loss": {"compile_from": 3, "fits": {}}}},
    }
    config = new_config(then)
    assert config == {
        "rnn": {"_target_": new_name(RNN), "span": None, "cell": "lstm", "hidden_size": 3},
        "actor": {"rnn": None},
        "eval": {"backend": "ray", "reward_threshold": 1.0},
        "extra_learners": {"d": {"loss": {"compile_min_updates": 3, "compatible_with": {}}}},
    }
    assert old_config(config) == then | {"memory": {"_target_": new_name(RNN), "lstm": 3, "span": None}}


def test_the_id_of_a_saved_environment_is_rewritten():
    then = {
        "env": {
            "_target_": "hydrl.parts.environments.gymnasium_env",
            "id": "hydrl.parts.environments.t_maze:T",
        }
    }
    assert new_config(then)["env"] == {
        "_target_": "hydrl.envs.gymnasium_env",
        "id": "hydrl.envs.toy_t_maze:T",
    }


def test_rules_of_a_saved_run_are_rewritten():
    then = {"fits": {"data": ["npz", "run"]}, "loss": {"needs": {"memory": [None], "because": "x"}}}
    assert new_config(then) == {
        "compatible_with": {"data": ["npz", "replay_buffer"]},
        "loss": {"requires": {"rnn": [None], "because": "x"}},
    }


def test_the_data_of_a_folder_keeps_its_first_name():
    assert old_word("data=replay_buffer") == "data=run"
    assert old_word("data=npz") == "data=npz"


@pytest.mark.parametrize(
    ("file", "content", "advice"),
    [
        (
            "algo/mine.yaml",
            "# @package _global_\ndefaults:\n  - bc\n  - override /data: run\n",
            "/data=run is now",
        ),
        ("algo/mine.yaml", "# @package _global_\nfits: {}\n", "fits is now compatible_with"),
        ("algo/mine.yaml", "# @package _global_\nloss: {needs: {memory: [null]}}", "memory is now rnn"),
        ("algo/mine.yaml", "# @package _global_\nx: '${memory.lstm}'", "${memory.lstm} is now ${rnn.hidden"),
        ("actor/mine.yaml", "_target_: mine\nmemory: null", "actor.memory is now actor.rnn"),
        ("actor/mine.yaml", "_target_: mine\nneeds: {}", "actor.needs is now actor.requires"),
        ("minibatches/mine.yaml", "defaults:\n  - cut\n", "minibatches=cut is now minibatches=split"),
        (
            "actor/mine.yaml",
            "_target_: hydrl.parts.networks.actors.tanh_normal\n",
            "is now hydrl.networks.actors",
        ),
    ],
)
def test_an_old_word_in_a_users_file_is_an_error_that_names_the_new_one(file, content, advice, tmp_path):
    (place := tmp_path / file).parent.mkdir()
    place.write_text(content)
    with pytest.raises(UserError) as error:
        add_folders([tmp_path])
    assert advice.lstrip("/") in str(error.value)
    assert str(error.value).startswith(f"{place}: ")


@pytest.mark.parametrize(
    ("statement", "old", "new"),
    [
        ("from hydrl.parts.losses import Pairs", "parts.losses.Pairs", "losses.build.Pairs"),
        ("import hydrl.parts.transforms", "parts.transforms", "envs.transforms"),
        ("from hydrl.parts.networks import (\n    heads)", "parts.networks", "networks"),
    ],
)
def test_an_import_by_an_old_name_is_an_error_that_names_the_new(statement, old, new, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = f"my_old_{tmp_path.name}"
    (tmp_path / f"{module}.py").write_text(f"{statement}\n")
    (message,) = dict(check_target("actor", {"_target_": f"{module}.net"}, {})).values()
    assert message.endswith(f": cannot be imported: hydrl.{old} is now hydrl.{new}.")
