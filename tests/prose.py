"""Measure the prose of docstrings and comments: `python -m tests.prose [--list] [folder ...]`.

The command prints a table with a row per package of radixrt (or per folder given): the number of sentences of
ten words or more, and the share of vague sentences. A sentence is vague if at least every fifth of its words is
a pronoun that makes the reader look for a noun elsewhere. `--list` prints each vague sentence with its file and line.
"""

import argparse
import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRONOUNS = frozenset(["it", "its", "that", "those", "them", "these", "one", "ones", "what", "which", "whose", "other"])
LEAST_WORDS = 10
LEAST_SHARE = 0.2

_WORD = re.compile(r"[A-Za-z0-9_]+(?:['’.\-/][A-Za-z0-9_]+)*")
_CODE = re.compile(r"``[^`]+``|`[^`]+`")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_LIST_ITEM = re.compile(r"\s*(?:[-*]|\d+\.)\s")
_DIRECTIVES = ("fmt:", "noqa", "type:", "ruff:", "mypy:", "pragma:", "!")


@dataclass(frozen=True)
class Sentence:
    """One sentence of a docstring or comment. `line` is the line in `path` where its paragraph or list item begins."""

    path: Path
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        """The words in lower case, without inline code."""
        return [word.lower() for word in _WORD.findall(_CODE.sub("", self.text))]

    @property
    def is_vague(self) -> bool:
        words = self.words
        return len(words) >= LEAST_WORDS and sum(word in PRONOUNS for word in words) >= LEAST_SHARE * len(words)


def sentences(path: Path) -> list[Sentence]:
    """Return the sentences of at least `LEAST_WORDS` words in the docstrings and comments of a Python file."""
    source = path.read_text()
    blocks = [*_docstrings(source), *_comments(source)]
    found = [
        Sentence(path, line, sentence.strip())
        for block_line, block in sorted(blocks)
        for line, paragraph in _paragraphs(block_line, block)
        for sentence in _SENTENCE_END.split(paragraph)
    ]
    return [sentence for sentence in found if len(sentence.words) >= LEAST_WORDS]


def folder_sentences(folder: Path) -> list[Sentence]:
    """Return the sentences of a Python file, or of all Python files below a folder."""
    paths = [folder] if folder.is_file() else sorted(folder.rglob("*.py"))
    return [sentence for path in paths for sentence in sentences(path)]


def vague_share(found: list[Sentence]) -> float:
    """Return the share of vague sentences, between 0 and 1."""
    return sum(sentence.is_vague for sentence in found) / len(found) if found else 0.0


def _docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each docstring, attribute docstrings included."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each comment. Comments alone on consecutive lines are one text."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text = token.string.lstrip("#")
        if text.strip().startswith(_DIRECTIVES):
            continue
        row, alone = token.start[0], not token.line[: token.start[1]].strip()
        if block and alone and row == last + 1:
            block.append(text)
            last = row
            continue
        if block:
            yield first, "\n".join(block)
        block, first, last = [text], row, row if alone else -1
    if block:
        yield first, "\n".join(block)


def _paragraphs(line: int, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of each paragraph and list item, joined into a single line."""
    paragraph: list[str] = []
    first = line
    for number, content in enumerate(text.split("\n"), line):
        if paragraph and (not content.strip() or _LIST_ITEM.match(content)):
            yield first, " ".join(paragraph)
            paragraph = []
        if content.strip():
            if not paragraph:
                first = number
            paragraph.append(content.strip())
    if paragraph:
        yield first, " ".join(paragraph)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the prose of docstrings and comments.")
    parser.add_argument("folders", nargs="*", type=Path, help="folders or files; default: each package of radixrt")
    parser.add_argument("--list", action="store_true", help="print each vague sentence with its file and line")
    options = parser.parse_args()
    folders = options.folders or sorted(
        path for path in (ROOT / "radixrt").iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()
    )
    total: list[Sentence] = []
    rows = []
    for folder in folders:
        found = folder_sentences(folder.resolve())
        total += found
        rows.append((folder.name, found))
    print(f"{'package':24}{'sentences':>10}{'vague':>7}{'share':>8}")
    for name, found in [*rows, ("all", total)]:
        if found:
            count = sum(sentence.is_vague for sentence in found)
            print(f"{name:24}{len(found):10}{count:7}{vague_share(found):8.1%}")
    if options.list:
        for sentence in total:
            if sentence.is_vague:
                path = sentence.path.relative_to(ROOT) if sentence.path.is_relative_to(ROOT) else sentence.path
                print(f"{path}:{sentence.line}: {sentence.text}")


if __name__ == "__main__":
    main()
