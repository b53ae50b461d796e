"""A chat request enters each file once on its way to the engine, as docs/architecture.md lists them."""

from __future__ import annotations

import inspect
import re
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import radixrt
from radixrt.chat.dialect import make_dialect
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller

PACKAGE = Path(radixrt.__file__).parent
VALUES = {"errors.py", "sampling_params.py", "constraint.py"}
"""Types that requests are made of; their own checks are no stations of the walk."""

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get", "parameters": CITY}}]
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": CITY}}


def documented() -> list[str]:
    """The files of the numbered walk in docs/architecture.md, in order."""
    text = (PACKAGE.parent / "docs" / "architecture.md").read_text()
    walk = text.partition("### A chat request")[2].partition("\n## ")[0]
    return re.findall(r"^\d+\. `([a-z_/]+\.py)`", walk, re.MULTILINE)


def _is_property(frame: FrameType) -> bool:
    """Return True if the frame computes an attribute, which is no station either."""
    owner = type(frame.f_locals.get("self"))
    return isinstance(inspect.getattr_static(owner, frame.f_code.co_name, None), property)


def trace(caller: Caller, fields: dict[str, Any]) -> list[str]:
    """The files whose functions are called from the body's arrival until `EngineClient.astream`, neighbours merged."""
    caller.chat(**fields)  # imports and caches
    stations: list[str] = []
    state = "before"
    thread = threading.get_ident()

    def profile(frame: FrameType, event: str, _: object) -> None:
        nonlocal state
        code = frame.f_code
        if event != "call" or state == "sent" or code.co_name.startswith("<") or threading.get_ident() != thread:
            return
        path = Path(code.co_filename)
        if not path.is_relative_to(PACKAGE):
            return
        name = path.relative_to(PACKAGE).as_posix()
        if code.co_name == "receive" and name.endswith("receive.py"):
            state = "walking"
        if state == "walking" and name not in VALUES and stations[-1:] != [name] and not _is_property(frame):
            stations.append(name)
        if code.co_name == "astream":
            state = "sent"

    sys.setprofile(profile)
    try:
        assert caller.chat(**fields).status_code == 200
    finally:
        sys.setprofile(None)
    return stations


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize(
    "fields",
    [{}, {"response_format": FORMAT}, {"tools": TOOLS}, {"tools": TOOLS, "response_format": FORMAT}],
    ids=["plain", "schema", "tools", "tools and schema"],
)
def test_each_file_is_entered_once(engine: FakeEngine, fields: dict[str, Any], n: int, stream: bool) -> None:
    caller = Caller(engine, dialect=make_dialect(template(templates.HERMES)))
    expected = documented()
    if "tools" not in fields:
        expected.remove("constrained/tags/tools.py")
        assert len(expected) <= 14
    assert trace(caller, {**fields, "n": n, "stream": stream}) == expected
