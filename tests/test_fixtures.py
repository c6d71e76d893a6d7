"""What commit cf01aa0 wrote: its runs load, play, resume, fork and are reported; its data is read.

``tests/fixtures/make.py`` made the archives; ``expectations.json`` has what its policies did.
"""

import json
import re
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from torchrl.envs.utils import ExplorationType, set_exploration_type

import hydrl
from hydrl.run.checkpoint import archive as checkpoint
from tests.conftest import ROOT, logged, saved, start, typed
from tests.fixtures import make

FIXTURES = ROOT / "tests" / "fixtures"
EXPECTED = json.loads((FIXTURES / "expectations.json").read_text())
SAME_ROUNDING = EXPECTED.pop("rounding") == make.digest_rounding()
POLICIES = [(run, int(frames)) for run, policies in EXPECTED.items() for frames in policies]
WITHOUT_DIGEST = "the checkpoint of an earlier version does not record the rows of data.path"


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All of them; who changes one takes a copy."""
    place = tmp_path_factory.mktemp("fixtures")
    for archive in FIXTURES.glob("*.tar.xz"):
        with tarfile.open(archive) as file:
            file.extractall(place, filter="data")
    return place


@pytest.fixture(autouse=True)
def _needs_games(request: pytest.FixtureRequest) -> None:
    if "self_play" in request.node.name:
        pytest.importorskip("pettingzoo")


def rows(folder: Path) -> list[dict[str, float]]:
    """The rows of metrics.csv without seconds, as numbers; what is empty is left out."""
    return [{name: float(value) for name, value in row.items() if value} for row in logged(folder)]


def alike(rows: list[dict[str, float]]) -> list:
    """The rows up to what another processor's rounding makes of a few updates."""
    return [pytest.approx(row, rel=1e-3, abs=1e-4) for row in rows]


def resume(folder: Path, *words: str) -> str:
    """Goes on with a run and returns what was printed, in one line."""
    done = typed(f"resume={folder}", *words)
    assert done.returncode == 0, done.stderr
    return " ".join((done.stdout + done.stderr).split())


def test_they_are_small_and_hold_nothing_of_the_machine_that_made_them(unpacked: Path):
    assert sum(file.stat().st_size for file in FIXTURES.iterdir() if file.is_file()) < 10_000_000
    names = {file.name.partition(".")[0] for file in FIXTURES.glob("*.tar.xz")}
    assert names == {*make.RUNS, *make.OTHERS}
    for file in unpacked.rglob("*"):
        assert not file.is_symlink()
        if file.suffix in (".yaml", ".json", ".csv", ".txt"):
            paths = re.findall(r"(?<![\w.}])/[a-z]\w+/[\w/-]+", file.read_text())
            assert all(path.startswith("/tmp/hydrl-fixtures") for path in paths), (file, paths)


@pytest.mark.parametrize(("run", "frames"), POLICIES)
def test_a_policy_acts_as_it_did(run: str, frames: int, unpacked: Path):
    expected = EXPECTED[run][str(frames)]
    policy = hydrl.load(unpacked / run, frames)
    actions = [
        np.asarray(policy.predict(np.float32(observation))).tolist()
        for observation in expected.get("observations", [])
    ]
    assert actions == [pytest.approx(action, abs=1e-5) for action in expected.get("actions", [])]
    env = policy.env()
    env.set_seed(0)
    with set_exploration_type(ExplorationType.DETERMINISTIC), torch.no_grad():
        steps = env.rollout(8, policy.actor)
    for name, values in expected["rollout"].items():
        np.testing.assert_allclose(steps[name].float(), values, rtol=1e-5, atol=1e-5, err_msg=name)
    scores = hydrl.runs(unpacked / run)[0].evaluate(3, frames)
    assert scores["returns"].tolist() == pytest.approx(expected["evaluate"]["returns"], rel=1e-5)
    assert scores["lengths"].tolist() == expected["evaluate"]["lengths"]


