"""Workloads of `benchmarks.serving`, as plain data made from a seed.

A workload is a list of conversations and how many of them run at a time. All but `multi-turn` have conversations of one
turn. Lengths are in tokens of user or system text, by `words.TOKENS_PER_WORD`; the chat template comes on top of them.
They are set so that SmolLM2's prompt totals agree with those of the recorded peer runs (shared-prefix 77,812, tree
29,544, multi-turn 12,076 tokens), so a run can be compared with them.
"""

import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from radixrt.bench.words import TOKENS_PER_WORD, prose

Json = dict[str, object]
Messages = list[dict[str, str]]


@dataclass(frozen=True)
class Conversation:
    """User turns sent one after another; every turn re-sends the history with the server's own answers in it."""

    users: tuple[str, ...]
    system: str | None = None

    def opening(self) -> Messages:
        """The messages before the first user turn."""
        return [] if self.system is None else [{"role": "system", "content": self.system}]


@dataclass(frozen=True)
class Workload:
    """`concurrency` conversations run at a time; each answer has `max_tokens` tokens, or fewer under a schema."""

    name: str
    conversations: tuple[Conversation, ...]
    concurrency: int
    max_tokens: int
    schema: Json | None = None

    @property
    def requests(self) -> int:
        return sum(len(conversation.users) for conversation in self.conversations)

    def scaled(self, share: float) -> "Workload":
        """The first `share` of the conversations, at least one: for trying things out, not for numbers to keep."""
        return replace(self, conversations=self.conversations[: max(1, round(len(self.conversations) * share))])


@dataclass(frozen=True)
class UniqueShape:
    """The configurable workload: `requests` prompts of `tokens` own tokens with nothing in common."""

    requests: int = 32
    tokens: int = 256
    max_tokens: int = 64
    concurrency: int = 16


ITEM_SCHEMA: Json = {
    "type": "object",
    "properties": {
        "category": {"type": "string", "enum": ["tool", "toy", "book", "food"]},
        "quantity": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 3},
        "maker": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 24},
                "country": {"type": "string", "maxLength": 24},
            },
            "required": ["name", "country"],
            "additionalProperties": False,
        },
    },
    "required": ["category", "quantity", "tags", "maker"],
    "additionalProperties": False,
}
"""Bounded, because greedy SmolLM2 repeats a tag for ever; so bounded, its answers have about 64 tokens and end."""

ITEM_ASK = (
    "Write a small JSON object about a product with these fields: category, quantity, tags (at most three words), "
    "maker (name and country). The product: {}"
)

Prose = Callable[[random.Random, float], str]


def _shared_prefix(rng: random.Random, text: Prose) -> Workload:
    preamble = text(rng, 1162)
    requests = tuple(Conversation((text(rng, 40),), system=preamble) for _ in range(64))
    return Workload("shared-prefix", requests, concurrency=16, max_tokens=16)


def _multi_turn(rng: random.Random, text: Prose) -> Workload:
    talks = tuple(Conversation(tuple(text(rng, 62) for _ in range(5))) for _ in range(8))
    return Workload("multi-turn", talks, concurrency=8, max_tokens=32)


def _tree(rng: random.Random, text: Prose) -> Workload:
    requests = []
    for _ in range(4):
        root = text(rng, 294)
        for _ in range(4):
            branch = text(rng, 108)
            requests += [Conversation((f"{branch} {text(rng, 47)}",), system=root) for _ in range(4)]
    rng.shuffle(requests)
    return Workload("tree", tuple(requests), concurrency=16, max_tokens=16)


def _json(rng: random.Random, text: Prose) -> Workload:
    requests = tuple(Conversation((ITEM_ASK.format(text(rng, 40)),)) for _ in range(32))
    return Workload("json", requests, concurrency=8, max_tokens=96, schema=ITEM_SCHEMA)


def _random(rng: random.Random, text: Prose) -> Workload:
    return Workload("random", tuple(Conversation((text(rng, 256),)) for _ in range(32)), concurrency=16, max_tokens=64)


def _single(rng: random.Random, text: Prose) -> Workload:
    return Workload("single", tuple(Conversation((text(rng, 64),)) for _ in range(8)), concurrency=1, max_tokens=64)


def _unique(rng: random.Random, text: Prose, shape: UniqueShape) -> Workload:
    """Half of each prompt is a system message, so that not even the template's default system message is shared."""
    half = shape.tokens / 2
    requests = tuple(Conversation((text(rng, half),), system=text(rng, half)) for _ in range(shape.requests))
    return Workload("unique", requests, concurrency=shape.concurrency, max_tokens=shape.max_tokens)


_BUILDERS: dict[str, Callable[[random.Random, Prose], Workload]] = {
    "shared-prefix": _shared_prefix,
    "multi-turn": _multi_turn,
    "tree": _tree,
    "json": _json,
    "random": _random,
    "single": _single,
}

STANDARD = tuple(_BUILDERS)
"""The workloads of the record, in its order."""

NAMES = (*STANDARD, "unique")


def build(
    name: str, seed: int, tokens_per_word: float = TOKENS_PER_WORD, unique: UniqueShape | None = None
) -> Workload:
    """The workload `name`; the same arguments always give the same text, and two seeds have no sentence in common.

    Raises KeyError for a name that is not in NAMES.
    """
    rng = random.Random(f"{seed}/{name}")
    text = partial(prose, tokens_per_word=tokens_per_word)
    if name == "unique":
        return _unique(rng, text, unique or UniqueShape())
    return _BUILDERS[name](rng, text)


def conforms(value: object, schema: Json) -> bool:
    """Return True if a decoded JSON value fits `schema`, by the keywords of ITEM_SCHEMA; no further properties."""
    match schema["type"]:
        case "object":
            fields = schema["properties"]
            assert isinstance(fields, dict)
            return (
                isinstance(value, dict)
                and value.keys() == fields.keys()
                and all(conforms(value[key], field) for key, field in fields.items())
            )
        case "array":
            items = schema["items"]
            assert isinstance(items, dict)
            most = schema.get("maxItems", math.inf)
            assert isinstance(most, int | float)
            return isinstance(value, list) and len(value) <= most and all(conforms(item, items) for item in value)
        case "integer":
            return isinstance(value, int) and not isinstance(value, bool)
        case "string":
            allowed, most = schema.get("enum"), schema.get("maxLength", math.inf)
            assert isinstance(most, int | float)
            return isinstance(value, str) and len(value) <= most and (not isinstance(allowed, list) or value in allowed)
        case other:
            raise ValueError(f"conforms() does not know the type {other!r}")


def text_conforms(text: str, schema: Json) -> bool:
    """Return True if `text` is one whole JSON document that fits `schema`."""
    try:
        return conforms(json.loads(text), schema)
    except ValueError:
        return False
