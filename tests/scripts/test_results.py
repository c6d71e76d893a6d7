"""The table of results: what it declares, that it goes on, and that its numbers are the runs' own."""

import json
import re
import shutil
import signal
import statistics
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from omegaconf import OmegaConf

from hydrl.config import CONFIGS
from hydrl.config.settings import read_action_spaces
from hydrl.config.tree import option_names, paths
from hydrl.errors import Interrupted, RunError, UserError
from hydrl.experiments import processes, runs
from hydrl.experiments.processes import ProcessPool
from hydrl.experiments.statistics import format_number
from scripts import results as script
from scripts.docs import algorithms_page, prerequisites, results_page
from scripts.docs.prerequisites import Prerequisites
from tests.conftest import settings
from tests.experiments.test_report import make_run

DECLARED = OmegaConf.to_container(OmegaConf.load(script.TABLE))
QUICK = ["debug=fast", "total_frames=512", "eval.every_frames=256"]
SMALL = {
    "seeds": [100, 101],
    "runs": [
        {
            "overrides": ["algo=dqn", "env=cartpole", *QUICK],
            "minutes": 6,
            "published": {"us": "9.5 ± 0.5 @ 10k"},
        },
        {"overrides": ["algo=dqn", "env=pendulum"], "minutes": 30, "published": {}},
    ],
    "sources": {"us": "Ourselves"},
    "notes": "All by hand.",
}


def is_tuned(algo: str, env: str) -> bool:
    return (CONFIGS / "tuned" / algo.removeprefix("algo=") / f"{env.removeprefix('env=')}.yaml").exists()


@pytest.mark.parametrize("row", DECLARED["runs"], ids=lambda row: " ".join(row["overrides"]))
def test_every_declared_run_is_one_that_train_py_takes_and_has_published_figures(row):
    algo, *others = row["overrides"]
    words = ["data.path=none"] if "data" in row else []
    if words or not (
        len(others) == 1 and is_tuned(algo, *others)
    ):  # these tests/config/test_settings.py composes
        chosen = settings(*row["overrides"], *words)
        assert algo == f"algo={chosen.algo}"
        assert f"env={chosen.task}" == others[0] or f"env.id={chosen.task}" in others  # of a family
    assert row.keys() - {"data", "init_from", "seeds"} == {"overrides", "minutes", "published"}
    assert {row[key] for key in ("data", "init_from") if key in row} <= DECLARED["prerequisites"].keys()
    assert row["published"].keys() <= DECLARED["sources"].keys()
    assert all(
        re.fullmatch(r"-?[\d.]+( ± [\d.]+)? @ \d+[kM]", figure) for figure in row["published"].values()
    )


@pytest.mark.parametrize(
    ("names", "count"),
    [
        ([], sum(row.get("seeds", 5) for row in DECLARED["runs"])),
        (["ppo-hopper", "dqn-cartpole"], 15),
        (["ppo-inverted_double_pendulum"], 10),
    ],
)
def test_the_declared_table_has_five_seeds_that_nothing_was_tuned_on_and_rows_are_run_by_name(
    names, count, tmp_path, monkeypatch
):
    assert len(DECLARED["seeds"]) == 5
    assert min(DECLARED["seeds"]) >= 100
    run = []
    monkeypatch.setattr(Prerequisites, "make", lambda *_: None)
    monkeypatch.setattr(results_page, "train_all", lambda lists, *_, **__: run.extend(lists) or 0)
    monkeypatch.setattr(results_page, "write_page", lambda *_: None)
    results_page.make_page(script.TABLE, names, 1, tmp_path, tmp_path / "page.md")
    assert len(run) == len(set(map(tuple, run))) == count


