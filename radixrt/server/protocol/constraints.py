"""The answer's report of how its constraint was enforced."""

from __future__ import annotations

from typing import Any

from radixrt.messages.parts import ConstraintInfo, Finish


def constraint_body(info: ConstraintInfo | None, finish: Finish) -> dict[str, Any] | None:
    """The member "radixrt" of an answer: how its constraint was enforced; None without a constraint."""
    if info is None:
        return None
    return {
        "backend": info.backend,
        "forced_close": finish.forced_close,
        "forced_tokens": info.forced_tokens,
        "closing_tokens": info.closing_tokens,
        "ignored": info.ignored,
    }
