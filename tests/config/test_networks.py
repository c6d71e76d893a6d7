"""A new kind of network is a line in configs/networks.yaml, a group and an entry of train.yaml."""

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.conftest import ROOT, SMALL_PPO, saved

LOSS = '''
from torchrl.objectives import ClipPPOLoss


class ModelLoss(ClipPPOLoss):
    """PPO with a network that learns to tell the reward."""

    def __init__(self, actor_network, critic_network, model_network, **keywords):
        super().__init__(actor_network, critic_network, **keywords)
        self.model_network = model_network

    def forward(self, tensordict):
        reward = self.model_network(tensordict.select("observation"))["state_value"]
        error = (reward - tensordict["next", "reward"]).square().mean()
        return super().forward(tensordict).set("loss_model", error)
'''


def test_a_new_kind_of_network_is_configured_and_learned_without_a_change_of_the_package(tmp_path: Path):
    for name in ("src", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", tmp_path)
    (tmp_path / "my_losses.py").write_text(LOSS)
    configs = tmp_path / "configs"
    listed = (configs / "networks.yaml").read_text()
    (configs / "networks.yaml").write_text(listed.replace("world_model]", "world_model, forecaster]"))
    root = (configs / "train.yaml").read_text()
    root = root.replace("  - discriminator: null", "  - forecaster: null\n  - discriminator: null")
    root = root.replace("\ndiscriminator: null", "\nforecaster: null\ndiscriminator: null")
    (configs / "train.yaml").write_text(root)
    (configs / "forecaster").mkdir()
    shutil.copy(configs / "critic" / "state_value.yaml", configs / "forecaster" / "mlp.yaml")
    loss = "defaults: [clip_ppo, _self_]\nmodule:\n  _target_: my_losses.ModelLoss\n"
    loss += "networks: {model_network: forecaster}\n"
    (configs / "loss" / "model.yaml").write_text(loss)
    algo = (configs / "algo" / "ppo.yaml").read_text()
    algo = algo.replace("override /loss: clip_ppo", "override /loss: model\n  - override /forecaster: mlp")
    (configs / "algo" / "model_ppo.yaml").write_text(
        algo.replace("loss: [clip_ppo", "loss: [model, clip_ppo").replace("algo: ppo", "algo: model_ppo")
    )
    words = [*SMALL_PPO, "algo=model_ppo", "env=cartpole", "forecaster.num_cells=[8]", "total_frames=64"]
    done = subprocess.run(
        [sys.executable, "train.py", *words, "hydra.run.dir=run"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'src'}", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    with (tmp_path / "run" / "metrics.csv").open() as file:
        assert float([*csv.DictReader(file)][-1]["loss/model"]) > 0
    loss_state = saved(tmp_path / "run", "loss")
    assert next(weight.shape[0] for name, weight in loss_state.items() if "model_network" in name) == 8
