"""examples/extract.py and offline.py, on engines of their own."""

from __future__ import annotations

import re
from pathlib import Path

from tests.examples.helpers import run


def test_extract_gives_typed_values_whole_and_cut(tmp_path: Path) -> None:
    printed = run("extract", cwd=tmp_path)
    people = re.findall(r"^Person\(name='.*', age=\d+, city='.*', profession=.*, languages=\[.+\]\)$", printed, re.M)
    assert len(people) == 3
    assert re.search(r"^cut: \{.*\} \(finish_reason 'length', forced_close True\)$", printed, re.M)
    assert re.search(r"^choice: (positive|negative)  regex: \d{4}-\d\d-\d\d$", printed, re.M)


def test_offline_shows_what_the_cache_saved(tmp_path: Path) -> None:
    printed = run("offline", cwd=tmp_path)
    found = re.search(r"^again: .* \((\d+) of (\d+) tokens were cached\)$", printed, re.M)
    assert found is not None, printed
    cached, prompt = map(int, found.groups())
    assert prompt / 2 < cached < prompt
