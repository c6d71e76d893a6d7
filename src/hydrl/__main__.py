"""The command ``hydrl``: train.py and the scripts from any folder; ``hydrl docs`` says where docs/ is."""

import difflib
import os
import re
import runpy
import sys

from hydrl.config import ROOT

ADVICE = {"train": "algo=ppo env=cartpole", "resume": "resume=DIR"}  # what other tools have as commands
SCRIPTS = {
    name: f"scripts/{name}.py" for name in ("evaluate", "record", "data", "report", "search", "results")
}


def main() -> int:
    """Runs what the first word names, and else ``train.py``; the exit code, where that has not ended it."""
    os.environ["HYDRL_COMMAND"] = "hydrl"  # so that messages name it, of what it starts too
    word = "".join(sys.argv[1:2])
    if word == "-sc" and SCRIPTS.keys() & os.environ.get("COMP_LINE", "").split()[1:2]:
        return 0  # none of their words are train.py's, and the shell offers files
    if word == "docs":
        print(ROOT / "docs")
        return 0
    if word in SCRIPTS:
        del sys.argv[1]
    elif re.fullmatch(r"\w[\w-]*", word):
        from hydrl.run.logging.console import outlive_readers

        outlive_readers()
        near = ADVICE.get(word) or next(iter(difflib.get_close_matches(word, SCRIPTS)), None)
        advice = f" Write hydrl {near}." if near else ""
        commands = ", ".join([*SCRIPTS, "docs"])
        print(
            f"error: {word}: neither key=value nor a command; those are {commands}.{advice}", file=sys.stderr
        )
        return 2
    script = ROOT / SCRIPTS.get(word, "train.py")
    if not script.is_file():
        print(f"error: {word}: only a checkout of hydrl's repository has {SCRIPTS[word]}", file=sys.stderr)
        return 2
    # Under this name workers find it again, and `if __name__ == "__main__"` holds.
    runpy.run_path(str(script), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
