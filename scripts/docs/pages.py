"""Writes the generated pages of docs/ from configs/, docstrings and stored results.

python scripts/docs/pages.py
"""

import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import yaml  # noqa: E402

from hydrl.experiments.sweep import folder_name  # noqa: E402
from scripts.docs import algorithms_page, commands, reference_page, results_page  # noqa: E402


def make_pages() -> Mapping[Path, str]:
    """The text of every generated page by its file."""
    docs = ROOT / "docs"
    declared = yaml.safe_load((ROOT / "scripts" / "results.yaml").read_text(encoding="utf-8"))
    names = [folder_name(row["overrides"]) for row in declared["runs"]]
    rows = [results_page.read_runs(docs / "results" / f"{name}.jsonl") for name in names]
    texts = {**algorithms_page.make_pages(rows), **reference_page.make_pages()}
    texts["notes/commands.md"] = commands.page_text(commands.read_rows())
    return {docs / name: text for name, text in texts.items()}


if __name__ == "__main__":
    for page, text in make_pages().items():
        page.parent.mkdir(exist_ok=True)
        page.write_text(text, encoding="utf-8")
        print(page.relative_to(ROOT))
