"""Summarises an offline dataset: python scripts/data.py DIR

The dataset is a run folder with a replay buffer, a folder of `record`, a file .npz, .h5 or .hdf5, or the name
or folder of a Minari dataset. Prints sizes, ranges, how episodes end and their returns.

Keys: picture (FILE.png; a histogram of returns. Default: returns.png beside the dataset; false draws none).
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
    places = [word for word in words if Path(unquote_path(word)).exists() or "=" not in word]
    arguments = read_arguments(Arguments, [word for word in words if word not in places], "picture=FILE.png")
    if arguments.picture not in ("", "false") and not arguments.picture.endswith(".png"):
        raise UserError(
            f"picture={arguments.picture}: it is a picture; use picture=FILE.png, or picture=false"
        )
    if len(places) != 1:
        raise UserError("name one set, as python scripts/data.py DIR")
    path = Path(unquote_path(places[0]))
    from hydrl.datasets import summary
    from hydrl.library_setup import quieten_libraries

    quieten_libraries()
    kind, columns, returns, lengths, units = summary.open_dataset(path, places[0])
    summary.print_summary(path, kind, columns, returns, lengths, units)
    beside = path if path.is_dir() else path.parent
    picture = Path(arguments.picture) if arguments.picture else beside / "returns.png"
    if arguments.picture == "false" or not len(returns) or not (arguments.picture or path.exists()):
        return
    summary.draw_returns(picture, returns, f"{path.name}: {len(returns):,} episodes")
    print(picture)


if __name__ == "__main__":
    outlive_readers()
    sys.exit(script(main, __doc__))
