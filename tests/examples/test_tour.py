"""The scripts of the tour, in the language and plainly: each runs on a tiny model and gives what its reader expects."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import radixrt as rt
from benchmarks.programs.tour import FOLDER, SIZES, code_lines, load
from tests.examples.helpers import ROOT, run
from tests.server_process import ServerProcess

DOCUMENT = ROOT / "docs" / "tour.md"
CONTEXT = 2048


@pytest.fixture(scope="module")
def url(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server on a random model whose context is long enough for tools and shots in a small vocabulary."""
    folder = tmp_path_factory.mktemp("tour")
    for file in tiny_model("llama").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    server = ServerProcess("--model", str(folder), "--kv-cache-tokens", "16384").wait_ready()
    rt.set_default_backend(server.url)
    yield server.url
    rt.set_default_backend(None)
    assert server.stop() == 0


def both(name: str, size: int, url: str) -> tuple[list[Any], list[Any]]:
    """Return the results of the script in the language and of the plain one."""
    kit, program, plain = (load(FOLDER / f"{each}.py") for each in ("kit", name, f"plain/{name}"))
    return program.run(size), asyncio.run(kit.with_client(plain.run, url, size))


@pytest.mark.parametrize("name", [name for name in SIZES if name != "classify"])
def test_a_script_runs_in_both_forms(url: str, name: str) -> None:
    made, plain = both(name, 1, url)
    assert made
    assert all(made)
    assert len(plain) == (1 if name != "map_reduce" else 2) or name == "generate_data"
    assert len(made) == len(plain)
    for one, other in zip(made, plain, strict=True):
        assert type(one) is type(other) or {type(one).__name__, type(other).__name__} <= {"Booking", "Pair", "str"}


def test_rows_are_classified_once(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("classify", "plain/classify"):
        folder = tmp_path / name
        folder.mkdir(parents=True)
        kit, script = load(FOLDER / "kit.py"), load(FOLDER / f"{name}.py")
        assert Path(script.OUTPUT).is_relative_to(ROOT / "examples" / "output")
        monkeypatch.setattr(script, "OUTPUT", folder / "labels.jsonl")

        def run(size: int, script: Any = script, kit: Any = kit, plain: bool = "/" in name) -> list[str]:
            found: list[str] = asyncio.run(kit.with_client(script.run, url, size)) if plain else script.run(size)
            return found

        run(3)
        lines = (folder / "labels.jsonl").read_text().splitlines(keepends=True)
        (folder / "labels.jsonl").write_text("".join(lines[:2]) + lines[2][:9])  # as if it had been stopped
        counted = [int(re.match(r"\d+", line).group()) for line in run(6)]  # type: ignore[union-attr]
        assert sum(counted) == 6
        after = (folder / "labels.jsonl").read_text().splitlines(keepends=True)
        assert after[:2] == lines[:2]
        assert sorted(json.loads(line)["index"] for line in after) == list(range(6))


def test_a_script_as_its_reader_runs_it(url: str, tmp_path: Path) -> None:
    for name in ("tour/multi_agent", "tour/plain/multi_agent"):
        assert run(name, "--base-url", url, "--size", 1, cwd=tmp_path).strip()


def test_the_document_names_every_script_and_its_lines() -> None:
    text = DOCUMENT.read_text()
    for name in SIZES:
        for path in (f"{name}.py", f"plain/{name}.py"):
            assert f"(../examples/tour/{path})" in text
            assert (FOLDER / path).exists()
        row = re.search(rf"^\| {name} +\| .*$", text, re.MULTILINE)
        assert row is not None, name
        cells = [cell.strip() for cell in row.group().split("|")]
        assert cells[3:5] == [str(code_lines(FOLDER / path)) for path in (f"plain/{name}.py", f"{name}.py")]


def test_lines_of_code_are_counted_without_blanks_comments_and_docstrings(tmp_path: Path) -> None:
    file = tmp_path / "some.py"
    file.write_text(
        '"""Module.\n\nMore.\n"""\n\n# why\nx = (\n    1,\n)\n\n\ndef f():\n    """Doc."""\n    return "a"\n'
    )
    assert code_lines(file) == 5
