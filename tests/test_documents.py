"""Names in the documents exist: files, headings behind links, commands with their flags, targets of make."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from radixrt.cli import COMMANDS, build_parser

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md")), ROOT / "examples" / "README.md"]
PARTS = ("radixrt", "tests", "benchmarks", "examples", "docs", "deploy")
BLOCK = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
SHELL_BLOCK = re.compile(r"^ *```(?:sh|bash)?\n(.*?)^ *```", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"[\w./-]+\.(?:py|cpp|h|md|js|css|toml|sh|yml|yaml)")
COMMAND = re.compile(
    rf"(?:^|[\s;&|(])((?:\S*/)?radixrt (?:{'|'.join(COMMANDS)})\b.*|python3? -m (?:benchmarks|tests|radixrt)\S*.*)"
)
PARSER = build_parser()


def without_code(text: str) -> str:
    return INLINE.sub("", BLOCK.sub("", text))


def anchors(document: Path) -> set[str]:
    """The headings' anchors, as GitHub makes them."""
    headings = re.findall(r"^#+ +(.*)$", BLOCK.sub("", document.read_text()), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the words of each command of this project, in blocks of shell commands and in the text."""
    lines = [line for block in SHELL_BLOCK.findall(text) for line in block.replace("\\\n", " ").splitlines()]
    inline = INLINE.findall(BLOCK.sub("", text))
    lines += [code for code in inline if " -" in code or code.startswith("python")]  # not the mere name of a command
    for line in lines:
        for command in COMMAND.findall(line):
            with contextlib.suppress(ValueError):  # a command inside of a quoted option of another one
                yield list(first_words(shlex.split(command, comments=True)))


def first_words(words: list[str]) -> Iterator[str]:
    """Yield the words of the first command of a line."""
    for word in words:
        if word in ("|", "&", "&&", ">", "2>&1"):
            return
        yield word.rstrip(";)")
        if word.endswith((";", ")")):
            return


def mistake_of(words: list[str]) -> str:
    """Return what is wrong with a command; "" if nothing is."""
    if words[0].endswith("radixrt"):
        with contextlib.redirect_stderr(io.StringIO()) as err, contextlib.suppress(SystemExit):
            with contextlib.redirect_stdout(io.StringIO()):
                unknown = PARSER.parse_known_args(words[1:])[1]
            return f"unknown {unknown}" if unknown else ""
        return err.getvalue()
    path = ROOT / words[2].replace(".", "/")
    sources = [path.with_suffix(".py")] if path.with_suffix(".py").exists() else [*path.glob("*.py")]
    if not sources or (path.is_dir() and not (path / "__main__.py").exists()):
        return f"there is no {words[2]}"
    text = "".join(file.read_text() for file in [*sources, *(ROOT / "benchmarks/common").glob("*.py")])
    flags = {word.partition("=")[0] for word in words[3:] if word.startswith("--")}
    return ", ".join(sorted(flag for flag in flags if f'"{flag}"' not in text))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_resolve(document: Path) -> None:
    broken = []
    for link in LINK.findall(without_code(document.read_text())):
        name, _, anchor = link.partition("#")
        if "://" in name or name.startswith("mailto:"):
            continue
        target = document.parent / name if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_named_files_exist() -> None:
    known = {f"/{path.relative_to(ROOT)}" for part in PARTS for path in (ROOT / part).rglob("*.*")}
    known |= {f"/{path.name}" for path in ROOT.iterdir()}
    missing = [
        f"{document.name}: {name}"
        for document in DOCUMENTS
        for name in INLINE.findall(document.read_text())
        if FILE.fullmatch(name) and not any(path.endswith(f"/{name}") for path in known)
    ]
    assert missing == []


def test_named_attributes_exist() -> None:
    """`Class.attribute` of a class of this project stands in a file that defines such a class."""
    sources = [path.read_text() for path in (ROOT / "radixrt").rglob("*.py")]
    missing = []
    for document in DOCUMENTS:
        if document.name == "CHANGELOG.md":
            continue  # which tells of the past too
        for owner, name in re.findall(r"`([A-Z]\w+)\.([a-z_]\w*)[`(]", BLOCK.sub("", document.read_text())):
            files = [text for text in sources if re.search(rf"^class {owner}\b", text, re.MULTILINE)]
            if files and not any(re.search(rf"\b{name}\b", text) for text in files):
                missing.append(f"{document.name}: {owner}.{name}")
    assert missing == []


def test_commands_parse() -> None:
    documents = [document for document in DOCUMENTS if document.name != "CHANGELOG.md"]  # which tells of the past too
    found = [(document.name, words) for document in documents for words in commands(document.read_text())]
    assert len(found) > 100
    wrong = {f"{name}: {shlex.join(words)}": mistake for name, words in found if (mistake := mistake_of(words))}
    assert wrong == {}


def test_targets_of_make_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = {name for document in DOCUMENTS for name in re.findall(r"`make (\w+)[^`]*`", document.read_text())}
    assert named <= targets
