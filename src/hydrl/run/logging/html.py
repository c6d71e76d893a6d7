"""Pages for a browser: one HTML file each, its pictures inside."""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape, unescape
from pathlib import Path
from urllib.parse import unquote

from hydrl.errors import printable_lines
from hydrl.run.atomic_files import atomically

STYLE = """body { max-width: 60em; margin: 2em auto; padding: 0 1em; font: 16px/1.5 system-ui, sans-serif }
img { max-width: 100% }
table { border-collapse: collapse }
th, td { padding: .3em .8em; border-bottom: 1px solid #ddd; text-align: left }
pre { overflow: auto; padding: 1em; background: #f6f6f6 }"""


def as_text(value: str) -> str:
    """Text of others for Markdown, in a line, where no character of it is markup."""
    return re.sub(r"[\\`*\[\]<>&|!~]|:(?=//)|(?<!\w)_|_(?!\w)|#$", r"\\\g<0>", " ".join(value.split()))


def code(text: object) -> str:
    """Text set as it is, in a table too."""
    return f"`{' '.join(str(text).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def fenced(text: str, language: str = "") -> str:
    """Lines set as they are, whatever fence is among them."""
    fence = max(["```", *(f"{each}`" for each in re.findall("`+", text))], key=len)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, of cells as they stand."""
    return "\n".join(f"| {' | '.join(each)} |" for each in [names, ["---"] * len(names), *rows])


def write_page(text: str, file: Path) -> None:
    """Writes a page.

    Args:
        text: Markdown that begins with its title; its pictures are PNG files in the page's folder or
            below. Of any other picture its description stands there, and nothing is read or loaded.
        file: the page.
    """
    from markdown_it import MarkdownIt  # a quarter of a second, which a typo need not wait for

    def inside(found: re.Match) -> str:
        picture = (file.parent / unquote(unescape(found[1]))).resolve()
        local = picture.suffix == ".png" and picture.is_relative_to(file.parent.resolve())
        if not (local and picture.is_file()):
            return found[2]
        return (
            f'<img src="data:image/png;base64,{b64encode(picture.read_bytes()).decode()}" alt="{found[2]}" />'
        )

    text = printable_lines(text)
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>', inside, body)
    title = escape(re.sub(r"\\([^\w\s])", r"\1", text.partition("\n")[0].lstrip("# ")))
    with atomically(file) as partial:
        partial.write_text(
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
            f"<style>\n{STYLE}\n</style>\n{body}</html>\n",
            encoding="utf-8",
        )
