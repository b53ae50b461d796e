"""docs/engine_in_an_hour.md: its numbers are those that examples/one_request.py prints, its code names what exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.examples.helpers import ROOT, run

DOCUMENT = (ROOT / "docs" / "engine_in_an_hour.md").read_text()
LOOPS = re.findall(r"```python\n(.*?)```", DOCUMENT, re.DOTALL)


def test_the_page_shows_what_the_script_prints(tmp_path: Path) -> None:
    shown = DOCUMENT.partition("## One request of seven tokens")[2]
    assert shown.partition("```\n")[2].partition("```\n")[0] == run("one_request", cwd=tmp_path)


@pytest.mark.parametrize(("loop", "file"), list(zip(LOOPS, ("scheduler/loop.py", "runner/worker.py"), strict=True)))
def test_the_loops_call_what_their_files_call(loop: str, file: str) -> None:
    source = (ROOT / "radixrt" / file).read_text()
    code = re.sub(r"#.*", "", loop)
    calls = set(re.findall(r"[\w.\[\]]*\w(?=\()", code)) - {"isinstance", "run_once", "_submit", "_commit"}
    assert len(calls) > 6
    assert [call for call in sorted(calls) if f"{call.removeprefix('self.')}(" not in source] == []


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("a sampling field", "repetition_penalty"),
        ("a value read of the prompt", r"return_hidden_states|\bHiddenStates\b"),
    ],
)
def test_the_files_of_a_field_are_all_listed(kind: str, name: str) -> None:
    row = re.search(rf"^\| {kind} \| (.*) \|$", DOCUMENT, re.MULTILINE)
    assert row is not None
    files = [path for path in (ROOT / "radixrt").rglob("*.py") if re.search(name, path.read_text())]
    assert 3 < len(files) <= 6
    assert [str(path) for path in files if f"{path.parent.name}/{path.name}" not in _with_folders(row[1])] == []


def _with_folders(row: str) -> set[str]:
    """The files of a row of the table, each with the name of its folder; a bare name is in the folder before it."""
    found, folder = set(), "radixrt"
    for path in map(Path, re.findall(r"`([\w/]+\.py)`", row)):
        folder = path.parent.name or ("radixrt" if path.name == "sampling_params.py" else folder)
        found.add(f"{folder}/{path.name}")
    return found


def test_the_page_is_read_in_an_hour() -> None:
    assert len(DOCUMENT.split()) <= 1500
