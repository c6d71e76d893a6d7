"""Summarises an offline dataset: python scripts/data.py DIR

The dataset is a run folder with a replay buffer, a folder of `record`, a file .npz, .h5 or .hdf5, or the name
or folder of a Minari dataset. Prints sizes, ranges, episode ends and returns.

Keys: picture (FILE.png, a histogram of returns; default: returns.png next to the dataset; false: none).
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from hydrl.config.command_line import read_arguments, script
from hydrl.config.overrides import unquote_path
from hydrl.errors import UserError
from hydrl.run.logging.console import outlive_readers


@dataclass
class Arguments:
    """What the command line can set."""

    picture: str = ""


def main(words: list[str]) -> None:
    """Reads the dataset and prints its summary.

    Raises:
        UserError: for wrong arguments, and if there is no dataset.
    """
    names = [word for word in words if Path(unquote_path(word)).exists() or "=" not in word]
    arguments = read_arguments(Arguments, [word for word in words if word not in names], "picture=FILE.png")
    if arguments.picture not in ("", "false") and not arguments.picture.endswith(".png"):
        raise UserError(f"picture={arguments.picture}: not a .png file. Use FILE.png or false.")
    if len(names) != 1:
        raise UserError(f"{len(names)} datasets. Name one: python scripts/data.py DIR.")
    path = Path(unquote_path(names[0]))
    from hydrl.datasets import summary
    from hydrl.library_setup import quieten_libraries

    quieten_libraries()
    kind, columns, returns, lengths, units = summary.open_dataset(path, names[0])
    summary.print_summary(path, kind, columns, returns, lengths, units)
    folder = path if path.is_dir() else path.parent
    picture = Path(arguments.picture) if arguments.picture else folder / "returns.png"
    if arguments.picture == "false" or not len(returns) or not (arguments.picture or path.exists()):
        return
    summary.draw_returns(picture, returns, f"{path.name}: {len(returns):,} episodes")
    print(picture)


if __name__ == "__main__":
    outlive_readers()
    sys.exit(script(main, __doc__))
