"""Child process of the grammar benchmark: compiles schemas with one engine and walks instances through the grammar.

    python -m benchmarks.structure.grammar_worker ENGINE MODEL_FOLDER

Reads `{"id", "schema", "tests": [{"data", "valid"}]}` as lines of stdin and answers each with one line (see `Answer`).
Times are processor seconds of this process, which everything here runs in alone. An instance is written compactly, with
its keys as they come, tokenized, and held against the mask token by token; it is accepted if an end token is allowed
after it. All engines here want the keys in the schema's order, so a valid instance that is refused is tried once more
in that order. The garbage of one schema is collected before the next one's time begins.
"""

import gc
import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from radixrt.constrained.grammar import bitmask_words
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.models.model_config import load_model_spec

MAX_UNCOLLECTED = 50_000
"""Objects made before garbage is looked for, between two schemas."""

Bits = npt.NDArray[np.uint32]


@dataclass
class Answer:
    """Result of one schema.

    Attributes:
        error: why there is no grammar, or what broke while it was used.
        compile_s: to the first mask.
        load_s: of this, what llguidance takes to load the grammar that is written for it; 0 for the libraries alone.
        masks_us: of each later mask, microseconds.
        valid_refused, invalid_accepted, tests: instances, as written.
        refused_in_order: of `valid_refused`, those that are refused in the order of the schema too.
        masks_digest: hash of all masks, for the comparison of two versions.
    """

    id: str
    error: str | None = None
    compile_s: float = 0.0
    load_s: float = 0.0
    masks_us: list[float] = field(default_factory=list)
    valid_refused: int = 0
    refused_in_order: int = 0
    invalid_accepted: int = 0
    tests: int = 0
    masks_digest: str = ""


class Walk(Protocol):
    """One text's way through a grammar."""

    def fill(self, row: Bits) -> None: ...

    def accept(self, token: int) -> bool: ...

    def may_end(self) -> bool: ...


class EngineUnderTest(Protocol):
    load_s: float
    """See `Answer`; of the last grammar."""

    def compile(self, schema: str) -> Any:
        """A grammar from which `start` makes walks. Raises any exception for a schema that it refuses."""

    def start(self, grammar: Any) -> Walk: ...


# --- radixrt ---


class OursWalk:
    def __init__(self, grammar: Any, eos_mask: Bits) -> None:
        self._grammar = grammar
        self._eos_mask = eos_mask
        self.accept = grammar.accept

    def fill(self, row: Bits) -> None:
        np.copyto(row, self._grammar.mask())

    def may_end(self) -> bool:
        return bool((self._grammar.mask() & self._eos_mask).any())


class Ours:
    """The way of a request: compile, load, a grammar of its own."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        from radixrt.constrained.backends.choice import Backends

        self._backends = Backends(vocabulary)
        self._backends.get("llguidance")
        self.load_s = 0.0

    def compile(self, schema: str) -> Any:
        from radixrt.constrained.compile.compiler import compile_constraint, load
        from radixrt.constraint import Constraint

        self.load_s = 0.0
        compiled = compile_constraint(Constraint(kind="json_schema", source=schema), self._backends)
        started = time.process_time()
        template = load(compiled, self._backends)
        self.load_s = time.process_time() - started
        return template

    def start(self, grammar: Any) -> Walk:
        return OursWalk(grammar.new(), self._backends.vocabulary.eos_mask)


# --- xgrammar alone ---


class XgrammarWalk:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self.accept = matcher.accept_token
        self.may_end = matcher.is_completed

    def fill(self, row: Bits) -> None:
        self._matcher.fill_next_token_bitmask(row.view(np.int32)[None])


class Xgrammar:
    """Its own JSON-schema front end, with the standard's meaning of objects (strict_mode=False)."""

    load_s = 0.0

    def __init__(self, vocabulary: Vocabulary) -> None:
        import xgrammar

        self._xgrammar: Any = xgrammar
        names = {i: text.encode() for text, i in vocabulary.control_tokens.items()}
        tokens = [data or names.get(i, b"") for i, data in enumerate(vocabulary.table)]
        info = xgrammar.TokenizerInfo(
            tokens, xgrammar.VocabType.RAW, vocab_size=vocabulary.vocab_size, stop_token_ids=list(vocabulary.eos_ids)
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, schema: str) -> Any:
        return self._compiler.compile_json_schema(schema, strict_mode=False)

    def start(self, grammar: Any) -> Walk:
        return XgrammarWalk(self._xgrammar.GrammarMatcher(grammar))


