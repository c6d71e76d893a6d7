"""What of the site is no Markdown of docs/: README, CONTRIBUTING, CHANGELOG, train.py and the notebook."""

import json
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "train.py": "train.md",
    "docs/tutorial.ipynb": "tutorial.md",
}
WIDE = ("upstream.md", "notes/commands.md")  # pages without a table of contents
REDIRECTS = {  # old addresses of pages
    "learning": "notes/learning",
    "own_parts": "own_components",
    "performance": "notes/performance",
}
BREAKS = re.compile(r"(?<=[\w\]}][./=,_:])(?<!\d[.,_:])(?=[\w\[{])")  # in inline code, but not in a number
REDIRECT = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>This page has moved</title>
<link rel="canonical" href="{url}"><meta http-equiv="refresh" content="0; url={url}">
<script>location.replace("{url}" + location.hash)</script></head>
<body><a href="{url}">This page has moved.</a></body></html>
"""
# A block of commands or plain text, not one of code, and none with a drawn table.
COMMANDS = re.compile(
    r'<div class="highlight"><pre><span></span><code>((?:(?!</code>|<span class)[^│┃])*)</code></pre></div>'
)
LINK = re.compile(r"\]\((?:\.\./|docs/)?([^)#:]+)")  # as GitHub follows it from the top level or from docs/


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages, the redirects from old addresses, the style sheet and CITATION.cff."""
    for old, new in REDIRECTS.items():
        files.append(File.generated(config, f"{old}.html", content=REDIRECT.format(url=f"{new}.html")))
    for file in (Path(__file__).with_name("wide.css"), ROOT / "CITATION.cff"):
        files.append(File.generated(config, file.name, abs_src_path=str(file)))
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if name == "train.py":
            text = f"# train.py\n\nThe loop of every algorithm.\n\n```python\n{text}```\n"
        if name.endswith(".ipynb"):
            text = "\n\n".join(map(cell, json.loads(text)["cells"]))
        files.append(File.generated(config, page, content=text))
    return files


def cell(node: dict[str, Any]) -> str:
    """A cell of a notebook in Markdown: its text, or its code and what came of it."""
    source = "".join(node["source"])
    if node["cell_type"] == "markdown":
        return source
    return "\n\n".join([f"```python\n{source}\n```", *map(output, node["outputs"])])


def output(node: dict[str, Any]) -> str:
    """What a cell printed or shows, in HTML without empty lines, which would end it."""
    shown = {kind: "".join(data) for kind, data in node.get("data", {}).items()}
    if "text/html" in shown:
        lines = [line for line in shown["text/html"].splitlines() if line.strip()]
        return "\n".join(["<div>", *lines, "</div>"])
    if "image/png" in shown:
        return f'<img alt="" src="data:image/png;base64,{"".join(shown["image/png"].split())}">'
    text = "".join(node.get("text", shown.get("text/plain", "")))
    return f"```text\n{text.strip()}\n```"


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lets links find their pages in the site, and gives pages of wide tables the room beside them."""
    if page.file.src_uri in WIDE:
        page.meta["hide"] = ["toc"]
    if "/" in page.file.src_uri:  # one folder down, where links are right as they are
        return markdown

    def within(link: re.Match[str]) -> str:
        target = PAGES.get(link[1]) or PAGES.get(f"docs/{link[1]}", link[1])
        return f"]({target}README.md" if target.endswith("/") else f"]({target}"

    return LINK.sub(within, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Takes out Sphinx's roles, lets inline code break between words alone, and wraps commands."""
    html = re.sub(r":(class|func|meth|mod|attr|data|exc):(?=<code>)", "", html)
    html = COMMANDS.sub(wrap_lines, html)
    return re.sub(r"<code>[^<\n]*</code>", lambda code: BREAKS.sub("<wbr>", code[0]), html)


def wrap_lines(block: re.Match[str]) -> str:
    """A block whose lines are wrapped, each by itself."""
    lines = "".join(f"<span>{line}</span>" for line in block[1].splitlines(keepends=True))
    return f'<div class="highlight wrapped"><pre><span></span><code>{lines}</code></pre></div>'
