"""docs/structured_output.md lists what is refused by keyword, with examples: each of them is refused, for that."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from radixrt.constrained.regex import FORMATS
from radixrt.constrained.schema import SchemaRefused, normalize

DOCUMENT = (Path(__file__).parents[2] / "docs" / "structured_output.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `([^`]+)` \| [^|]+ \| `(\{.*\})` \| [^|]+ \|$", DOCUMENT, re.MULTILINE)


def test_the_table_is_found() -> None:
    assert len(ROWS) >= 8


@pytest.mark.parametrize(("keyword", "example"), ROWS)
def test_a_documented_example_is_refused_for_its_keyword(keyword: str, example: str) -> None:
    schema: Any = json.loads(example)
    with pytest.raises(SchemaRefused) as raised:
        normalize(schema)
    assert raised.value.errors[0].keyword == keyword
    assert raised.value.errors[0].fix


def test_the_formats_are_listed() -> None:
    listed = re.search(r"\*\*Formats\*\* that are enforced: ([^.]*)\.", DOCUMENT)
    assert listed is not None
    assert sorted(re.findall(r"`([^`]+)`", listed.group(1))) == sorted(FORMATS)
