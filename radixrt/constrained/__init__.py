"""Constrained decoding: grammars, their compilation, and the token masks that enforce them."""

from __future__ import annotations

import importlib
from typing import Any

_MOVED = ("Explainer", "Report", "explain")
"""Names that programs written for earlier versions import from here; they live in `radixrt.explain`."""


def __getattr__(name: str) -> Any:
    if name not in _MOVED:
        raise AttributeError(f"module 'radixrt.constrained' has no attribute {name!r}")
    return getattr(importlib.import_module("radixrt.explain"), name)
