"""Time from a request's arrival at the scheduler to its first mask, for ordinary schemas."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

from benchmarks.common.tables import table
from radixrt.bench.result import percentile
from radixrt.config import ModelConfig
from radixrt.constrained.compile.grammar_manager import GrammarManager
from radixrt.constrained.compile.protocol import WorkerSettings
from radixrt.constrained.grammar import bitmask_words
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.messages.request import Request
from radixrt.models.loading.source import prepare_model
from radixrt.models.model_config import load_model_spec
from radixrt.sampling_params import SamplingParams

Json = dict[str, Any]
WAIT_S = 30.0


def record(i: int) -> Json:
    """A few fields of plain types."""
    properties = {f"name_{i}": {"type": "string"}, "age": {"type": "integer"}, "active": {"type": "boolean"}}
    return closed(properties)


def bounded(i: int) -> Json:
    """Strings with maxLength 200."""
    return closed({f"title_{i}": {"type": "string", "maxLength": 200}, "text": {"type": "string", "maxLength": 200}})


def choice(i: int) -> Json:
    """Enums, a range and a pattern."""
    return closed(
        {
            f"label_{i}": {"enum": ["positive", "neutral", "negative"]},
            "score": {"type": "integer", "minimum": 0, "maximum": 100},
            "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        }
    )


def nested(i: int) -> Json:
    """Twenty properties on two levels, arrays and references."""
    person = closed({"name": {"type": "string"}, "email": {"type": "string", "format": "email"}})
    item = closed({f"sku_{k}": {"type": "string", "maxLength": 40} for k in range(6)})
    properties = {
        f"order_{i}": {"type": "string"},
        "customer": {"$ref": "#/$defs/person"},
        "items": {"type": "array", "items": item, "minItems": 1, "maxItems": 50},
        "created": {"type": "string", "format": "date-time"},
        **{f"note_{k}": {"type": ["string", "null"]} for k in range(8)},
    }
    return closed(properties) | {"$defs": {"person": person}}


def union(i: int) -> Json:
    """An anyOf over a discriminator, as tools have it."""
    options = [
        closed({"kind": {"const": f"{name}_{i}"}, "value": {"type": kind}})
        for name, kind in (("a", "string"), ("b", "number"), ("c", "boolean"), ("d", "integer"))
    ]
    return closed({"action": {"anyOf": options}, "reason": {"type": "string", "minLength": 1}})


def closed(properties: Json) -> Json:
    return {
        "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False,
    }  # fmt: skip


KINDS: dict[str, Callable[[int], Json]] = {
    "record": record,
    "maxLength 200": bounded,
    "enum, range, pattern": choice,
    "20 properties, 2 levels": nested,
    "anyOf": union,
}


def first_mask(model: str, samples: int) -> None:
    """Print the table: each schema once uncached and once more cached, through a manager with its worker process."""
    folder = prepare_model(ModelConfig(model=model)).folder
    spec = load_model_spec(folder)
    manager = GrammarManager(
        lambda: Vocabulary.from_folder(folder, spec.vocab_size, spec.eos_token_ids),
        inline=False,
        worker=WorkerSettings(str(folder), spec.vocab_size, list(spec.eos_token_ids)),
    )
    row = np.empty(bitmask_words(spec.vocab_size), np.uint32)
    try:
        milliseconds(manager, "warm-up", closed({}), row)
        rows = []
        for name, make in KINDS.items():
            fresh = [milliseconds(manager, f"{name}-{i}", make(i), row) for i in range(samples)]
            again = [milliseconds(manager, f"{name}-{i}-again", make(i), row) for i in range(samples)]
            figures = [figure for each in (fresh, again) for figure in (median(each), percentile(each, 99), max(each))]
            rows.append([name, *(f"{figure:.2f}" for figure in figures)])
    finally:
        manager.close()
    print(f"\nFirst mask, ms of wall time; {samples} different schemas of each kind\n")
    print(table(["schemas", "uncached p50", "p99", "max", "cached p50", "p99", "max"], rows))


def milliseconds(manager: GrammarManager, rid: str, schema: Json, row: np.ndarray) -> float:
    """From `submit` to a filled mask, polling as the scheduler's loop does while it works."""
    sampling = SamplingParams(json_schema=schema)
    started = time.perf_counter()
    manager.submit(Request.generate(rid, b"", sampling), time.monotonic())
    while not (ready := manager.poll(time.monotonic())):
        if time.perf_counter() - started > WAIT_S:
            raise RuntimeError(f"no grammar for {rid} after {WAIT_S:g} s")
        time.sleep(0.0001)
    if ready[0].grammar is None:
        raise RuntimeError(f"{rid}: {ready[0].error}")
    np.copyto(row, ready[0].grammar.mask())
    return (time.perf_counter() - started) * 1e3
