"""Refusing a body costs memory in proportion to its size, whatever is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.server.served import Served

MIB = 2**20
BODY_BYTES = 8 * MIB
FACTOR = 16
"""Peak memory over that of the idle server, in sizes of the largest body."""

HEAD = b'{"messages": [], "x": '


def filled(begin: bytes, unit: bytes, end: bytes, size: int = BODY_BYTES) -> bytes:
    """A body of the size, out of units between a beginning and an end."""
    return begin + unit * ((size - len(begin) - len(end)) // len(unit)) + end


BODIES = {
    "long key, many items, NaN": (
        "/v1/completions", filled(b'{"' + b"k" * (4 * MIB - 1) + b'": [', b"1,", b"NaN]}", 6 * MIB),
    ),
    "the same, small": ("/v1/completions", filled(b'{"' + b"k" * 200_000 + b'": [', b"1,", b"NaN]}", 400_000)),
    "nested arrays with NaN": ("/v1/completions", filled(HEAD + b"[" * 200, b"[],", b"NaN" + b"]" * 200 + b"}")),
    "numbers": ("/v1/completions", filled(b'{"prompt": [', b"123456,", b"1.5]}")),
    "small numbers": ("/v1/completions", filled(b'{"prompt": [', b"1,", b"1]}")),
    "floats with NaN": ("/v1/completions", filled(HEAD + b"[", b"1.25,", b"NaN]}", 6 * MIB)),
    "objects": ("/generate", filled(b'{"text": [', b'{"a":1},', b"{}]}")),
    "variables": (
        "/v1/chat/completions",
        filled(b'{"messages": [{"role":"robot","content":""}], "chat_template_kwargs": {"a": [', b"{},", b"{}]}}"),
    ),
    "members": ("/v1/completions", filled(b'{"prompt": "x", "logit_bias": {', b'"1":1,', b'"2":1}}')),
    "members within the limit": (
        "/v1/completions",
        b'{"prompt": "x", "logit_bias": {' + b",".join(b'"%d":1.5' % i for i in range(199_990)) + b"}}",
    ),
    "variables within the limit": (
        "/v1/chat/completions",
        filled(b'{"messages": [{"role":"robot","content":""}], "chat_template_kwargs": {"a": [', b'{"a":1},',
               b"{}]}}", 790_000),
    ),
    "JSON in a string": (
        "/v1/chat/completions",
        filled(b'{"messages": [{"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"[', b"{},",
               b'{}]"}}]}]}', 4 * MIB),
    ),
    "token ids in batches": ("/v1/completions", filled(b'{"prompt": [', b"[1],", b"[2]]}")),
    "strings": ("/v1/completions", filled(b'{"prompt": [', b'"",', b'1]}')),
    "stops": ("/v1/completions", filled(b'{"prompt": "x", "stop": [', b'"a",', b'"b"]}')),
    "messages": ("/v1/chat/completions", filled(b'{"messages": [', b'{"role":""},', b'{"role":""}]}')),
    "escapes": ("/v1/completions", filled(HEAD + b'"', b"\\u00e9", b'", "prompt": 1}', 4 * MIB)),
    "a long string": ("/v1/completions", filled(b'{"prompt": "', b"x", b'"}')),
    "a long number": ("/v1/completions", filled(b'{"prompt": "x", "seed": ', b"9", b"}")),
    "a wrong word": ("/v1/decisions", filled(b'{"text": "x", "choices": [], "method": "', b"x", b'"}', 4 * MIB)),
    "no JSON": ("/v1/completions", b"\0" * BODY_BYTES),
    "quotes": ("/v1/completions", b'"' * BODY_BYTES),
    "brackets": ("/v1/completions", b"[" * BODY_BYTES),
}  # fmt: skip


@dataclass(frozen=True)
class Measured:
    """A server, and the memory that it had before its first request."""

    served: Served
    baseline: int

    def peak(self) -> int:
        """Most memory that the server ever had above the baseline."""
        return _memory(self.served, "VmHWM") - self.baseline


@pytest.fixture(scope="module")
def measured() -> Iterator[Measured]:
    served = Served(1)
    yield Measured(served, _memory(served, "VmRSS"))
    served.process.kill()
    served.process.communicate()


def _memory(served: Served, line: str) -> int:
    found = re.search(rf"^{line}:\s+(\d+) kB", Path(f"/proc/{served.process.pid}/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found.group(1)) * 1024


@pytest.mark.parametrize("name", BODIES)
def test_memory_is_in_proportion_to_the_body(measured: Measured, name: str) -> None:
    path, body = BODIES[name]
    assert len(body) <= BODY_BYTES
    headers = {"content-type": "application/json"}
    response = httpx.post(f"{measured.served.url}{path}", content=body, headers=headers, timeout=120)
    assert response.status_code == 400, response.text[:500]
    assert len(response.content) < 2_000
    print(f"{name}: {len(body)} bytes, peak of all so far {measured.peak() / MIB:.0f} MiB", response.text[:150])
    assert measured.peak() < FACTOR * BODY_BYTES
    assert httpx.get(f"{measured.served.url}/health", timeout=60).status_code == 200
