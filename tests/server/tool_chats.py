"""Tools, calls of them, and models that call them, each in its own form."""

from __future__ import annotations

import json
from typing import Any

from radixrt.chat.dialect import make_dialect
from radixrt.constrained.tags.structural_tag import read_structural_tag
from radixrt.constraint import StructuredOptions
from tests.chat import templates
from tests.chat.templates import template
from tests.server.fake_engine import Sent

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
GET = {"type": "function", "function": {"name": "get", "description": "d", "parameters": CITY}}
STOP = {"type": "function", "function": {"name": "stop"}}
TOOLS = [GET, STOP]
CALL_GET = '<tool_call>\n{"name": "get", "arguments": {"city":"Rome"}}\n</tool_call>'
CALL_STOP = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'

HERMES = make_dialect(template(templates.HERMES))
GENERIC = make_dialect(template(templates.PLAIN))
LLAMA3 = make_dialect(template(templates.LLAMA3))
THINKING = make_dialect(template(templates.HERMES_THINKING), tokens={"<think>": 8, "</think>": 9})


FUNCTION = {"name": "f", "parameters": {}}


def tag_of(request: Sent) -> dict[str, Any]:
    """The structural tag of a request, which also must be one."""
    source = request.sampling.structural_tag
    read_structural_tag(source, StructuredOptions())[0]
    found: dict[str, Any] = json.loads(source)["format"]
    return found
