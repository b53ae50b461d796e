"""The examples that need no running server do what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_extract_gives_typed_values_whole_and_cut() -> None:
    result = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "extract.py")],
        capture_output=True, text=True, timeout=240, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    people = re.findall(
        r"^Person\(name='.*', age=\d+, city='.*', profession=.*, languages=\[.+\]\)$", result.stdout, re.M
    )
    assert len(people) == 3
    assert re.search(r"^cut: \{.*\} \(finish_reason 'length', forced_close True\)$", result.stdout, re.M)
    assert re.search(r"^choice: (positive|negative)  regex: \d{4}-\d\d-\d\d$", result.stdout, re.M)
