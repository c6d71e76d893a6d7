import copy
import re

import pytest
from omegaconf import OmegaConf

from hydrl.config import CONFIGS
from hydrl.config.compatibility import CHECKED_LATER
from hydrl.config.describe import matching_options
from hydrl.config.ranges import MAXIMA, take_limits, type_of
from hydrl.config.schema import NETWORKS, QUANTITIES, RunConfig
from hydrl.config.settings import load, read_action_spaces
from hydrl.config.suggestions import aliases
from hydrl.config.tree import find, option_names, paths, read_option
from hydrl.errors import UserError
from tests.conftest import composed, data_of, settings


def test_every_key_that_a_rule_names_can_be_set():
    known: set[str] = set()
    for file in CONFIGS.rglob("*.yaml"):
        content = OmegaConf.to_container(OmegaConf.load(file))
        group, said = (
            file.relative_to(CONFIGS).parts[0],
            re.match(r"# @package (logger\.\w+)", file.read_text()),
        )
        known |= set(paths(content)) | {f"{said[1] if said else group}.{each}" for each in paths(content)}
    for group, where in (("layers", ""), ("rnn", "rnn.")):  # which lie in each network
        for name in option_names(CONFIGS / group):
            content = OmegaConf.to_container(OmegaConf.load(CONFIGS / f"{group}/{name}.yaml"))
            known |= {f"{network}.{where}{key}" for network in NETWORKS for key in paths(content)}
    known |= set(paths(OmegaConf.to_container(OmegaConf.load(CONFIGS / "train.yaml"))))
    words = [
        word for ours in aliases()["keys"].values() for text in ours for word in text.split(" (")[0].split()
    ]
    typed = {word.partition("=")[0] for word in words if word[0] not in "+~"}
    assert typed <= known | {each.name for each in CONFIGS.iterdir()} | {"hydra.run.dir", "logger.project"}
    assert {key for each in QUANTITIES.values() for key in each.split()} <= known
    assert {key for pair in MAXIMA for key in pair} <= known


def test_every_limit_stands_beside_an_argument_and_can_be_read():
    of_losses = take_limits({"loss": OmegaConf.to_container(OmegaConf.load(CONFIGS / "train.yaml"))["loss"]})
    limited = {f"loss/{key}" for key in of_losses}
    for file in CONFIGS.glob("*/*.yaml"):
        option = str(file.relative_to(CONFIGS).with_suffix(""))
        values = {file.parent.name: read_option(f"/{option}")}
        for key, limit in take_limits(copy.deepcopy(values)).items():
            assert find(values, key) is not None, (option, key)
            type_of(key, limit)
            limited.add(f"{option} {key}")
    assert len(limited) >= 35
    for limit in ("> x y", "positive", 3):
        with pytest.raises(UserError, match=r"^optim\.lr: its limit .* cannot be read\. Write it like"):
            type_of("optim.lr", limit)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "optim._target_=torch.optim.RMSprop ~optim.fused optim.lr=0",
            "optim.lr=0: should be greater than 0",
        ),
        ("algo=td3_bc env=pendulum loss.module.alpha=-1", "alpha=-1: should be greater than or equal to 0"),
        ("algo=sac env=pendulum target.tau=1.1", "target.tau=1.1: should be less than or equal to 1"),
        ("algo=dqn env=cartpole exploration.eps_init=0.0", "is more than exploration.eps_init=0.0"),
        ("algo=rainbow env=cartpole buffer.sampler.alpha=-1", "buffer.sampler.alpha=-1: should be greater"),
        ("loss.module.loss_critic_type=l3", "loss_critic_type=l3: should be 'l1', 'l2' or 'smooth_l1'"),
    ],
)
def test_a_value_beyond_a_limit_is_refused(words: str, message: str):
    with pytest.raises(UserError, match=re.escape(message)):
        settings(*words.split(), *(data_of("td3_bc") if "td3_bc" in words else []))


