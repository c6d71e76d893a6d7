"""HTML pages: one file each, with its images and videos inside."""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape, unescape
from pathlib import Path
from urllib.parse import unquote

from hydrl.errors import printable_lines
from hydrl.run.atomic_files import atomically

STYLE = """:root { color-scheme: light dark; --text: #1f2328; --page: #fff; --line: #d8dee4; --box: #f6f8fa }
body { max-width: 56rem; margin: 2rem auto; padding: 0 1rem; color: var(--text); background: var(--page);
  font: 16px/1.5 system-ui, sans-serif }
h1, h2, h3 { line-height: 1.25; overflow-wrap: anywhere }
h2 { margin-top: 2.5rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line) }
h1 + p > strong:first-child { margin-right: .5rem; font-size: 2.5rem; line-height: 1 }
img, video { display: block; max-width: 100%; height: auto; margin: auto }
table { display: block; max-width: 100%; overflow-x: auto; border-collapse: collapse; font-size: .925rem }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top }
th:empty { padding: 0 }
code, pre { font: .875rem/1.5 ui-monospace, monospace }
code { overflow-wrap: break-word }
pre { white-space: pre-wrap; padding: 1rem; border-radius: .4rem; background: var(--box) }
@media (max-width: 600px) {
  th, td { padding: .3rem .4rem }
  td code { font-size: .75rem }
}
@media (prefers-color-scheme: dark) {
  :root { --text: #e6edf3; --page: #121212; --line: #3d444d; --box: #1f2227 }
  img { filter: invert(.93) hue-rotate(180deg) saturate(1.5) brightness(1.3); border-radius: .4rem }
  a { color: #79c0ff }
}"""
MAX_VIDEO = 20_000_000  # bytes of a video that a page holds


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
        text: Markdown that begins with its title; its images are PNG and MP4 files in the page's folder or
            below. Any other is replaced by its description, and nothing is read or loaded.
        file: the page.
    """
    from markdown_it import MarkdownIt  # a quarter of a second, which a typo need not wait for

    def embed(tag: re.Match) -> str:
        media, description = (file.parent / unquote(unescape(tag[1]))).resolve(), tag[2]
        is_local = media.is_relative_to(file.parent.resolve()) and media.is_file()
        if not is_local or media.suffix not in (".png", ".mp4") or media.stat().st_size > MAX_VIDEO:
            return description
        content = b64encode(media.read_bytes()).decode()
        if media.suffix == ".mp4":
            return f'<video controls muted loop src="data:video/mp4;base64,{content}"></video>'
        return f'<img src="data:image/png;base64,{content}" alt="{description}" />'

    text = printable_lines(text)
    body = MarkdownIt("commonmark", {"html": False}).enable("table").render(text)
    body = re.sub(r"(?<=<td><code>)[^<]*", lambda cell: re.sub(r"[./=_](?=\w)", r"\g<0><wbr>", cell[0]), body)
    body = re.sub(r'<img src="([^"]*)" alt="([^"]*)"[^>]*>', embed, body)
    title = escape(re.sub(r"\\([^\w\s])", r"\1", text.partition("\n")[0].lstrip("# ")))
    with atomically(file) as partial:
        partial.write_text(
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{title}</title>\n'
            f"<style>\n{STYLE}\n</style>\n{body}</html>\n",
            encoding="utf-8",
        )
