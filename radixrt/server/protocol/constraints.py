"""The answer's report of how its constraint was enforced."""

from __future__ import annotations

from typing import Any

from radixrt.messages.client import RequestOutput


def constraint_body(output: RequestOutput) -> dict[str, Any] | None:
    """The member "radixrt" of an answer: how its constraint was enforced; None without a constraint."""
    info = output.constraint
    if info is None:
        return None
    return {
        "backend": info.backend,
        "forced_close": output.forced_close,
        "forced_tokens": info.forced_tokens,
        "closing_tokens": info.closing_tokens,
        "ignored": info.ignored,
    }
