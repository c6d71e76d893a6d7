"""A run writes into its own folder and nowhere else."""

import subprocess
import sys

import pytest
import yaml

from hydrl.config import CONFIGS
from tests.conftest import SMALL_PPO, start

OPTIONS = [yaml.safe_load(file.read_text()).get("env") or {} for file in (CONFIGS / "env").glob("*.yaml")]
GYMNASIUM = [option for option in OPTIONS if "make" not in option]  # other families make their own
IDS = sorted({id for option in GYMNASIUM if "/" not in (id := str(option.get("id"))) and "-v" in id})
MAKE = """
import sys
from functools import partial
from hydrl import envs
for id in sys.argv[1:]:
    env = envs.make_env(partial(envs.gymnasium_env, id), (), seed=0)
    env.rollout(3)
    env.close()
"""


def test_making_an_environment_writes_nothing(tmp_path):
    assert {"HalfCheetah-v4", "Hopper-v4", "CartPole-v1"} <= {*IDS}
    subprocess.run([sys.executable, "-c", MAKE, *IDS], cwd=tmp_path, check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("words", [["collector=single"], ["collector=multi_sync", "eval.backend=process"]])
def test_a_run_writes_into_its_own_folder_alone(words, tmp_path):
    folder, place = tmp_path / "run", tmp_path / "place"
    place.mkdir()
    fixed = ["transforms=normalized", "init_stats_frames=64"]
    script = str(CONFIGS.parent / "train.py")
    words = [*SMALL_PPO, "env=half_cheetah", *fixed, *words, f"hydra.run.dir={folder}"]
    process = start(*words, script=script, cwd=place)
    output, _ = process.communicate()
    assert process.returncode == 0, output
    assert list(place.iterdir()) == []
    assert sorted(each.name for each in tmp_path.iterdir()) == ["place", "run"]
