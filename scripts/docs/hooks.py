"""What of the site is no file of docs/: README, CONTRIBUTING, CHANGELOG and train.py."""

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
}
LINK = re.compile(r"\]\((?:\.\./|docs/)?([^)#:]+)")  # as GitHub follows it from the top level or from docs/


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages, and room for lines of code."""
    files.append(File.generated(config, "wide.css", content=".md-grid { max-width: 76rem; }\n"))
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8")
        if name == "train.py":
            text = f"# train.py\n\nThe loop of every algorithm.\n\n```python\n{text}```\n"
        files.append(File.generated(config, page, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Lets links find their pages in the site."""
    if "/" in page.file.src_uri:  # one folder down, where links are right as they are
        return markdown

    def within(link: re.Match[str]) -> str:
        target = PAGES.get(link[1], link[1])
        return f"]({target}README.md" if target.endswith("/") else f"]({target}"

    return LINK.sub(within, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Takes Sphinx's roles out of docstrings; what they name stands in code already."""
    return re.sub(r":(class|func|meth|mod|attr|data|exc):(?=<code>)", "", html)
