"""Random walks through the masks of every format, with markers as text and as control tokens: all calls are valid."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import tokenizers

from radixrt.chat.tool_parser import CallArguments, CallBegin, Text, ToolCallParser
from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.tags.tool_formats import TOOL_FORMATS, ToolFormat
from radixrt.constrained.tags.tools import Tool, tools_constraint
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.constrained.vocabularies import bits

STRING = {"type": "string"}
SCHEMAS: dict[str, dict[str, Any]] = {
    "get": {"properties": {"city": STRING, "n": {"type": "integer"}}, "required": ["city"]},
    "get_time": {
        "properties": {
            "zone": {"enum": ["CET", "UTC"]},
            "opt": {"anyOf": [STRING, {"type": "null"}, {"type": "integer"}]},
            "l": {"type": "array", "items": STRING},
            "o": {"type": "object", "properties": {"a": STRING}, "required": ["a"]},
            "u": {},
        },
        "required": ["zone"],
    },
    "stop": {"properties": {}, "additionalProperties": False},
    "open": {"properties": {"x": {"type": ["string", "array"]}}, "additionalProperties": {**STRING, "maxLength": 300}},
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "code": STRING,
                    "n": {"type": "integer"},
                    "of": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
                    "e": {"anyOf": [{"type": "array", "maxItems": 1}, {"type": "object"}]},
                },
                "required": ["code", "of"],
                "additionalProperties": False,
            }
        },
        "properties": {"root": {"$ref": "#/$defs/node"}, "pair": {"prefixItems": [STRING, {"type": "number"}]}},
        "required": ["root"],
    },
    "either": {"anyOf": [{"properties": {"a": STRING}, "required": ["a"]}, {"properties": {"b": {"type": "boolean"}}}]},
}
TOOLS = [Tool(name, json.dumps({"type": "object", **schema})) for name, schema in SCHEMAS.items()]
SEEDS = 8


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize("form", TOOL_FORMATS.values(), ids=lambda form: form.name)
def test_every_call_parses_and_is_valid(form: ToolFormat, as_tokens: bool, model_folder: Path) -> None:
    markers = form.markers if as_tokens else ()
    vocabulary = with_control_tokens(model_folder, markers)
    backends = Backends(vocabulary)
    shown = {i: text.encode() for text, i in vocabulary.control_tokens.items()}
    for required in (True, False):
        source = tools_constraint(TOOLS, form, required=required, parallel=True, tokens=markers)
        compiled = compile_constraint(Constraint(kind="structural_tag", source=source), backends)
        template = load(compiled, backends)
        ends = {t for t, data in enumerate(vocabulary.table) if data in (b'"', b"}", b"<", b">", b"]", b"\n")}
        short = vocabulary.mask_of(ends | set(shown) | set(vocabulary.eos_ids))
        calls = 0
        for seed in range(SEEDS):
            rng = random.Random(seed)
            grammar = template.new()
            tokens: list[int] = []
            budget = rng.randint(160, 300)
            if not required and seed % 3:
                for token in trigger_tokens(form, markers, vocabulary):
                    assert grammar.accept(token)
                    tokens.append(token)
            while not grammar.is_terminated():
                row = grammar.mask()
                near = sorted(bits(row & short)) if rng.random() < 0.35 else []
                token = rng.choice(near or sorted(bits(row)))
                if not grammar.fits(token, budget - len(tokens) - 1):
                    tokens += grammar.closing()
                    break
                assert grammar.accept(token)
                tokens += [] if token in vocabulary.eos_ids else [token]
            assert len(tokens) <= budget
            text = b"".join(shown.get(token) or vocabulary.table[token] for token in tokens).decode()
            found = check(form, text)
            assert found or not required
            calls += found
        assert calls


def trigger_tokens(form: ToolFormat, markers: tuple[str, ...], vocabulary: Vocabulary) -> list[int]:
    if not markers:
        return vocabulary.encode(form.trigger)
    parts = re.split("(" + "|".join(map(re.escape, markers)) + ")", form.trigger)
    ids = [[vocabulary.control_tokens[part]] if part in markers else vocabulary.encode(part) for part in parts if part]
    return [token for part in ids for token in part]


def check(form: ToolFormat, text: str) -> int:
    """Check an answer, read whole and in pieces; the number of its calls."""
    read = []
    for size in (1, 7, len(text) or 1):
        parser = ToolCallParser(form, TOOLS)
        parts = [part for at in range(0, len(text), size) for part in parser.feed(text[at : at + size])]
        parts += parser.finish()
        calls: list[tuple[str, list[str]]] = [(part.name, []) for part in parts if isinstance(part, CallBegin)]
        for part in parts:
            if isinstance(part, CallArguments):
                calls[part.index][1].append(part.text)
        said = "".join(part.text for part in parts if isinstance(part, Text))
        read.append(([(name, "".join(texts)) for name, texts in calls], said, parser.complete))
    assert read[0] == read[1] == read[2], text
    found, _, complete = read[0]
    assert complete == bool(found)
    for name, arguments in found:
        jsonschema.validate(json.loads(arguments), {"type": "object", **SCHEMAS[name]})
    return len(found)


def with_control_tokens(folder: Path, markers: tuple[str, ...]) -> Vocabulary:
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.add_tokens([tokenizers.AddedToken(marker, special=True) for marker in markers])
    tokenizer = Tokenizer(backend, eos_ids=[0, 2])
    return Vocabulary(tokenizer, tokenizer.vocab_size + 5, [0, 2])