# --- llguidance alone ---


class LlguidanceWalk:
    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self.may_end = matcher.is_accepting

    def fill(self, row: Bits) -> None:
        self._matcher.unsafe_compute_mask_ptr(row.ctypes.data, row.nbytes)
        if self._matcher.is_error():
            raise RuntimeError(self._matcher.get_error())

    def accept(self, token: int) -> bool:
        return bool(self._matcher.consume_token(token))


class Llguidance:
    """Its own JSON-schema front end."""

    load_s = 0.0

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._tokenizer = vocabulary.ll_tokenizer

    def compile(self, schema: str) -> Any:
        import llguidance

        source = llguidance.LLMatcher.grammar_from_json_schema(schema)
        matcher = llguidance.LLMatcher(self._tokenizer, source, log_level=0)
        if matcher.is_error():
            raise RuntimeError(matcher.get_error())
        return matcher

    def start(self, grammar: Any) -> Walk:
        return LlguidanceWalk(grammar.deep_copy())


ENGINES: dict[str, type[Any]] = {"radixrt": Ours, "xgrammar": Xgrammar, "llguidance": Llguidance}


def judge(engine: EngineUnderTest, vocabulary: Vocabulary, entry: dict[str, Any]) -> Answer:
    """One schema and its instances."""
    answer = Answer(str(entry["id"]))
    row = np.empty(bitmask_words(vocabulary.vocab_size), np.uint32)
    digest = hashlib.blake2b(digest_size=16)
    if gc.get_count()[0] > MAX_UNCOLLECTED:
        gc.collect()
    started = time.process_time()
    try:
        grammar = engine.compile(json.dumps(entry["schema"], ensure_ascii=False))
        engine.start(grammar).fill(row)
        answer.compile_s = time.process_time() - started
        answer.load_s = engine.load_s
        digest.update(row.data)
        for test in entry.get("tests", ()):
            tokens = vocabulary.encode(written(test["data"]))
            accepted = walk(engine.start(grammar), tokens, row, answer.masks_us, digest)
            answer.tests += 1
            answer.invalid_accepted += accepted and not test["valid"]
            if test["valid"] and not accepted:
                answer.valid_refused += 1
                tokens = vocabulary.encode(written(in_order(declared(entry["schema"]), test["data"])))
                answer.refused_in_order += not walk(engine.start(grammar), tokens, row, [], digest)
    except Exception as error:  # whatever the library under test raises
        answer.error = f"{type(error).__name__}: {error}"[:300]
        answer.compile_s = answer.compile_s or time.process_time() - started
    answer.masks_digest = digest.hexdigest()
    return answer


def written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def declared(schema: Any) -> list[dict[str, Any]]:
    """Every `properties` of a schema, wherever it stands."""
    found: list[dict[str, Any]] = []
    pending = [schema]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            if isinstance(one.get("properties"), dict):
                found.append(one["properties"])
            pending.extend(one.values())
        elif isinstance(one, list):
            pending.extend(one)
    return found


def in_order(properties: Sequence[dict[str, Any]], value: Any) -> Any:
    """The value with the keys of each object as the `properties` that name most of them have them, others behind."""
    if isinstance(value, list):
        return [in_order(properties, item) for item in value]
    if not isinstance(value, dict):
        return value
    best = max(properties, key=lambda names: len(names.keys() & value.keys()), default={})
    names = [name for name in best if name in value] + [name for name in value if name not in best]
    return {name: in_order(properties, value[name]) for name in names}


def walk(way: Walk, tokens: Sequence[int], row: Bits, masks_us: list[float], digest: hashlib.blake2b) -> bool:
    """Return True if every token is in the mask before it and the text may end after the last."""
    for token in tokens:
        started = time.process_time()
        way.fill(row)
        masks_us.append((time.process_time() - started) * 1e6)
        digest.update(row.data)
        if not row[token // 32] >> (token % 32) & 1 or not way.accept(token):
            return False
    return way.may_end()


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    spec = load_model_spec(folder)
    vocabulary = Vocabulary.from_folder(folder, spec.vocab_size, spec.eos_token_ids)
    engine = ENGINES[name](vocabulary)
    judge(engine, vocabulary, {"id": "warm-up", "schema": {"type": "object"}, "tests": [{"data": {}, "valid": True}]})
    gc.freeze()
    gc.disable()
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(asdict(judge(engine, vocabulary, json.loads(line)))), flush=True)


if __name__ == "__main__":
    main()
