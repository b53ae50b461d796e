"""The drawing of rotary positions in docs/vision.md is what the scheduler computes."""

from __future__ import annotations

import re
from pathlib import Path

from radixrt.messages.images import RowImage
from radixrt.parts.media.rotary import RotaryPositions

DOC = Path(__file__).parents[3] / "docs" / "vision.md"


def test_the_drawing_of_positions() -> None:
    text = DOC.read_text().partition("### Keys and positions")[2]
    rows = {name: [*map(int, re.findall(r"\d+", line))] for name, line in re.findall(r"^(\w+) (.*\|.*)$", text, re.M)}
    image = RowImage(start=4, count=6, rows=2, columns=3, height=64, width=96, digest=b"", pixels="")
    found = RotaryPositions([image])
    assert rows.pop("index") == [*range(12)]
    assert rows.pop("key") == [*range(6)]
    assert list(rows) == ["time", "height", "width"]
    assert found.within(0, 12).tolist() == list(rows.values())
    assert f"The difference, {found.offset}," in text
