"""Folders of reports: those of killed runs go as the next run begins, and no other."""

import subprocess
import sys
import tempfile
from pathlib import Path

from hydrl.experience.worker_reports import ReportFolder

OWNER = """
import sys, tempfile
from hydrl.experience.worker_reports import ReportFolder

tempfile.tempdir = sys.argv[1]
reports = ReportFolder()
print(reports.name, flush=True)
sys.stdin.read()
"""


def test_the_next_run_removes_the_folders_of_killed_ones_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    other = tmp_path / "hydrl-workers-of-before"
    other.mkdir()
    own = ReportFolder()
    (Path(own.name) / "0").write_text("why")
    command = [sys.executable, "-c", OWNER, str(tmp_path)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        theirs = Path(owner.stdout.readline().strip())
        (theirs / "0").write_text("why")
        ReportFolder().cleanup()
        assert {*tmp_path.iterdir()} == {other, Path(own.name), theirs}
        assert (Path(own.name) / "0").read_text() == (theirs / "0").read_text() == "why"
    finally:
        owner.kill()
        owner.communicate()
    assert theirs.is_dir()
    ReportFolder().cleanup()
    assert {*tmp_path.iterdir()} == {other, Path(own.name)}
    own.cleanup()
    assert {*tmp_path.iterdir()} == {other}
