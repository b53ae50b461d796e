"""The short form of `python -m tests.newcomer`: every command, few calls. Examples and tools are tested elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.common.servers import free_port
from tests.newcomer.steps import BLOCKS, EXAMPLE, LINES, NEEDS_MORE, ROOT, Step, calls, commands, examples, perform

NUM_COMMANDS = len(BLOCKS) + 1 + len(LINES)


def of(steps: list[Step]) -> list[str]:
    """Run steps; return what is wrong with them."""
    outcomes = [perform(step) for step in steps]
    return [f"{each.step.name}: {each.wrong}" for each in outcomes if each.wrong]


@pytest.mark.parametrize("number", range(NUM_COMMANDS))
def test_commands_of_the_documents_run_as_printed(server_url: str, tmp_path: Path, number: int) -> None:
    steps = list(commands(server_url, tmp_path, free_port()))
    assert len(steps) == NUM_COMMANDS
    assert of([steps[number]]) == []


def test_first_calls_of_clients_end_without_max_tokens(server_url: str, model_name: str) -> None:
    assert of(list(calls(server_url, model_name, 1))) == []


def test_every_example_names_its_command(tmp_path: Path) -> None:
    """`python -m tests.newcomer` runs these; a script without one would not be run."""
    shared = {"common.py", "kit.py", "data.py"}
    scripts = [path for path in (ROOT / "examples").rglob("*.py") if path.name not in shared]
    assert [str(path) for path in scripts if not EXAMPLE.search(path.read_text())] == []
    assert len(list(examples("http://127.0.0.1:1", tmp_path))) >= len(scripts) - len(NEEDS_MORE)