def test_each_run_is_kept_as_it_ends_and_a_table_goes_on_from_what_is_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(script, "TABLE", tmp_path / "table.yaml")
    OmegaConf.save(OmegaConf.create(SMALL), tmp_path / "table.yaml")
    page, out = tmp_path / "page.md", tmp_path / "runs"
    arguments = script.Arguments(jobs=1, out=str(out), page=str(page))
    start = ProcessPool.start

    def stop_after_a_run(trainings, arguments, folder, shown):
        if trainings.started:
            raise Interrupted(signal.SIGINT)
        return start(trainings, arguments, folder, shown)

    class Ended:
        """Takes the place of the other runs: that on CartPole has finished, those on Pendulum are refused."""

        error = "it cannot"

        def __init__(self, arguments, folder, cores, shown):
            self.folder, self.code = folder, 0 if "env=cartpole" in arguments else 2
            self.status = processes.STATUS_BY_CODE[self.code]
            if self.code == 0:
                make_run(folder, 50.0, 101, algo="dqn", overrides=QUICK, returns=(10.0,))

    with monkeypatch.context() as patch:
        patch.setattr(ProcessPool, "start", stop_after_a_run)
        with pytest.raises(Interrupted):
            script.main(arguments)
    printed = capsys.readouterr().out
    assert "0 of 4 runs are kept" in printed
    assert "the others take about 1.2 h" in printed  # twice 6 and twice 30 minutes
    assert "stopped; the same command resumes" in printed
    (first,) = out.glob("dqn-cartpole*/summary.json")
    score = json.loads(first.read_text())["eval/return_mean"]
    assert (
        f"| 1 of 2 | CartPole-v1 | {format_number(score)} | **{format_number(score)}** | 512 |"
        in page.read_text()
    )
    shutil.rmtree(out)

    monkeypatch.setattr(processes, "TrainingProcess", Ended)
    with pytest.raises(RunError, match="not all runs have finished"):
        script.main(arguments)
    printed = capsys.readouterr().out
    assert "1 of 4 runs are kept" in printed
    assert "1 of 3 finished" in printed
    (file,) = page.with_suffix("").glob("*.jsonl")
    stored = list(map(json.loads, file.read_text().splitlines()))
    (second,) = out.glob("dqn-cartpole*/summary.json")
    assert json.loads(second.read_text())["eval/return_mean"] == 50
    scores = [score, 50.0]
    assert [(run["seed"], run["eval/return_mean"]) for run in stored] == [
        *zip([100, 101], scores, strict=True)
    ]
    assert [point[0] for point in stored[0]["curve"]] == [256, 512]
    assert stored[0]["versions"]["torchrl"] == "0.14.1"
    mean = format_number(statistics.mean(scores))
    ours = f"**{mean} ± {format_number(statistics.stdev(scores))}**"
    text = page.read_text()
    assert f"| 2 of 2 | CartPole-v1 | {mean} | {ours} | 1,256 | Ourselves: 9.5 ± 0.5 @ 10k |" in text
    assert "Not measured yet: `algo=dqn env=pendulum`." in text
    assert "RL Baselines3 Zoo's DQN hyperparameters for CartPole-v1; found on seeds 0-9" in text
    untuned = results_page.tuning_note(["algo=dqn", "env=pendulum"])
    assert untuned == "not tuned; the hyperparameters are the defaults of `algo=dqn`."
    assert "All by hand." in text
    assert "![page/curves-cartpole](page/curves-cartpole.png)" in text
    assert (tmp_path / "page/curves-cartpole.png").read_bytes()[:4] == b"\x89PNG"

    results_page.make_page(tmp_path / "table.yaml", [file.stem], 1, out, page)
    assert "2 of 2 runs are kept" in (printed := capsys.readouterr().out)
    assert "; nothing is left to run" in printed


