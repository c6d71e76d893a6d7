"""The picture of a search: what mattered, where the good values lie, and how the best came about."""

import math
import warnings
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import optuna
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import LogLocator, NullFormatter
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState

from hydrl.run.files import atomically
from hydrl.study.figures import COLOURS, LOOK, REFERENCE, rows
from hydrl.study.search import TOLD
from hydrl.study.space import Plan, ends, text

COLUMNS = 2
WHOLE: dict[str, Any] = {"color": COLOURS[0], "marker": "o", "linestyle": "", "markersize": 7, "alpha": 0.75}
CUT: dict[str, Any] = {
    "color": COLOURS[1],
    "marker": "x",
    "linestyle": "",
    "markersize": 7,
    "markeredgewidth": 2,
}
BEST: dict[str, Any] = {"color": COLOURS[-1], "marker": "*", "linestyle": "", "markersize": 15, "zorder": 5}
FEW = 10  # trials below which importances say little


def save_picture(study: optuna.Study, plan: Plan) -> Path:
    """Draws ``search.png`` and ``search.svg`` into the search's folder.

    Args:
        study: with at least one whole trial.
        plan: the search's.
    """
    trials = study.get_trials(states=TOLD)
    lowest = min(each.value for each in trials if each.value is not None)
    for each in trials:
        if each.value is None or each.user_attrs.get("diverged"):  # what it evaluated to before says little
            each.value = lowest
    shares = importances(trials)
    names = sorted(plan.space, key=lambda name: -shares.get(name, 0.0))
    with matplotlib.rc_context(LOOK):
        figure = picture(trials, names, shares, plan)
        for kind in ("svg", "png"):
            path = plan.out / f"search.{kind}"
            with atomically(path) as partial:
                figure.savefig(
                    partial, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None
                )
    return path


def importances(trials: list[FrozenTrial]) -> dict[str, float]:
    """How much each parameter decides whether a trial is in the best quarter, by PED-ANOVA.

    Trials that were cut short count with their last evaluation: they are the bad ones, and without them
    what makes a trial bad would not be seen.
    """
    told = optuna.create_study(direction="maximize")
    for each in trials:
        told.add_trial(
            optuna.create_trial(params=each.params, distributions=each.distributions, value=each.value)
        )
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=0.25)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # says that there are few; so does the picture
        return optuna.importance.get_param_importances(told, evaluator=evaluator)


def picture(trials: list[FrozenTrial], names: list[str], shares: dict[str, float], plan: Plan) -> Figure:
    """Importances and the history on top, a panel for each parameter below, the most important first."""
    best = max(
        (each for each in trials if each.state == TrialState.COMPLETE), key=lambda each: each.values[0]
    )
    lines = math.ceil(len(names) / COLUMNS)
    heights = [1.5 + 0.32 * len(names), 2.6 * lines]
    figure = Figure(figsize=(10, 0.9 + sum(heights)), layout=ConstrainedLayoutEngine(h_pad=0.09))
    above, below = figure.subfigures(2, 1, height_ratios=heights, squeeze=False)[:, 0]
    bars, history = above.subplots(1, 2, width_ratios=[1, 1.4])
    panels = below.subplots(lines, COLUMNS, squeeze=False, sharey=True).flatten()

    bars.barh(range(len(names)), [shares.get(name, 0.0) for name in names], color=COLOURS[0], height=0.6)
    rows(bars, names)
    bars.set_xlim(0, None)
    bars.set_title("importance" if len(trials) >= FEW else f"importance, a hint: {len(trials)} trials")

    numbers = [each.number for each in trials]
    points(history, trials, numbers, best)
    whole_ones = [each.values[0] if each.state == TrialState.COMPLETE else -math.inf for each in trials]
    reached = np.maximum.accumulate(whole_ones)
    reached[np.isinf(reached)] = math.nan
    history.step(numbers, reached, where="post", label="best so far", **REFERENCE)
    history.set_title("trials in the order they were drawn")
    history.xaxis.get_major_locator().set_params(integer=True)

    for axes, name in zip(panels, names, strict=False):
        slice_of(axes, trials, name, plan.space[name], best)
    for axes in panels[len(names) :]:
        axes.remove()
    for axes in (history, panels[0]):
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    seeds = ", ".join(map(str, plan.seeds))
    figure.suptitle(f"{plan.settings.algo} on {plan.settings.task}")
    below.supylabel(f"closing evaluation, mean over seed{'s' * (len(plan.seeds) > 1)} {seeds}")
    handles = history.get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=4)
    return figure


def points(axes: Axes, trials: list[FrozenTrial], places: list[Any], best: FrozenTrial) -> None:
    """Each trial at its place: whole ones, those cut short, the best."""
    for state, label, look in (
        (TrialState.COMPLETE, "whole trial", WHOLE),
        (TrialState.PRUNED, "cut short, or diverged", CUT),
    ):
        chosen = [
            (place, each.value) for place, each in zip(places, trials, strict=True) if each.state == state
        ]
        if chosen:
            axes.plot(*zip(*chosen, strict=True), label=label, **look)
    axes.plot(places[trials.index(best)], best.values[0], label=f"best, #{best.number}", **BEST)


def slice_of(
    axes: Axes, trials: list[FrozenTrial], name: str, space: BaseDistribution, best: FrozenTrial
) -> None:
    """The trials against one parameter."""
    if isinstance(space, CategoricalDistribution):
        points(axes, trials, [space.choices.index(each.params[name]) for each in trials], best)
        axes.set_xticks(range(len(space.choices)), [text(each) for each in space.choices])
        axes.set_xlim(-0.5, len(space.choices) - 0.5)
    else:
        points(axes, trials, [each.params[name] for each in trials], best)
        low, high = ends(space)
        axes.set_xlim(low - 0.03 * (high - low), high + 0.03 * (high - low))
        if getattr(space, "log", False):
            axes.set_xscale("log")
            axes.set_xlim(low / (high / low) ** 0.03, high * (high / low) ** 0.03)
            axes.xaxis.set_major_locator(LogLocator(subs=(1,) if high / low >= 100 else (1, 2, 5)))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    axes.set_title(name)
