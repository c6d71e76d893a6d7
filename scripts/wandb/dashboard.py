"""Arranges a W&B project's runs: python scripts/wandb/dashboard.py entity=… project=…

Keys: entity (a user or team; left out, the account's own), project, name (the view's), dry (true prints the
sections and panels and asks no server). Each call saves a new view and prints its address. Runs are averaged
by group, with a band of one standard deviation over the seeds. Needs pip install 'hydrl[dashboard]'.
"""

import importlib.util
import os
import sys
from dataclasses import dataclass
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from hydrl.config.command_line import read_arguments, script
from hydrl.errors import UserError

# What each section's panels draw against frames; a run without a metric is left out of its panel.
SECTIONS = {
    "Return": ["eval/return_mean", "eval/return_min", "train/return", "train/episode_length"],
    "PPO": ["loss/objective", "loss/critic", "train/entropy", "train/explained_variance"],
    "PPO's steps": ["loss/kl_approx", "loss/clip_fraction"],
    "DQN": ["loss/loss", "train/q_value", "train/epsilon"],
    "SAC": ["loss/actor", "loss/qvalue", "train/alpha", "loss/entropy"],
    "Optimizer": ["loss/grad_norm", "train/learning_rate"],
    "Speed": ["time/frames_per_second", "time/elapsed"],
    "Share of the loop's time": ["time/collect", "time/sample", "time/update", "time/evaluate", "time/video"],
}
VIDEOS = ["eval/video", "eval/final_video"]
COLUMNS = ["summary:eval/return_mean", "config:algo", "config:task", "config:seed", "config:optim.lr"]


@dataclass
class Arguments:
    """What the command line can set."""

    entity: str = ""
    project: str = "hydrl"
    name: str = "hydrl"
    dry: bool = False


def workspace(arguments: Arguments) -> Any:
    """The view as W&B's own object, which nothing has sent yet.

    Raises:
        UserError: if the extra is not installed.
    """
    if importlib.util.find_spec("wandb_workspaces") is None:
        raise UserError("wandb-workspaces is not installed. Run pip install 'hydrl[dashboard]'.")
    import wandb_workspaces.reports.v2 as reports
    import wandb_workspaces.workspaces as views

    def plot(key: str) -> Any:
        return reports.LinePlot(
            title=key,
            x="frames",
            y=[key],
            groupby="Group",
            groupby_aggfunc="mean",
            groupby_rangefunc="stddev",
        )

    sections = [
        views.Section(name, [plot(key) for key in keys], is_open=True) for name, keys in SECTIONS.items()
    ]
    videos = views.Section("Videos", [reports.MediaBrowser("videos", media_keys=VIDEOS)])
    return views.Workspace(
        arguments.entity,
        arguments.project,
        arguments.name,
        sections=[*sections, videos],
        settings=views.WorkspaceSettings(x_axis="frames", max_runs=100),
        runset_settings=views.RunsetSettings(groupby=[views.Metric("Group")], pinned_columns=COLUMNS),
    )


def main(arguments: Arguments) -> None:
    """Prints the view, or saves it and prints its address.

    Raises:
        UserError: without the extra, an account, the project or a network.
    """
    view = workspace(arguments)
    if arguments.dry:
        for section in view.sections:
            print(f"{section.name}: {', '.join(panel.title for panel in section.panels)}")
        return
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    if not wandb.login(prompt=False, verify=False):
        raise UserError("no W&B account. Run wandb login, or use dry=true, which saves nothing.")
    server = os.environ.get("WANDB_BASE_URL") or wandb.Settings().base_url
    try:  # W&B itself would try for minutes
        urlopen(server, timeout=10).close()
    except HTTPError:  # it is there, whatever it says
        pass
    except (OSError, ValueError) as error:
        raise UserError(f"{server} cannot be reached: {error}.") from None
    try:
        view.entity = view.entity or wandb.Api().default_entity
        print(view.save().url)
    except Exception as error:  # W&B raises what its server, its GraphQL and requests raise
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"W&B refused the dashboard of {view.entity}/{view.project}: {reason}.") from None


if __name__ == "__main__":
    sys.exit(script(lambda words: main(read_arguments(Arguments, words, "entity=ME project=hydrl")), __doc__))