def test_rows_from_data_start_from_a_dataset_of_their_own_seed_and_from_a_run_on_it(tmp_path, monkeypatch):
    """Without training: what is started is noted, and leaves a run folder."""
    started, recorded = [], []

    class Ended:
        error = ""

        def __init__(self, arguments, folder, cores, shown):
            self.folder, self.code, self.status = folder, 0, processes.STATUS_BY_CODE[0]
            started.append((folder.name, [word for word in arguments if word != "resume=auto"]))
            seed = int(folder.name.partition("seed")[2])
            make_run(folder, 10.0, seed, algo=folder.name.partition("-")[0], overrides=arguments)

    def note(command, check):
        recorded.append(command[2:])
        Path(command[3].removeprefix("out=")).mkdir()
        return SimpleNamespace(returncode=0)

    declared = {
        "seeds": [100, 101, 102],
        "prerequisites": {
            "half": {"overrides": ["algo=dqn", "env=cartpole"], "record": ["frames=100", "random=0.5"]},
            "iql": {"overrides": ["algo=iql", "env=cartpole"], "data": "half"},
        },
        "runs": [
            {"overrides": ["algo=bc", "env=cartpole", "data=npz"], "data": "half"},
            {"overrides": ["algo=iql_online", "env=cartpole"], "data": "half", "init_from": "iql"},
        ],
        "sources": {},
        "notes": "",
    }
    for row in declared["runs"]:
        row |= {"minutes": 1, "published": {}, "seeds": 2}
    OmegaConf.save(OmegaConf.create(declared), tmp_path / "table.yaml")
    monkeypatch.setattr(processes, "TrainingProcess", Ended)
    monkeypatch.setattr(prerequisites.subprocess, "run", note)
    out, page = tmp_path / "out", tmp_path / "page.md"
    results_page.make_page(tmp_path / "table.yaml", [], 1, out, page)
    assert [command[0] for command in recorded] == [
        f"run={out}/dqn-cartpole-seed{seed}" for seed in (100, 101)
    ]
    assert recorded[0][1:] == [f"out={out}/half-seed100", "frames=100", "random=0.5"]
    assert [name for name, _ in started] == [
        f"{row}-seed{seed}"
        for row in ("dqn-cartpole", "iql-cartpole", "bc-cartpole-data_npz", "iql_online-cartpole")
        for seed in (100, 101)
    ]
    words = dict(started)
    assert words["bc-cartpole-data_npz-seed101"][-1] == f"data.path={out}/half-seed101"
    assert words["iql_online-cartpole-seed100"][-2:] == [
        f"data.path={out}/half-seed100",
        f"init_from={out}/iql-cartpole-seed100",
    ]
    assert "init_from" not in (text := page.read_text())
    assert "| `algo=bc env=cartpole data=npz`, from `half` | 2 of 2 |" in text
    assert "| `half` | `python train.py algo=dqn env=cartpole seed=100`<br>`python scripts/record.py" in text
    started.clear()
    results_page.make_page(tmp_path / "table.yaml", [], 1, out, page)
    assert not started


def test_a_curve_is_kept_in_a_few_points_and_a_run_again_replaces_itself(tmp_path):
    curve = np.array([[frames, 0.1 * frames, 1.0] for frames in range(100)])
    run = runs.read_run(make_run(tmp_path / "run", 5.0)).model_copy(update={"curve": curve})
    for score in (5.0, 6.0):
        results_page.add_run(tmp_path / "row.jsonl", run.model_copy(update={"score": score}))
    (run_stored,) = results_page.read_runs(tmp_path / "row.jsonl")
    assert run_stored.score == 6
    assert len(run_stored.curve) == 20
    assert run_stored.curve[[0, -1], 0].tolist() == [0, 99]
    (tmp_path / "row.jsonl").write_text("{")
    with pytest.raises(UserError, match=r"row\.jsonl is damaged"):
        results_page.read_runs(tmp_path / "row.jsonl")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"jobs": 0}, "jobs=0"),
        ({"page": "docs"}, "page=docs"),
        ({"page": "nowhere/page.md"}, "page=nowhere"),
        ({"rows": "ppo-hoper"}, "rows=ppo-hoper: there is no such row; try ppo-inverted_double_pendulum, "),
    ],
)
def test_what_the_script_cannot_do_is_said_before_anything_runs(arguments, message, tmp_path):
    with pytest.raises(UserError, match=message):
        script.main(script.Arguments(**{"page": str(tmp_path / "page.md"), **arguments}))


def test_the_pages_of_algorithms_have_each_once_with_its_keys_and_scores(tmp_path):
    for seed, score in ((100, 400.0), (101, 500.0)):
        make_run(tmp_path / str(seed), seed=seed, algo="dqn", env="cartpole", score=score)
    row = [runs.read_run(tmp_path / str(seed)) for seed in (100, 101)]
    pages = algorithms_page.make_pages([row, []])
    listed = re.findall(r"^\| \[.*\]\((.*)#(.*)\) \| `algo=(\w+)` \| (.*?) \|", pages["algorithms.md"], re.M)
    assert sorted(algo for _, _, algo, _ in listed) == option_names(CONFIGS / "algo")
    for page, heading, algo, spaces in listed:
        headings = [algorithms_page.anchor(title) for title in re.findall("^## (.*)$", pages[page], re.M)]
        assert heading in headings
        assert spaces.split(", ") == [
            kind.removeprefix("multi-agent ") for kind in read_action_spaces()[algo]
        ]
    for family in algorithms_page.FACTS["families"].values():
        for algo, facts in family["algorithms"].items():
            known = {*paths(algorithms_page.settings_of(algo))}
            assert {*facts["keys"]} <= known
    assert "| 450.0\N{NO-BREAK SPACE}±\N{NO-BREAK SPACE}70.7 |" in pages["algorithms/dqn.md"]
    assert not any("| ms a frame |" in text for name, text in pages.items() if name != "algorithms/dqn.md")
