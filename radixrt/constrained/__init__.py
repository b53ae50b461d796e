"""Constrained decoding: outputs that are what was asked for. `explain` looks at a constraint without an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from radixrt.constrained.inspection.explanation import Explainer, explain
    from radixrt.constrained.inspection.report import Report

__all__ = ["Explainer", "Report", "explain"]


def __getattr__(name: str) -> Any:
    # Imported when first used: what only checks parameters must not load the whole compiler.
    if name not in __all__:
        raise AttributeError(f"module 'radixrt.constrained' has no attribute {name!r}")
    from radixrt.constrained.inspection import explanation

    return getattr(explanation, name)
