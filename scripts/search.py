"""Searches hyperparameters with Optuna: python scripts/search.py algo=ppo env=cartpole trials=40

Keys: trials (in total), seeds (of each trial, as 0,1,2), jobs (runs at a time), search (a file in
configs/search; default: the algorithm's), maximise (eval/return_mean, or another metric such as
eval/is_success), out (outputs/searches/ALGO-ENV), storage (URL of a database, for several machines) and study
(its name there, ALGO-ENV). All other arguments are train.py's: 'optim.lr=tag(log,interval(1e-4,1e-2))' adds
or changes a range, and a single value removes its key from the search. The same command resumes a search.
Needs pip install 'hydrl[search]'.
"""

import importlib.util
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from hydrl.config.command_line import script
from hydrl.errors import RunError, UserError
from hydrl.run.logging.console import outlive_readers, say

if TYPE_CHECKING:
    from hydrl.experiments.search import Search


def main(words: list[str]) -> None:
    """Searches, prints the best trial and writes ``study.db``, ``experiment.yaml`` and plots.

    Raises:
        UserError: for wrong arguments, another search in the folder, and a missing extra.
        RunError: if no trial completed.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UserError("Optuna is not installed. Run pip install 'hydrl[search]'.")
    import optuna

    from hydrl.experiments import search, search_space, search_storage

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    plan = search_space.read_plan(words)
    with search_storage.report_failure(plan.storage), closing(search.Search(plan, say)) as running_search:
        run_search(running_search)


def run_search(search: "Search") -> None:
    """Runs a search's trials and prints the best.

    Raises:
        RunError: if no trial completed.
    """
    plan, say = search.plan, search.say
    runs = f"{plan.trials} trials of {len(plan.seeds)} runs"
    say(f"{search.out}: {runs}, sampling {', '.join(plan.space)}")
    say("Ctrl-C stops the search; the same command resumes it")
    search.run()
    if running := len(search.running_trials):
        say(f"{running} trials still run in other processes; repeat the command when they have ended")
    top = search.best
    if top is None and running:
        return
    if top is None:
        raise RunError(f"no trial completed. See {search.out}/trial-*/*.log.")
    say(f"best of {search.trial_count} trials: {search.format_value(top)}, in {search.location(top)}")
    say(f"  {search.command(top)}")
    say(f"  {', '.join(map(str, search.save_best(top)))}")
    say("the best of many trials is partly luck: repeat it on other seeds, add -m seed=100,101,102")


if __name__ == "__main__":
    outlive_readers()
    sys.exit(script(main, __doc__))
