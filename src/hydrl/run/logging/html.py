"""HTML pages: one file each, with its images inside."""

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
    """Escapes text for Markdown, in one line, so that no character of it is markup."""
    return re.sub(r"[\\`*\[\]<>&|!~]|:(?=//)|(?<!\w)_|_(?!\w)|#$", r"\\\g<0>", " ".join(value.split()))


def code(text: object) -> str:
    """Text as inline code, in a table too."""
    return f"`{' '.join(str(text).split()).replace('`', chr(39)).replace('|', chr(92) + '|')}`"


def fenced(text: str, language: str = "") -> str:
    """Lines as a code block, whatever fences they contain."""
    fence = max(["```", *(f"{backticks}`" for backticks in re.findall("`+", text))], key=len)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown; cells are not escaped."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [names, ["---"] * len(names), *rows])


def write_page(text: str, file: Path) -> None:
    """Writes a page.

    Args:
        text: Markdown that begins with its title; images are PNG files in the page's folder or below. Any
            other image is replaced by its description, and nothing is read or loaded.
        file: the page.
    """
    from markdown_it import MarkdownIt  # a quarter of a second, which a typo need not wait for

    def embed(tag: re.Match) -> str:
        image, description = (file.parent / unquote(unescape(tag[1]))).resolve(), tag[2]
        is_local = image.suffix == ".png" and image.is_relative_to(file.parent.resolve())
        if not (is_local and image.is_file()):
            return description
        content = b64encode(image.read_bytes()).decode()
        return f'<img src="data:image/png;base64,{content}" alt="{description}" />'

    text = printable_lines(text)
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>', embed, body)
    title = escape(re.sub(r"\\([^\w\s])", r"\1", text.partition("\n")[0].lstrip("# ")))
    with atomically(file) as partial:
        partial.write_text(
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
            f"<style>\n{STYLE}\n</style>\n{body}</html>\n",
            encoding="utf-8",
        )
