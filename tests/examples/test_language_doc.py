"""docs/language.md: its blocks run, in order, as its reader would run them."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import radixrt as rt
from tests.examples.helpers import ROOT

DOCUMENT = ROOT / "docs" / "language.md"
URL = "http://127.0.0.1:30000"


@pytest.fixture
def on_server(server_url: str, tmp_path: Path) -> Iterator[None]:
    """Make the server the default backend and a temporary folder the current one."""
    before = Path.cwd()
    os.chdir(tmp_path)
    rt.set_default_backend(server_url)
    yield
    rt.set_default_backend(None)
    os.chdir(before)


@pytest.mark.usefixtures("on_server")
def test_every_block_runs(server_url: str, tmp_path: Path) -> None:
    text = DOCUMENT.read_text()
    names: dict[str, object] = {"__name__": "language"}
    printed = io.StringIO()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.M | re.S))
    assert len(blocks) >= 10
    with contextlib.redirect_stdout(printed):
        for block in blocks:
            line = text.count("\n", 0, block.start()) + 1
            source = "\n" * line + block.group(1).replace(URL, server_url)  # so that errors name the document's lines
            exec(compile(source, str(DOCUMENT), "exec", dont_inherit=True), names)

    state, topic, review = names["state"], names["topic"], names["review"]
    assert isinstance(state, rt.State)
    assert 1 <= state["verdict"].score <= 10
    assert state["grade"] in ("pass", "fail")
    assert state.usage.calls == 5
    assert isinstance(topic, rt.State)
    assert topic["topic"] == " delivery"
    assert isinstance(review, rt.State)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", review["day"])
    assert 'three, branch 0/2 (endless), gen "answer"' in printed.getvalue()
    assert (tmp_path / "judge.html").stat().st_size > 10_000
    assert len((tmp_path / "topics.jsonl").read_text().splitlines()) == 2
    assert '"kind":"end"' in (tmp_path / "runs.jsonl").read_text()
