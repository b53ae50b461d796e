"""Bodies of the largest allowed size, of each kind: for every route, fields that it has, and shapes of JSON."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

BODY_BYTES = 8 * 2**20
MEMBERS, VALUES = 199_000, 1_990_000
"""A little less than the limits of JSON allow (`radixrt.chat.json_limits`)."""

FIELDS: dict[str, tuple[str, ...]] = {
    "/v1/chat/completions": ("messages", "tools", "stop", "logit_bias", "chat_template_kwargs", "response_format"),
    "/v1/responses": ("input", "tools", "text", "metadata", "instructions", "chat_template_kwargs"),
    "/v1/messages": ("messages", "system", "tools", "stop_sequences"),
    "/v1/messages/count_tokens": ("messages", "system", "tools"),
    "/v1/completions": ("prompt", "suffix", "stop", "logit_bias", "stop_token_ids"),
    "/generate": ("text", "input_ids", "input_parts", "sampling_params"),
    "/v1/decisions": ("text", "input_ids", "input_parts", "messages", "choices", "questions", "input"),
    "/v1/systemone": ("state", "questions", "assets"),
    "/v1/embeddings": ("input", "prompt"),
    "/v1/rerank": ("query", "documents"),
    "/v1/score": ("text_1", "text_2"),
    "/classify": ("input", "messages"),
    "/tokenize": ("prompt", "messages"),
    "/detokenize": ("tokens",),
    "/abort": ("rid",),
    "/release": ("program",),
    "/forget": ("key", "cache_group", "cache_salt"),
    "/replicas/drain": ("replica",),
    "/replicas/remove": ("replica",),
}
"""Fields of each route that takes a body."""

NEEDED: dict[str, bytes] = {
    "/v1/chat/completions": b'"messages":[{"role":"user","content":"x"}]',
    "/v1/responses": b'"input":"x"',
    "/v1/messages": b'"max_tokens":8,"messages":[{"role":"user","content":"x"}]',
    "/v1/messages/count_tokens": b'"messages":[{"role":"user","content":"x"}]',
    "/v1/completions": b'"prompt":"x"',
    "/generate": b'"text":"x"',
    "/v1/rerank": b'"query":"x","documents":["x"]',
    "/v1/score": b'"text_1":"x","text_2":"x"',
}
"""Members without which other fields of a route are not looked at. A later member of the same name counts."""

MESSAGE = b'{"role":"user","content":"x"}'
ITEM = b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}'
PARTS = b'{"role":"user","content":[{"type":"text","text":"x"}]}'
PICTURE = b'{"type":"input_image","image_url":"data:image/png;base64,AAAA"}'
TOOL = b'{"type":"function","function":{"name":"f","parameters":{}}}'


def _array(unit: bytes, most: int) -> bytes:
    count = min(most, (BODY_BYTES - 2048) // (len(unit) + 1))
    return b"[" + b",".join([unit] * count) + b"]"


@cache
def _values() -> dict[str, bytes]:
    half = b'"' + b"x" * (BODY_BYTES // 2 - 4) + b'"'
    pairs = b",".join(b'"%d":1' % i for i in range(MEMBERS))
    return {
        "a text": half,
        "two texts": b"[" + half[: BODY_BYTES // 2 - 1000] + b'",' + half[: BODY_BYTES // 2 - 1000] + b'"]',
        "2,048 texts": b"[" + b",".join([b'"' + b"x" * 4_080 + b'"'] * 2_048) + b"]",
        "4,096 texts": b"[" + b",".join([b'"' + b"x" * 2_000 + b'"'] * 4_096) + b"]",
        "short texts": _array(b'"x"', VALUES),
        "a text of no ASCII": b'"' + "ü".encode() * (BODY_BYTES // 4 - 4) + b'"',
        "escapes": b'"' + b"\\u00e9" * (BODY_BYTES // 12 - 4) + b'"',
        "token ids": _array(b"1", VALUES),
        "long numbers": _array(b"123456", VALUES),
        "floats": _array(b"1.5e3", VALUES),
        "lists of ids": b"[" + b",".join([_array(b"1", 900)] * 2_048) + b"]",
        "arrays": _array(b"[]", MEMBERS),
        "objects": _array(b"{}", MEMBERS),
        "members": b"{" + pairs + b"}",
        "messages": b"[" + b",".join([b'{"role":"user","content":"' + b"x" * 1_950 + b'"}'] * 4_096) + b"]",
        "short messages": _array(MESSAGE, MEMBERS // 3),
        "messages of parts": _array(PARTS, MEMBERS // 7),
        "pictures": b'[{"role":"user","content":' + _array(PICTURE, MEMBERS // 3) + b"}]",
        "calls": _array(ITEM, MEMBERS // 5),
        "tools": _array(TOOL, MEMBERS // 6),
        "a message of JSON": b'[{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"'
        + _array(b"1", VALUES // 2) + b'"}}]}]',
        "a schema": b'{"type":"json_schema","json_schema":{"name":"x","schema":{"enum":'
        + _array(b'"xy"', VALUES // 4) + b"}}}",
    }  # fmt: skip


SHAPES = {
    "no JSON": b"\0" * BODY_BYTES,
    "quotes": b'"' * BODY_BYTES,
    "brackets": b"[" * BODY_BYTES,
    "an unknown field": b'{"x":' + _array(b"1", VALUES) + b"}",
    "unknown fields": b"{" + b",".join(b'"%d":1' % i for i in range(MEMBERS)) + b"}",
    "NaN at the end": b'{"x":' + _array(b"1", VALUES // 2)[:-1] + b",NaN]}",
    "half a pair at the end": b'{"x":' + _array(b"{}", MEMBERS - 9)[:-1] + b',"\\ud800"]}',
}


SLOW = {
    (field, kind)
    for field in ("messages", "input")
    for kind in ("short messages", "messages of parts", "calls", "pictures")
}
"""Fields and kinds of values that have been the slowest, which are always sent; of all others, a sixth is."""


def large_bodies(path: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each body of a route, and the body."""
    yield from SHAPES.items()
    needed = NEEDED.get(path, b"")
    for i, field in enumerate(FIELDS[path]):
        for k, (name, value) in enumerate(_values().items()):
            if (field, name) in SLOW or (i + k + len(path)) % 6 == 0:
                body = b"{" + needed + b"," * bool(needed) + b'"%b":' % field.encode() + value + b"}"
                yield f"{field}: {name}", body
