"""Tuned files choose parts by being named; another choice stands, without the numbers of the tuned one."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.hydra_config import HydraConfig

from hydrl.config import command_line
from hydrl.config.overrides import expand_shorthands
from hydrl.config.tree import find
from hydrl.errors import UserError
from hydrl.run.checkpoint import resume_command
from tests.config.test_command_line import main
from tests.conftest import digest, logged, saved, settings

ORNSTEIN_UHLENBECK = {"exploration._target_": "torchrl.modules.OrnsteinUhlenbeckProcessModule"}
GAUSSIAN = {"exploration._target_": "torchrl.modules.AdditiveGaussianModule"}
LINEAR = {"schedule._target_": "torch.optim.lr_scheduler.PolynomialLR"}
CAR, ACROBOT = "algo=ddpg env=mountain_car_continuous", "algo=dqn env=acrobot"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (CAR, {**ORNSTEIN_UHLENBECK, "exploration.sigma": 0.5, "total_frames": 30_000}),
        (f"{CAR} exploration.sigma=0.3 total_frames=9", {**ORNSTEIN_UHLENBECK, "exploration.sigma": 0.3}),
        (f"{CAR} exploration=gaussian", {**GAUSSIAN, "exploration.sigma": None, "total_frames": 30_000}),
        (f"{CAR} tuned=null", {**GAUSSIAN, "exploration.sigma_init": 0.1, "total_frames": 1_000_000}),
        (f"{CAR} ~tuned", {**GAUSSIAN, "total_frames": 1_000_000}),
        ("algo=ddpg env=pendulum", {**GAUSSIAN, "exploration.sigma_init": 0.2, "total_frames": 12_000}),
        (
            "algo=ddpg env=pendulum exploration=ornstein_uhlenbeck",
            {
                **ORNSTEIN_UHLENBECK,
                "exploration.sigma": 0.2,
                "exploration.sigma_init": None,
                "optim.lr": 1e-3,
            },
        ),
        (
            "algo=ddpg env=pendulum tuned=ddpg/mountain_car_continuous",
            {**ORNSTEIN_UHLENBECK, "exploration.sigma": 0.5, "eval.reward_threshold": -200},
        ),
        (  # the algorithm's own numbers too
            "algo=flash_sac env=pendulum schedule=linear target=hard",
            {
                **LINEAR,
                "schedule.eta_min": None,
                "target.tau": None,
                "target.value_network_update_interval": 32,
            },
        ),
        ("algo=flash_sac env=pendulum schedule=cosine", {"schedule.eta_min": 1.5e-4, "target.tau": 0.01}),
        (ACROBOT, {**LINEAR, "schedule.power": 1.0, "optim.lr": 6.3e-4}),
        (f"{ACROBOT} schedule.power=0", {**LINEAR, "schedule.power": 0.0}),
        (f"{ACROBOT} schedule=null", {"schedule": None, "optim.lr": 6.3e-4}),
        (
            f"{ACROBOT} schedule=cosine",
            {"schedule": {"_target_": "torch.optim.lr_scheduler.CosineAnnealingLR", "eta_min": 0.0}},
        ),
        (f"{ACROBOT} target=soft", {"target.value_network_update_interval": None, "target.tau": 0.005}),
        (f"{ACROBOT} target=null", {"target": None, "actor.num_cells": [256, 256]}),
        ("algo=dqn env=lunar_lander exploration=null", {"exploration": None, "minibatches.n_steps": 3}),
        # What another choice has or takes stays, whether its file says so or not.
        ("algo=sac env=half_cheetah optim=adamw", {"optim.betas": [0.5, 0.999], "optim.weight_decay": 0.01}),
        ("algo=dqn env=cartpole loss=c51 actor=distributional", {"loss.value_estimator.gamma": 0.98}),
        ("algo=dqn env=cartpole actor=dueling", {"actor.num_cells": [128, 128]}),
        ("algo=ppo env=cartpole transforms=plain", {"transforms.reward_scaling.scale": 1.0}),
        ("algo=ppo env=cartpole loss=kl_penalty", {"loss.module.entropy_coeff": 1e-4}),
        # Algorithm and task as configs/train.yaml and experiments have them.
        ("", {"total_frames": 98_304}),
        ("env=cartpole", {"total_frames": 100_000}),
        ("experiment=quickstart", {"total_frames": 1_000_000, "collector.num_envs": 1}),
        ("experiment=dqn_intro tuned=dqn/acrobot", LINEAR),
    ],
)
def test_what_is_tuned_and_what_is_chosen_meet(words: str, found: dict[str, Any]):
    values = settings(*expand_shorthands(words.split())).model_dump()
    assert {path: find(values, path) for path in found} == found


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """A folder of somebody's own with tuned numbers and an experiment."""
    for name, text in {
        "tuned/dqn/cartpole_masked": "defaults: [override /target: soft, _self_]\ntarget: {tau: 0.25}\n",
        "tuned/dqn/acrobot_two": "schedule: {_target_: torch.optim.lr_scheduler.PolynomialLR, power: 2.0}\n",
        "env/acrobot_two": "task: acrobot_two\nenv:\n  _target_: hydrl.envs.gymnasium_env\n"
        "  id: Acrobot-v1\n",
        "experiment/mine": "defaults: [override /algo: dqn, override /env: cartpole_masked]\n",
        "experiment/noisy": "defaults: [override /algo: ddpg, override /env: pendulum,\n"
        "  override /exploration: ornstein_uhlenbeck]\n",
        "tuned/ppo/cartpole_masked": "transforms: {normalize: {settle: 0.5}}\n",
        "experiment/plain": "defaults: [mine, override /tuned: null]\n",
        "experiment/again": "defaults: [plain, override /tuned: auto]\n",
    }.items():
        (tmp_path / "conf" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "conf" / f"{name}.yaml").write_text(f"# @package _global_\n{text}")
    return tmp_path / "conf"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("algo=dqn env=cartpole_masked", {"target.tau": 0.25}),
        ("experiment=mine", {"target.tau": 0.25}),
        ("experiment=mine tuned=null", {"target.value_network_update_interval": 32}),
        ("experiment=plain", {"target.value_network_update_interval": 32}),
        ("experiment=plain tuned=dqn/cartpole_masked", {"target.tau": 0.25}),
        ("experiment=again", {"target.tau": 0.25}),
        ("experiment=noisy", {**ORNSTEIN_UHLENBECK, "exploration.sigma_init": None, "optim.lr": 1e-3}),
        ("algo=ppo env=cartpole_masked", {"transforms.normalize.settle": 0.5}),
        ("algo=ppo env=cartpole_masked transforms=plain", {"transforms.normalize": None}),
        ("algo=dqn env=acrobot_two", {**LINEAR, "schedule.power": 2.0}),
    ],
)
def test_files_of_one_s_own_choose_as_those_of_hydrl_do(words: str, found: dict[str, Any], own: Path):
    values = settings(f"hydra.searchpath=[file://{own}]", *expand_shorthands(words.split())).model_dump()
    assert {path: find(values, path) for path in found} == found


