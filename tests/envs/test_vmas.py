"""VMAS' simulator steps all environments at once and draws from generators of its own."""

import csv
from contextlib import closing
from ctypes.util import find_library
from pathlib import Path

import av
import numpy as np
import pytest

from hydrl import envs, specs
from hydrl.errors import UserError
from tests.conftest import needs_vmas, settings

# An episode ends in each batch.
SMALL = ["env=vmas_navigation", "~tuned", "debug=fast", "minibatches.epochs=2", "collector.num_envs=2"]


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "metrics.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True)
def _vmas() -> None:
    needs_vmas()


def test_an_evaluation_leaves_the_training_s_draws_alone(run):
    overrides = ["algo=mappo", *SMALL, "total_frames=768"]
    often = run(*overrides, "eval.every_frames=256", folder="often")
    seldom = run(*overrides, "eval.every_frames=768", folder="seldom")
    ours, theirs = ([row["train/return"] for row in rows(each)] for each in (often, seldom))
    assert ours == theirs
    assert len(set(ours)) == 3


def test_what_vmas_does_not_have_is_told(run):
    with pytest.raises(UserError, match=r"env\.scenario=balanc: no such option\. Try balance, "):
        run("algo=mappo", "env=vmas", "env.scenario=balanc")
    with pytest.raises(
        UserError, match=r"^env\.scenario_kwargs: \{'n_agent': 4\} passed but not used by the s"
    ):
        run("algo=mappo", "env=vmas", "env.scenario=balance", "+env.scenario_kwargs.n_agent=4")
    with pytest.raises(UserError, match=r"continuous actions\. Add \+env\.continuous_actions=false\. Use "):
        run("algo=qmix", "env=vmas", "env.scenario=balance")


def test_agents_that_are_not_alike_learn_by_groups(run):
    small = [word for word in SMALL if not word.startswith("env=")]
    folder = run("algo=mappo", "env=vmas", "env.scenario=simple_tag", *small, "total_frames=512")
    for row in rows(folder):
        assert row["loss/adversary/objective"] != row["loss/agent/objective"]
        assert float(row["train/adversary/return"]) >= 0 >= float(row["train/agent/return"])


@pytest.mark.slow
@pytest.mark.skipif(not find_library("EGL"), reason="VMAS draws through libEGL")
def test_a_film_is_of_the_simulator_s_own_speed(run):
    folder = run("algo=mappo", *SMALL, "total_frames=256", "eval.video=true")
    with av.open(str(folder / "videos" / "final.mp4")) as film:
        stream = film.streams.video[0]
        assert (stream.average_rate, stream.width, stream.height) == (10, 700, 700)
        pictures = [each.to_ndarray(format="gray") for each in film.decode(stream)]
    assert len(pictures) == 101
    assert np.ptp(pictures[0]) > 100  # agents on white
    assert (abs(pictures[0].astype(int) - pictures[-1]) > 50).mean() > 1e-3


def test_one_group_is_called_agents_whatever_its_agents_are():
    chosen = settings("algo=ippo", "env=vmas", "env.scenario=football")
    env = envs.make_env(chosen.build("env"), chosen.transform_builders, num_envs=2)
    with closing(env):
        assert [*specs.agent_groups(env)] == ["agents"]
        assert env.base_env.group_map == {"agents": [f"agent_blue_{k}" for k in range(3)]}