@pytest.mark.parametrize(
    ("run", "stop"),
    [*((run, 360 if run == "dqn" else 384) for run in make.RUNS), ("self_play", 256)],
)
def test_a_run_that_was_killed_goes_on_as_it_did_when_it_was_not(run, stop, unpacked, tmp_path):
    """The last batches are collected and learned from again; in self-play an opponent joins after 300."""
    data = [f"data.path={unpacked / 'demonstrations'}"] if run == "gail" else []
    whole = unpacked / run
    shutil.copytree(whole, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    for archive in checkpoint.archives(tmp_path / "run"):
        if checkpoint.frames_of(archive) > stop:
            archive.unlink()
    output = resume(tmp_path / "run", *data)
    assert f"resumed after {stop:,} frames" in output
    assert (WITHOUT_DIGEST in output) == bool(data)
    if not SAME_ROUNDING:  # of another processor, on which the environments start anew
        assert [row["frames"] for row in rows(tmp_path / "run")] == [row["frames"] for row in rows(whole)]
        return
    assert "; everything continues exactly" in output
    assert rows(tmp_path / "run") == alike(rows(whole))
    ours, theirs = (json.loads((folder / "summary.json").read_text()) for folder in (tmp_path / "run", whole))
    assert ours["resumed_at_frames"] == [stop]
    for key in ("frames", "updates", "eval/return_mean", "eval/return_std", "best_eval/return_mean"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-3), key


def test_dqn_was_stopped_in_the_middle_of_an_episode(unpacked: Path):
    """With rows of its replay buffer, the newest of which have not ended."""
    buffer = saved(unpacked / "dqn", "buffer")
    last = buffer["next"]["done"][-120:].reshape(4, 30)[:, -1]  # 4 environments, 30 steps of each
    assert len(buffer["action"]) == 400
    assert not last.any()
    assert saved(unpacked / "dqn", "collector")["simulator"] is not None


@pytest.mark.parametrize("run", ["ppo", "dqn"])
def test_a_finished_run_goes_on_for_more_frames(run: str, unpacked: Path, tmp_path: Path):
    shutil.copytree(unpacked / run, tmp_path / "run")
    old = rows(unpacked / run)
    batch = int(old[1]["frames"] - old[0]["frames"])
    frames = int(old[-1]["frames"])
    assert f"is finished after {frames} frames" in resume(tmp_path / "run")
    output = resume(tmp_path / "run", f"total_frames={frames + 2 * batch}")
    assert f"total_frames={frames + 2 * batch} (was {frames})" in output
    assert f"resumed after {frames} frames" in output
    assert "; everything continues exactly" in output or not SAME_ROUNDING
    new = rows(tmp_path / "run")
    assert new[: len(old)] == old
    assert [row["frames"] for row in new[len(old) :]] == [frames + batch, frames + 2 * batch]


def test_a_fork_goes_on_with_another_learning_rate(unpacked: Path, tmp_path: Path):
    words = [f"hydra.run.dir={tmp_path / 'fork'}", "optim.lr=1e-4", "schedule=null", "total_frames=768"]
    output = resume(unpacked / "ppo", *words)
    assert f"forking {unpacked / 'ppo'} after 512 frames" in output
    assert "everything else continues exactly" in output or not SAME_ROUNDING
    assert "the learning rate is now 0.0001" in output
    assert rows(tmp_path / "fork")[-1]["frames"] == 768
    forked = json.loads((tmp_path / "fork" / "summary.json").read_text())
    assert forked["frames"] == 768


def test_another_run_begins_with_the_weights(unpacked: Path, tmp_path: Path):
    words = [*make.RUNS["ppo"], "total_frames=128", f"init_from={unpacked / 'ppo'}", "optim.lr=1e-30"]
    done = typed(*words, f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    best = hydrl.load(unpacked / "ppo", "best").actor.state_dict()
    began = hydrl.load(tmp_path / "run", "last").actor.state_dict()
    assert all(torch.equal(began[name], value) for name, value in best.items() if "weight" in name)


def test_runs_and_a_sweep_are_reported(unpacked: Path, tmp_path: Path):
    done = typed(
        *(str(unpacked / name) for name in (*make.RUNS, "sweep")),
        f"out={tmp_path / 'report'}", "seconds=false", script="scripts/report.py",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "10 runs in 8 groups, 0 skipped" in done.stdout
    page = (tmp_path / "report" / "report.md").read_text()
    scores = re.findall(r"^\| `(.*)` \| (\d) \| (\S+)", page, re.M)
    assert sorted(float(mean) for label, count, mean in scores if count == "1") == [
        pytest.approx(mean, rel=5e-3)
        for mean in sorted(
            json.loads((unpacked / run / "summary.json").read_text())["eval/return_mean"] for run in make.RUNS
        )
    ]
    of_sweep = [label for label, count, _ in scores if count == "2"]
    assert [re.findall("(?:memory|rnn)=([a-z]+)", label) for label in of_sweep] == [["gru"], ["lstm"]]


def test_recorded_data_is_read(unpacked: Path):
    minari = unpacked / "minari" / make.MINARI
    for place in (unpacked / "demonstrations", minari):
        done = typed(str(place), "picture=false", script="scripts/data.py")
        assert done.returncode == 0, done.stderr
        assert "330" in done.stdout
        assert "29" in done.stdout


@pytest.mark.parametrize(
    ("algo", "data", "place", "count"),
    [
        ("bc", "npz", "demonstrations", 330),
        ("bc", "minari", f"minari/{make.MINARI}", 330),
        ("cql_discrete", "run", "dqn", 400),
    ],
)
def test_an_offline_algorithm_learns_from_it(algo, data, place, count, unpacked, tmp_path):
    words = [
        f"algo={algo}",
        "env=cartpole",
        "~tuned",
        *make.SHORT,
        "actor.num_cells=[16]",
        "total_frames=256",
    ]
    done = typed(*words, f"data={data}", f"data.path={unpacked / place}", f"hydra.run.dir={tmp_path / 'run'}")
    assert done.returncode == 0, done.stderr
    with next((tmp_path / "run" / "checkpoints").glob("*.torchrl")).open("rb"):
        metadata = checkpoint.verify(checkpoint.find(tmp_path / "run", "last"))
    assert metadata["data"]["rows"] == count
    assert rows(tmp_path / "run")[-1]["frames"] == 256


def test_a_search_is_over_and_says_what_was_best(unpacked: Path, tmp_path: Path):
    shutil.copytree(unpacked / "study", tmp_path / "study")
    done = typed(*make.STUDY, f"out={tmp_path / 'study'}", script="scripts/search.py")
    assert done.returncode == 0, done.stderr
    assert "best of 2 trials: 13.7" in done.stdout
    assert "optim.lr: 0.0006" not in done.stdout
    assert "lr: 0.0006" in (tmp_path / "study" / "experiment.yaml").read_text()


@pytest.mark.slow
def test_a_search_goes_on(unpacked: Path, tmp_path: Path):
    shutil.copytree(unpacked / "study", tmp_path / "study")
    words = [word.replace("trials=2", "trials=3") for word in make.STUDY]
    search = start(*words, f"out={tmp_path / 'study'}", script="scripts/search.py")
    output, _ = search.communicate()
    assert search.returncode == 0, output
    assert "best of 3 trials" in output
    (trial,) = (tmp_path / "study").glob("trial-0002/seed0/summary.json")
    assert json.loads(trial.read_text())["frames"] == 512


@pytest.mark.slow
def test_a_sweep_goes_on(unpacked: Path, tmp_path: Path):
    """Each of its runs is found by the label of its folder, and is finished."""
    shutil.copytree(unpacked / "sweep", tmp_path / "sweep")
    folders = {folder.name for folder in (tmp_path / "sweep").iterdir() if folder.is_dir()}
    sweep = start(*make.SWEEP, f"hydra.sweep.dir={tmp_path / 'sweep'}", "resume=auto")
    output, _ = sweep.communicate()
    assert sweep.returncode == 0, output
    assert "4 of 4 finished" in output
    assert {folder.name for folder in (tmp_path / "sweep").iterdir() if folder.is_dir()} == folders
    for folder in folders:
        assert rows(tmp_path / "sweep" / folder) == rows(unpacked / "sweep" / folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "choice",
    [
        ["algo=my_ppo", "env=corridor"],
        ["algo=dqn", "env=corridor", "actor=q_net", "minibatches.warmup_frames=0"],
    ],
)
def test_a_folder_of_one_s_own_trains(choice: list[str], unpacked: Path, tmp_path: Path):
    project = shutil.copytree(unpacked / "my_project", tmp_path / "my_project")
    words = ["--config-dir=conf", *choice, "debug=fast", "total_frames=512", "eval.every_frames=512"]
    words += ["minibatches.warmup_frames=0"] * ("algo=dqn" in choice)
    words += ["eval.stop_when_solved=false", f"hydra.run.dir={tmp_path / 'run'}"]
    for _ in range(9):
        trained = start(*words, script=str(ROOT / "train.py"), cwd=project)
        output, _ = trained.communicate()
        if trained.returncode != 2:
            break
        # Each old word is named with the file, or the module, and the new word.
        for old, new in re.findall(r"([\w.]+) is now (\w+(?:\.\w+)*)", output):
            before, after = old.split("."), new.split(".")
            while before[0] == "hydrl" and before[-1] == after[-1]:  # an import names the module
                before, after = before[:-1], after[:-1]
            whole = before[0] == "hydrl"
            for file in (*project.glob("*.py"), *project.rglob("*.yaml")):
                pattern = re.escape(".".join(before)) if whole else rf"(?m)^(\s*){before[-1]}(?=:)"
                text = ".".join(after) if whole else rf"\g<1>{after[-1]}"
                file.write_text(re.sub(pattern, text, file.read_text()))
    assert trained.returncode == 0, output
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["frames"] == 512
    assert ("loss/flat" in rows(tmp_path / "run")[-1]) == ("algo=my_ppo" in choice)