SMALL = ["total_frames=512", "anneal_frames=1_024", "collector.frames_per_batch=128", "minibatches.updates=2"]
SMALL += ["actor.num_cells=[8]", "minibatches.size=16", "collector.num_envs=4", "eval.every_frames=512"]
SMALL += ["eval.episodes=2", "eval.final_episodes=2", "eval.max_steps=20", "checkpoint_every_frames=512"]


def test_a_run_of_before_whose_words_name_no_tuned_file_goes_on_exactly(run, tmp_path, monkeypatch, capsys):
    whole = run(*ACROBOT.split(), *SMALL, "total_frames=1_024", folder="whole")
    half = run(*ACROBOT.split(), *SMALL, folder="half")
    (half / ".hydra").mkdir()
    (half / ".hydra" / "overrides.yaml").write_text(yaml.safe_dump([*ACROBOT.split(), *SMALL]))
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # put back what command_line.run sets
    monkeypatch.setattr(HydraConfig.instance(), "cfg", None)  # and what Hydra does
    monkeypatch.setattr(sys, "argv", ["train.py", f"resume={half}", "total_frames=1_024"])
    assert command_line.run(main, resume_command.expand) == 0, capsys.readouterr().err
    for part in ("actor", "loss", "optimizer", "buffer", "schedule", "exploration", "rng", "collector"):
        assert digest(saved(half, part)) == digest(saved(whole, part)), part
    assert logged(half) == logged(whole)
    assert "tuned" not in (half / ".hydra" / "overrides.yaml").read_text()


def test_numbers_that_a_choice_does_not_take_are_refused_where_they_are_typed():
    words = "algo=ddpg env=pendulum exploration=ornstein_uhlenbeck +exploration.sigma_init=0.5"
    with pytest.raises(UserError, match=r"exploration\.sigma_init=0\.5: .* takes no sigma_init"):
        settings(*words.split())