def test_an_own_option_states_limits_of_its_own():
    own = {"_target_": "torch.optim.SGD", "lr": 2.0, "limits": {"lr": "> 0, < 1"}}
    cfg = composed("run_dir=unused", "env=cartpole")
    cfg.optim = own
    with pytest.raises(UserError, match=r"optim\.lr=2\.0: should be less than 1"):
        load(cfg)
    cfg.optim.lr = 0.5
    assert "limits" not in load(cfg).optim


@pytest.mark.parametrize("algo", read_action_spaces())
def test_what_fits_an_algorithm_exists_and_holds_its_own_defaults(algo: str):
    task = "cartpole" if "discrete" in read_action_spaces()[algo] else "hopper"
    values = settings(f"algo={algo}", f"env={task}", *data_of(algo)).model_dump()
    assert {"loss", "actor", "critic", "buffer"} <= values["compatible_with"].keys()
    assert values["compatible_with"].pop("because")
    for group, fitting in values["compatible_with"].items():
        able = {each or "null" for each in fitting}
        assert able <= {*option_names(CONFIGS / group), "null"}
        node = values[group]
        assert set(matching_options(group, node)) & able, group


def test_a_choice_is_told_by_what_it_is_built_from():
    actor = settings("env=hopper", "actor=tanh_normal").actor
    assert matching_options("actor", actor) == ["state_independent", "tanh_normal"]
    assert matching_options("actor", {"_target_": "my.actor"}) == []
    assert matching_options("critic", None) == ["null"]


def test_what_is_needed_of_another_key_can_be_set():
    """As ``requires`` stands in the files of options; the environment tells some."""
    found = 0
    for file in CONFIGS.rglob("*.yaml"):
        content = OmegaConf.to_container(OmegaConf.load(file))
        for key in (each for each in paths(content) if each.rpartition(".")[2] == "requires"):
            needs = find(content, key)
            assert {each.partition(".")[0] for each in needs} <= {
                *RunConfig.model_fields,
                "because",
                *CHECKED_LATER,
            }, file
            because = needs.pop("because", {})  # one reason for all, or one for each key
            assert isinstance(because, str) or because.keys() == needs.keys(), file
            found += len(needs)
    assert found >= 50


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "algo=rainbow env=cartpole compile=true",
            "does not go with DistributionalDQNLoss, which computes its targets of single steps, outside",
        ),
        (
            "algo=ppo env=hopper actor=tanh_normal layers@actor=batch_renorm",
            "minibatches=epochs: does not go with actor.norm, which normalizes over the minibatch, which "
            "changes the probability of an action; layers@actor=mlp does not. Use minibatches=replay, ",
        ),
        (
            "algo=crossq env=pendulum minibatches.size=1",
            "minibatches.size=1: does not go with critic.norm, which normalizes over the minibatch. Use "
            "minibatches.size=2 or more.",
        ),
        (
            "algo=prioritized_dqn env=cartpole cudagraph=true",
            "cudagraph=true: does not go with buffer=prioritized, which keeps its priorities outside the "
            "graph. Use cudagraph=false",
        ),
    ],
)
def test_what_a_choice_needs_is_told(words: str, told: str):
    with pytest.raises(UserError, match=re.escape(told)):
        settings(*words.split())


def test_rows_that_are_standardised_by_themselves_do_where_a_minibatch_would_not():
    settings(
        "algo=ppo", "env=hopper", "actor=tanh_normal", "layers@actor=layer_norm", "layers@critic=layer_norm"
    )
    settings(
        "algo=td3_bc", "env=pendulum", "data.path=none", "minibatches.size=1", "layers@critic=layer_norm"
    )


def test_a_run_never_writes_over_another(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".hydra").mkdir()
    settings("env=cartpole", run_dir=tmp_path)  # a run that never came to save anything
    (tmp_path / "checkpoints" / "checkpoint-000000000010").mkdir()
    with pytest.raises(UserError, match=f"holds a run already\\. Resume it by resume={tmp_path}"):
        settings("env=cartpole", run_dir=tmp_path)
