"""What others published: the files themselves, and how they come to stand beside runs."""

import re
from collections import Counter

import gymnasium
import pytest
from matplotlib.figure import Figure

from hydrl.errors import UserError
from hydrl.experiments import baselines, figures, runs
from scripts import report
from tests.experiments.test_report import make_run

HEAD = "task,version,method,frames,return,std,seeds,source,protocol,note\n"
# As `dm_control.suite.ALL_TASKS` has them, DOMAIN-TASK; the suite is no dependency.
DM_CONTROL = """acrobot-swingup ball_in_cup-catch cartpole-swingup cheetah-run finger-spin hopper-hop
pendulum-swingup quadruped-run reacher-easy walker-run walker-walk"""
MINATAR = "Asterix Breakout Freeway Seaquest SpaceInvaders"


def published_rows():
    return [row for file in sorted(baselines.FILES.glob("*.csv")) for row in baselines.read_baselines(file)]


def test_each_published_row_names_a_task_and_a_source():
    gym = {re.sub(r"-v\d+$", "", id) for id in gymnasium.registry}
    known = gym | {f"dm_control/{word}" for word in DM_CONTROL.split()}
    known |= {f"MinAtar/{word}" for word in MINATAR.split()}
    rows = published_rows()
    assert len(rows) == 364
    assert {row.task for row in rows} <= known
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{7,40}:\S+", row.source) for row in rows)
    assert all(row.frames >= 10_000 for row in rows)
    count = Counter((row.task, row.version, row.method, row.source, row.frames) for row in rows)
    assert [row for row, times in count.items() if times > 1] == []
    assert HEAD.strip().split(",") == baselines.COLUMNS


def beside(tmp_path, words, frames=3000, version="v4"):
    """A run of HalfCheetah that ends after so many frames, and the curves drawn beside it."""
    returns = [100.0] * (frames // 1000 - 1)
    run = make_run(
        tmp_path / "run", env="cheetah", returns=returns, config={"env": {"id": f"HalfCheetah-{version}"}}
    )
    loaded, _ = runs.load_runs([run])
    curves = baselines.baseline_curves(baselines.select_baselines(words, loaded), loaded)
    axes = Figure().subplots()
    axes.plot([1000, frames], [100, 100])
    figures.draw_baselines(axes, curves, frames)
    drawn = {container.get_label(): container.lines[0].get_xydata() for container in axes.containers}
    return curves, drawn, axes


def test_figures_are_drawn_up_to_the_frames_of_the_run(tmp_path):
    curves, drawn, axes = beside(tmp_path, "[sac,CROSSQ]", 300_000)
    assert list(curves) == ["CrossQ, SimbaV2 (10 seeds)", "SAC, SimbaV2 (10 seeds)"]
    assert drawn["SAC, SimbaV2 (10 seeds)"][:, 1].tolist() == [6156, 7679, 8593]
    assert drawn["SAC, SimbaV2 (10 seeds)"][:, 0] == pytest.approx([100_000, 200_000, 300_000], abs=7_000)
    assert axes.get_xlim()[1] == pytest.approx(315_000)


def test_the_first_figure_beyond_a_short_run_is_drawn_if_it_is_near(tmp_path):
    _, drawn, axes = beside(tmp_path, "sac", 20_000)
    assert drawn["SAC, SimbaV2 (10 seeds)"][:, 1].tolist() == [6156]
    assert axes.get_xlim()[1] == pytest.approx(105_000)
    _, drawn, axes = beside(tmp_path / "shorter", "sac", 19_000)  # a fifth of the picture would not be left
    assert drawn == {}
    assert axes.get_xlim()[1] == pytest.approx(19_950)


def test_another_version_of_the_task_is_told(tmp_path):
    assert [*beside(tmp_path, "sac", version="v5")[0]] == ["SAC, SimbaV2 (v4, 10 seeds)"]


def test_the_page_tells_what_was_drawn_and_where_it_is_from(tmp_path):
    mine = tmp_path / "mine.csv"
    mine.write_text(HEAD + "CartPole,,mine,3000,77,3,5,our | logs,last evaluation,\n")
    make_run(tmp_path / "run", config={"env": {"id": "CartPole-v1"}})
    make_run(tmp_path / "other", env="hopper", config={"env": {"id": "Mine-v0"}})
    report.main(
        [str(tmp_path / "run"), str(tmp_path / "other"), f"published={mine},dqn", f"out={tmp_path / 'out'}"]
    )
    page = (tmp_path / "out" / "report.md").read_text()
    assert "| mine | CartPole | 5 | 77 ± 3 @ 3,000 | - | last evaluation | our \\| logs |" in page
    link = "https://github.com/kengz/SLM-Lab/blob/96be393/docs/BENCHMARKS.md"
    how = f"moving average of returns at the end | [SLM-Lab]({link})"
    assert f"| DQN | CartPole v1 | 4 | - | 240 @ 200,000 | {how} |" in page
    assert page.count("There are no published returns for this environment.") == 1
    assert f"published={mine},dqn out=" in page
    drawn = (tmp_path / "out" / "curves-cartpole.svg").read_text()
    assert "<!-- mine, our | logs (5 seeds) -->" in drawn
    assert "SLM-Lab" not in drawn  # 200,000 frames are too far off


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task,frames\n", "wrong header. Write task,version,method,frames,return,std,seeds,source"),
        (HEAD + "X,,sac,0,1,,1,us,last,\n", "line 2: frames=0: .*greater than 0"),
        (HEAD + "X,,sac,5,nan,,1,us,last,\n", "line 2: return=nan: "),
        (HEAD + "X,,sac,5,1,,1,,last,\n", "line 2: source=: "),
        (HEAD + "X,,sac,5,1,,1,us\n", "line 2: protocol=None: "),
        (HEAD + "X,,sac,5,1,,1,us,last,,more\n", "line 2: beyond the columns="),
        (HEAD + "X,,sac,5,1,,1,us,last,\n", "no such published returns for cartpole. Environments: X"),
    ],
)
def test_a_wrong_file_is_told_in_a_line(tmp_path, text, message):
    (tmp_path / "a.csv").write_text(text)
    loaded, _ = runs.load_runs([make_run(tmp_path / "run")])
    with pytest.raises(UserError, match=message) as error:
        baselines.select_baselines(str(tmp_path / "a.csv"), loaded)
    assert "\n" not in str(error.value)
