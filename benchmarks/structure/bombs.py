"""Constraints that are hard to compile, and the neighbours of a client that sends many of them at once."""

import argparse
import math
import select
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.common.tables import table
from radixrt.bench.result import percentile
from radixrt.config import ModelConfig
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.constrained.compile.protocol import WorkerSettings
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import StructuredOptions
from radixrt.messages.request import Request
from radixrt.messages.wire import pack_i32
from radixrt.models.loading.source import prepare_model
from radixrt.models.model_config import load_model_spec
from radixrt.sampling_params import SamplingParams

Json = dict[str, Any]

POLL_S = 0.01
"""Longest pause between two calls of `GrammarManager.poll`, in seconds, as in the scheduler's loop."""
TIMES = 6
"""Constraints of each kind that the attack sends at once."""
NEIGHBOURS = 120
EVERY_S = 0.25
"""Constraints of the neighbour, and the seconds between two of them."""
START_S = 8.0
"""Seconds until the workers have started and the vocabulary is loaded."""


def needs(name: str) -> Json:
    return {"required": [name], "properties": {name: {"type": "string", "maxLength": 99}}}


def _schema(schema: Json) -> Json:
    return {"json_schema": schema}


def _by_xgrammar(fields: Json) -> Json:
    return {**fields, "structured": StructuredOptions(backend="xgrammar")}


BOMBS: list[Callable[[int], Json]] = [
    lambda i: _schema({"type": "string", "pattern": f"^((a{{1,50}}){{1,50}}){{1,{50 + i}}}$"}),
    lambda i: _schema({"allOf": [{"anyOf": [needs(f"x{i}_{k}"), needs(f"y{k}")]} for k in range(14)]}),
    lambda i: {"ebnf": f'root ::= (w " "?){{1,{100 + i}}}\nw ::= [a-z]{{1,20}}'},
    lambda i: {"regex": rf"(.*a.{{{25 + i}}})"},
    lambda i: _schema({"enum": [f"word {i} {k}" for k in range(15_000)]}),
]  # fmt: skip
"""Kinds of constraints that take from a tenth of a second to longer than any deadline, by a number that varies them."""

MORE_BOMBS: list[Callable[[int], Json]] = [
    lambda i: _schema({"oneOf": [{"anyOf": [needs(f"o{i}_{k}"), needs(f"p{k + 1}")]} for k in range(12)]}),
    lambda i: _schema({"not": {"allOf": [{"anyOf": [needs(f"n{i}_{k}"), needs(f"m{k}")]} for k in range(12)]}}),
    lambda i: _schema({"type": "string", "allOf": [{"pattern": f"a.{{{k + i % 7}}}b"} for k in range(3, 9)]}),
    lambda i: _schema({"type": "string", "not": {"pattern": f"(a|b)*a(a|b){{{14 + i % 9}}}"}}),
    lambda i: _schema({"type": "array", "uniqueItems": True, "items": {"enum": [f"{i}_{k}" for k in range(11)]}}),
    lambda i: _schema({"type": "array", "contains": {"const": i}, "minContains": 40, "maxContains": 900}),
    lambda i: _schema({"type": "number", "multipleOf": 0.07 + i / 1000, "minimum": 1e-7, "maximum": 1e9}),
    lambda i: _schema({"patternProperties": {f"^.{{{k}}}[a-m{i}].*$": {"type": "integer"} for k in range(9)}}),
    lambda i: _schema({"minProperties": 200 + i, "additionalProperties": {"type": "string", "maxLength": 300}}),
    lambda i: _schema({"type": "array", "maxItems": 1000, "items": {"type": "string", "maxLength": 900 + i}}),
    lambda i: _schema({"$defs": {f"d{k}": _fan(i, k) for k in range(300)}, "$ref": "#/$defs/d0"}),
    lambda i: _schema({"enum": [{"a": k, "b": [i] * (k % 20)} for k in range(9_000)]}),
    lambda i: {"choices": [f"{i}-{k}" * 20 for k in range(8_000)]},
    lambda i: {"regex": rf"((a|b|c){{1,{90 + i}}}x?){{1,90}}"},
    lambda i: {"regex": rf"(?=.*a.{{{12 + i % 9}}})(?=.*b.{{11}}).*c.{{9}}"},
    lambda i: {"regex": r"(\p{L}\p{N}?){1," + str(200 + i) + r"}(\p{Lu}|\p{P}){1,200}"},
    lambda i: {"ebnf": "root ::= " + " ".join(f"r{k}?" for k in range(300)) + _rules(i, 300)},
    lambda i: {"ebnf": f'root ::= a{{{300 + i}}}\na ::= b{{300}}\nb ::= "x" | "y" root?'},
    lambda i: {"structural_tag": _tags(i)},
    lambda i: _by_xgrammar(_schema({"type": "string", "pattern": f"^([a-z]{{1,40}} ){{1,{60 + i}}}$"})),
]  # fmt: skip


