"""Searches for better numbers with Optuna: python scripts/search.py algo=ppo env=cartpole trials=40

Keys: trials (in all), seeds (of each trial, as 0,1,2), jobs (runs side by side, 2), search (a file in
configs/search, the algorithm's unless named), out (outputs/searches/ALGO-ENV). All else is train.py's:
'optim.lr=tag(log,interval(1e-4,1e-2))' adds a range to the search or changes one, a single value takes its
key out, and '~KEY' leaves that one as it is. The same command goes on with a search that was stopped.
Needs pip install -e '.[search]'.
"""

import importlib.util
import shlex
import sys

from hydrl.config.command_line import script
from hydrl.errors import Interrupted, RunError, UserError
from hydrl.run.screen import console


def main(words: list[str]) -> None:
    """Searches, says what was best and leaves ``study.db``, ``tuned.yaml`` and the picture.

    Raises:
        UserError: for words that do not fit, another search in the folder, and a missing extra.
        RunError: if no trial came to its end.
    """
    if importlib.util.find_spec("optuna") is None:
        raise UserError("a search needs an extra: pip install -e '.[search]'")
    from hydrl.study import space

    plan = space.read(words)

    import optuna
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    from hydrl.study.search import Search, command, of_one_length, save_tuned
    from hydrl.study.search_figure import save_picture

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    again = shlex.join(["python", "scripts/search.py", *words])
    screen = console()

    def say(line: str) -> None:
        screen.print(line, highlight=False, markup=False, soft_wrap=True)

    with screen.status("starting") as status:
        try:
            search = Search(plan, say, status.update)
            runs = f"{plan.trials} trials of {len(plan.seeds)} runs"
            say(f"{plan.out}: {runs}, drawing {', '.join(plan.space)}")
            search.run()
        except Interrupted:
            say(f"stopped; go on with: {again}")
            raise
        except (OSError, SQLAlchemyError, StorageInternalError) as error:
            cause = error.__cause__ or error  # Optuna's own guesses at a reason
            reason = str(getattr(cause, "strerror", None) or cause).splitlines()[0]
            raise UserError(f"out={plan.out} cannot be read and written: {reason}") from None
    if search.best is None:
        raise RunError(f"none of {search.taken} trials came to its end; see {plan.out}/trial-*/*.log")
    path, beside = save_tuned(plan, search.best, search.taken)
    picture = save_picture(search.study, plan)
    tuned = f"configs/tuned/{plan.chosen['algo']}/{plan.chosen['env']}.yaml"
    say(f"best of {search.taken} trials: {search.best.value:,.1f}, #{search.best.number}")
    say(f"  {shlex.join(command(plan, search.best))}")
    for word in of_one_length(plan):
        say(f"  (that is with {word} added, as all trials ran; without it runs may stop once they are good)")
    say(f"  {path}, the same as a file: for {tuned}" + (f", with {shlex.join(beside)}" if beside else ""))
    say(f"  {picture}, what mattered")
    say("the best of many is partly luck; see what it is worth on other seeds: add -m seed=100,101,102")


if __name__ == "__main__":
    sys.exit(script(main, __doc__))
