"""Values of programs in a file of results: as plain JSON, with the names of those that are read back as they were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pydantic_core

from radixrt.tasks.rerank import RankedDocument

VECTORS, RANKINGS = "vectors", "rankings"
"""Keys of a line that list the names of vectors, and of ranked documents."""


def plain(value: Any) -> Any:
    """Return the value as JSON gives it back."""
    return json.loads(pydantic_core.to_json(value, fallback=_as_json, inf_nan_mode="strings"))


def _as_json(value: Any) -> Any:
    """Return what replaces a value that is not JSON: the numbers of a vector, a description of anything else."""
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)


def kinds_of(values: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the names of vectors and of ranked documents, by the keys of a line; a key without names is missing."""
    kinds: dict[str, list[str]] = {}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            kinds.setdefault(VECTORS, []).append(name)
        elif isinstance(value, list) and value and all(isinstance(each, RankedDocument) for each in value):
            kinds.setdefault(RANKINGS, []).append(name)
    return kinds


def restored(values: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a line, with float32 arrays and `RankedDocument`s where its keys list them.

    Raises:
        KeyError, TypeError, ValueError: a listed value is missing, or is no such value.
    """
    read = dict(values)
    for name in line.get(VECTORS, ()):
        read[name] = np.array(values[name], np.float32)
    for name in line.get(RANKINGS, ()):
        read[name] = [_ranked(**each) for each in values[name]]
    return read


def _ranked(index: int, score: float | str, document: str) -> RankedDocument:
    return RankedDocument(index, float(score), document)  # a score that is not finite was written as a text