def _fan(i: int, k: int) -> Json:
    return {"properties": {f"p{i}_{n}": {"$ref": f"#/$defs/d{(k * 7 + n) % 300}"} for n in range(12)}}


def _rules(i: int, count: int) -> str:
    return "".join(f'\nr{k} ::= "{i}_{k}" [a-z]{{1,60}} | r{(k + 1) % count} "z"' for k in range(count))


def _tags(i: int) -> Json:
    schema = {"allOf": [{"anyOf": [needs(f"t{i}_{k}"), needs(f"u{k}")]} for k in range(12)]}
    tag = {"begin": "<t>", "content": {"type": "json_schema", "json_schema": schema}, "end": "</t>"}
    return {"format": {"type": "triggered_tags", "triggers": ["<t>"], "tags": [tag]}}


def attack_of(times: int = TIMES) -> Iterator[Json]:
    """Yield `times` constraints of each of 50 kinds of bombs."""
    kinds = [*BOMBS, *MORE_BOMBS]
    for n in range(times):
        for i in range(50):
            yield kinds[i % len(kinds)](10 * i + n)


def request(rid: str, tenant: str, **fields: Any) -> Request:
    return Request.generate(rid, pack_i32([1, 2, 3]), SamplingParams(**fields), tenant=tenant)


@contextmanager
def manager_of(model: str) -> Iterator[GrammarManager]:
    folder = prepare_model(ModelConfig(model=model, load_format="dummy")).folder
    spec = load_model_spec(folder)
    eos_ids = list(spec.eos_token_ids)
    vocabulary = Vocabulary.from_folder(folder, spec.vocab_size, eos_ids)
    settings = WorkerSettings(str(folder), spec.vocab_size, eos_ids)
    manager = GrammarManager(lambda: vocabulary, inline=False, worker=settings)
    try:
        yield manager
    finally:
        manager.close()


def neighbours(args: argparse.Namespace) -> None:
    """Wait of one client's small constraints, alone and while another client's bombs compile beside running steps."""
    rows = []
    for name, times in (("alone", 0), ("beside 300 bombs", TIMES)):
        for crowded in (False, True):
            waits, outcomes = _attack(args.model, times, crowded)
            figures = [f"{value * 1e3:.0f}" for value in (*(percentile(waits, q) for q in (50, 90)), max(waits))]
            bombs = sum(count for outcome, count in outcomes.items() if outcome.startswith("bomb"))
            compiled = str(outcomes["neighbour compiled"])
            rows.append([f"{name}, {'steps run' if crowded else 'idle'}", *figures, compiled, str(bombs)])
    print(f"\nms from the arrival of {NEIGHBOURS} small constraints to their grammars\n")
    print(table(["", "p50", "p90", "longest", "compiled", "bombs answered"], rows))


def _attack(model: str, times: int, crowded: bool) -> tuple[list[float], Counter[str]]:
    """Return the waits of the neighbour's constraints, in seconds, and how many constraints of whom ended how."""
    waits: list[float] = []
    outcomes: Counter[str] = Counter()
    sent: dict[str, float] = {}

    def poll_until(due: float) -> None:
        while time.monotonic() < due and (sent or due != math.inf):
            now = time.monotonic()
            for each in manager.poll(now, steps_in_flight=crowded, crowded=crowded):
                who = "neighbour" if each.message.rid in sent else "bomb"
                outcomes[f"{who} {'compiled' if each.error is None else each.error.code}"] += 1
                if who == "neighbour":
                    waits.append(now - sent.pop(each.message.rid))
            select.select(manager.sockets(), [], [], POLL_S)

    with manager_of(model) as manager:
        poll_until(time.monotonic() + START_S)
        for i, fields in enumerate(attack_of(times)):
            manager.submit(request(f"bomb{i}", "attacker", **fields), time.monotonic())
        started = time.monotonic()
        for i in range(NEIGHBOURS):
            poll_until(started + i * EVERY_S)
            sent[f"small{i}"] = time.monotonic()
            manager.submit(request(f"small{i}", "neighbour", json_schema=needs(f"small{i}")), time.monotonic())
        poll_until(math.inf)
    return waits, outcomes
