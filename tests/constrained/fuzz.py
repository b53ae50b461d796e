"""Random constraints, sane and not, compiled and generated from: `python -m tests.constrained.fuzz FOLDER SEED COUNT`.

Each constraint is refused with a `RequestError` or makes a grammar whose random outputs, cut anywhere, are what was
asked for. Runs in a process of its own, because a crash or a hang of a mask library is among what it looks for; the
last constraint is always the last line that it printed.
"""

from __future__ import annotations

import json
import random
import re
import sys
import time
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator

from radixrt.constrained.backends.choice import Backends
from radixrt.constrained.compile.compiler import compile_constraint, load
from radixrt.constrained.grammar import Grammar
from radixrt.constrained.matcher import GrammarError
from radixrt.constrained.runtime.grammar_template import GrammarTemplate
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import Constraint, StructuredOptions
from radixrt.errors import RequestError

NAMES = ("a", "b", "name", "x y", 'q"', "é", "")
TYPES = ("null", "boolean", "integer", "number", "string", "array", "object")
SLOW_S = 200.0
"""Processor time that ends a constraint which is endless; each takes well under a second."""


def regex(rng: random.Random, depth: int = 4) -> str:
    """A pattern in the syntax that Python has too, with the same meaning."""
    if depth == 0 or rng.random() < 0.25:
        return rng.choice(["a", "b", "[a-d]", "[^a-y]", "[0-9]", "é", "\\.", "日", "[🙂-🙂🙏]", "\\\\", '"', "-"])
    inner = [regex(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    kind = rng.randrange(5)
    if kind == 0:
        return "(?:" + "|".join(inner) + ")"
    if kind == 1:
        low = rng.randrange(4)
        more = low + rng.choice([0, 1, 5, 90])
        bounds = rng.choice(["*", "+", "?", f"{{{low}}}", f"{{{low},}}", f"{{{low},{more}}}"])
        return f"(?:{inner[0]}){bounds}"
    return "".join(inner)


def broken(rng: random.Random, text: str) -> str:
    """The text with some characters lost, doubled or swapped for others."""
    chars = list(text)
    for _ in range(rng.randrange(1, 4)):
        if chars:
            at = rng.randrange(len(chars))
            chars[at : at + 1] = rng.choice(["", chars[at] * 2, rng.choice('()[]{}|*+?\\^$.-,":=\n\x00\ud7ff')])
    return "".join(chars)


def ebnf(rng: random.Random) -> str:
    rules = ["root", *rng.sample(["x", "y", "zed", "w-1"], rng.randrange(4))]

    def expr(depth: int) -> str:
        if depth == 0 or rng.random() < 0.3:
            return rng.choice(['"a"', '"bc"', "[a-c]", "[^a]", '"\\n"', '"é"', '"\\""', *rules[1:]])
        parts = [expr(depth - 1) for _ in range(rng.randrange(1, 4))]
        kind = rng.randrange(4)
        if kind == 0:
            return "(" + " | ".join(parts) + ")"
        if kind == 1:
            return f"({parts[0]})" + rng.choice(["*", "+", "?", "{2}", "{0,3}", "{1,}", "{2,60}"])
        return " ".join(parts)

    return "\n".join(f"{name} ::= {expr(3)}" for name in rules)


def schema(rng: random.Random, depth: int = 3) -> Any:
    """A schema of usual and unusual keywords; many accept nothing or cannot be enforced."""
    if depth == 0 or rng.random() < 0.1:
        simple = [True, {}, {"type": "string"}, {"type": "integer"}, {"enum": ["a", 1, None]}, {"const": "é\n"}]
        return rng.choice(simple)

    def some(count: int) -> list[Any]:
        return [schema(rng, depth - 1) for _ in range(rng.randrange(1, count + 1))]

    made: dict[str, Any] = {}
    if rng.random() < 0.8:
        made["type"] = rng.choice(TYPES) if rng.random() < 0.8 else rng.sample(TYPES, 2)
    for _ in range(rng.randrange(4)):
        keyword = rng.choice(list(KEYWORDS))
        made[keyword] = KEYWORDS[keyword](rng, some)
    return made


KEYWORDS: dict[str, Any] = {
    "properties": lambda rng, some: dict(zip(rng.sample(NAMES, 3), some(3))),
    "required": lambda rng, some: rng.sample(NAMES, rng.randrange(3)),
    "additionalProperties": lambda rng, some: rng.choice([False, True, *some(1)]),
    "patternProperties": lambda rng, some: {rng.choice(["^a", "b$", "[0-9]+"]): some(1)[0]},
    "propertyNames": lambda rng, some: {"pattern": "^[a-z]*$"},
    "minProperties": lambda rng, some: rng.randrange(3),
    "maxProperties": lambda rng, some: rng.randrange(4),
    "items": lambda rng, some: some(1)[0],
    "prefixItems": lambda rng, some: some(3),
    "minItems": lambda rng, some: rng.choice([0, 1, 2, 30]),
    "maxItems": lambda rng, some: rng.choice([0, 1, 3, 1000]),
    "uniqueItems": lambda rng, some: rng.random() < 0.5,
    "contains": lambda rng, some: some(1)[0],
    "minLength": lambda rng, some: rng.choice([0, 1, 7]),
    "maxLength": lambda rng, some: rng.choice([0, 3, 200, 100_000]),
    "pattern": lambda rng, some: rng.choice(["^a+$", "b", "^(x|y)", "é$", regex(rng, 2)]),
    "minimum": lambda rng, some: rng.choice([-5, 0, 0.5, 10]),
    "exclusiveMaximum": lambda rng, some: rng.choice([1, 3.5, 1e3]),
    "multipleOf": lambda rng, some: rng.choice([1, 2, 0.1, 7]),
    "enum": lambda rng, some: rng.sample(["a", "b\n", 1, 2.5, None, True, [1], {"a": 1}], 3),
    "const": lambda rng, some: rng.choice([0, "x", {"b": [1, "é"]}]),
    "anyOf": lambda rng, some: some(3),
    "oneOf": lambda rng, some: some(2),
    "allOf": lambda rng, some: some(2),
    "not": lambda rng, some: some(1)[0],
    "if": lambda rng, some: some(1)[0],
    "then": lambda rng, some: some(1)[0],
    "$ref": lambda rng, some: "#",
    "dependentRequired": lambda rng, some: {"a": ["b"]},
}


def constraint(rng: random.Random) -> Constraint:
    kind = rng.choice(["regex", "ebnf", "json_schema", "json_schema"])
    if kind == "regex":
        source = regex(rng)
    elif kind == "ebnf":
        source = ebnf(rng)
    else:
        source = json.dumps(schema(rng))
    if rng.random() < 0.1:
        source = broken(rng, source)
    # xgrammar takes minutes for some small ambiguous grammars; the engine leaves those to processes that it can kill.
    backend = rng.choice(["auto", "auto", "llguidance", "auto" if kind == "ebnf" else "xgrammar"])
    return Constraint(
        kind=kind,  # type: ignore[arg-type]
        source=source,
        options=StructuredOptions(backend=backend, whitespace=rng.choice([0, 0, 2]), formats="annotate"),  # type: ignore[arg-type]
    )


def generate(grammar: Grammar, vocabulary: Vocabulary, rng: random.Random) -> str:
    """A random output, closed where a random budget ends."""
    budget = len(grammar.closing()) + rng.randrange(30)
    tokens: list[int] = []
    while not grammar.is_terminated():
        forced = grammar.forced_continuation()
        row = grammar.mask()
        choices = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        token = forced[0] if forced and rng.random() < 0.5 else int(choices[rng.randrange(len(choices))])
        assert token in choices, "a forced token is masked"
        remaining = budget - len(tokens) - 1
        if not grammar.fits(token, remaining):
            closing = grammar.closing()
            assert len(closing) <= remaining + 1, "the closing is longer than was promised"
            assert all(map(grammar.accept, closing)), "the closing is not accepted"
            tokens += closing
            break
        assert grammar.accept(token), "a token of the mask is refused"
        if token in vocabulary.eos_ids:
            break
        tokens.append(token)
    return vocabulary.decode(tokens).decode()


def compare(template: GrammarTemplate, rng: random.Random, steps: int = 6) -> None:
    """Raise AssertionError if a mask and the recognizer disagree about a token, at places that both can get to."""
    vocabulary = template.vocabulary
    grammar, place = template.new(), template.completions.start
    sample = [rng.randrange(vocabulary.vocab_size) for _ in range(400)]
    written: list[int] = []
    for _ in range(steps):
        row = grammar.mask()
        choices = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        likely = [int(choices[rng.randrange(len(choices))]) for _ in range(40)]
        structure = [token for text in STRUCTURE for token in vocabulary.encode(text)[:1]]
        for token in {*sample, *likely, *structure}:
            if not vocabulary.table[token]:
                continue
            recognized = template.completions.advance(place, token) is not None
            masked = not row[token >> 5] >> (token & 31) & 1
            if recognized == masked and not (masked and len(choices) == 1):  # llguidance: forced text, canonically
                text = vocabulary.decode(written), vocabulary.table[token]
                raise AssertionError(f"after {text[0]!r} {text[1]!r} is {'masked' if masked else 'not recognized'}")
        chosen = next((one for one in likely if one not in vocabulary.eos_ids), None)
        if chosen is None:
            return
        assert grammar.accept(chosen)
        written.append(chosen)
        after = template.completions.advance(place, chosen)
        assert after is not None
        place = after


STRUCTURE = ('"', ",", ":", "{", "}", "[", "]", '","', '":', '"}', '{"', "1", "-", ".", "e", " ", "a", "b", "x", "é")


def check(constraint: Constraint, text: str) -> None:
    """Raise AssertionError if an output is not what was asked for."""
    if constraint.kind == "regex":
        try:
            pattern = re.compile(constraint.source)
        except re.error:
            return
        assert pattern.fullmatch(text), f"{text!r} does not match"
    elif constraint.kind == "json_schema":
        wanted = json.loads(constraint.source)
        error = next(Draft202012Validator(wanted).iter_errors(json.loads(text)), None)
        assert error is None, f"{text!r} is not valid: {error and error.message}"


def main(folder: str, seed: int, count: int) -> int:
    vocabulary = Vocabulary.from_folder(folder, 49_152, (0, 2))
    backends = Backends(vocabulary)
    backends.get("xgrammar")
    made = refused = 0
    for number in range(seed, seed + count):
        rng = random.Random(number)
        one = constraint(rng)
        print(json.dumps([number, one.kind, one.options.backend, one.options.whitespace, one.source]), flush=True)
        cpu_started = time.process_time()
        try:
            grammar = load(compile_constraint(one, backends, time.thread_time() + 600.0), backends)
        except RequestError:
            refused += 1
        else:
            made += 1
            for _ in range(3):
                try:
                    check(one, generate(grammar.new(), vocabulary, rng))
                    compare(grammar, rng)
                except (GrammarError, RequestError) as error:
                    print("gave up:", error, flush=True)
        assert time.process_time() - cpu_started < SLOW_S, "too slow"
    print(f"{made} compiled, {refused} refused", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
