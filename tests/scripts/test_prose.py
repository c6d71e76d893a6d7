"""Prose of README, CONTRIBUTING and docs/: short sentences, in the glossary's words."""

import json
import re
from pathlib import Path
from statistics import median

import pytest

from tests.conftest import ROOT

EXCLUDED = {"upstream.md"}  # for developers of TorchRL
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in EXCLUDED),
    *(path for name in ("algorithms", "reference", "notes") for path in (ROOT / "docs" / name).glob("*.md")),
    ROOT / "docs" / "tutorial.ipynb",
]
# What docs/glossary.md has another word for.
WRONG_WORDS = re.compile(
    r"\b(replay memory|replay memories|data sets?|closing evaluations?|films?|filmed|normalisers?|forbidden|"
    r"pictures?|st(?:ands?|ood) at|tuned numbers|beside training|answered in|told|a memory)\b",
    re.I,
)
LONGEST, MEDIAN = 35, 20


def read(page: Path) -> str:
    """Markdown of a page or of a notebook."""
    text = page.read_text(encoding="utf-8")
    if page.suffix == ".md":
        return text
    cells = (cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "markdown")
    return "\n\n".join("".join(cell["source"]) for cell in cells)


def sentences(markdown: str) -> list[str]:
    """Sentences outside of code blocks, tables and headings; inline code is one word."""
    text = re.sub(r"^```.*?^```", "", markdown, flags=re.M | re.S)
    text = re.sub(r"^\|.*$|^#+ .*$|^!\[.*$|^::: .*$|^<.*$", "", text, flags=re.M)
    text = re.sub(r"^\s*(?:[-*]|\d+\.) ", "\n\n", text, flags=re.M)  # a list item is a block
    text = re.sub(r"`[^`]+`", "`code`", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    blocks = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text)]
    parts = [part for block in blocks for part in re.split(r"(?<=[.!?])[\"*)]* (?=[A-Z`*(…])", block)]
    return [part for part in parts if words(part)]


def words(sentence: str) -> list[str]:
    return re.findall(r"\d+(?:[.,]\d+)+|[\w'`%-]*[\w`]", sentence)


def length(sentence: str, page: Path) -> int:
    """Number of words; in the laboratory notes, which list returns, numbers are none."""
    is_notes = page.parent.name == "notes"
    return sum(not (is_notes and word.lstrip("-")[:1].isdigit()) for word in words(sentence))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_sentences_are_short(page: Path):
    lengths = {sentence: length(sentence, page) for sentence in sentences(read(page))}
    assert [(n, sentence) for sentence, n in lengths.items() if n > LONGEST] == []
    assert median(lengths.values()) <= MEDIAN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_words_are_the_glossary_s(page: Path):
    text = re.sub(r"```.*?```|`[^`]*`|\]\([^)]*\)", "", read(page), flags=re.S)
    assert [
        (match[0], text[match.start() - 40 : match.end() + 40]) for match in WRONG_WORDS.finditer(text)
    ] == []


def test_a_long_sentence_and_a_wrong_word_are_noticed():
    page = (
        "# Head\n\n| a table | is not read. |\n\n- One item. `some code. here` Two.\n- "
        + "word " * 36
        + "end."
    )
    assert [len(words(sentence)) for sentence in sentences(page)] == [2, 2, 37]
    assert WRONG_WORDS.search("a Replay memory")
    assert not WRONG_WORDS.search("a replay buffer")
    assert len(PAGES) > 40
    assert length("It returned 1.5, -2 and 3 here.", ROOT / "docs" / "notes" / "learning.md") == 4
