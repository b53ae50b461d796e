"""Values of a run as fields of a line of JSON, and back."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import pydantic_core

from radixrt.errors import RequestError
from radixrt.lang.core.expr import ImageWord
from radixrt.lang.core.type_names import Scope, name_of, type_of
from radixrt.lang.pictures import DIGEST_CHARS, label_of
from radixrt.python_types import parse
from radixrt.tasks.rerank import RankedDocument
from radixrt.vision.encode import is_pillow

VALUES = "values"
VECTORS, RANKINGS, TYPES = "vectors", "rankings", "types"
"""Keys of a line that list the names of vectors, and of ranked documents, and that have the type of each other value
whose type JSON does not have; see `type_names`."""

PLAIN = (None, str, int, float, bool)


def plain(value: Any) -> Any:
    """Return the value as JSON gives it back."""
    return json.loads(pydantic_core.to_json(value, fallback=_as_json, inf_nan_mode="strings"))


def plain_input(item: Any) -> Any:
    """`plain` for an item of a batch. Pictures, and bytes that are no text, are named by their digest."""
    return plain(_with_digests(item))


def _with_digests(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_digests(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_with_digests(each) for each in value]
    if isinstance(value, ImageWord):
        return value.picture.label
    if is_pillow(value):
        return label_of(value.width, value.height, _digest(value.mode.encode(), value.tobytes()))
    if isinstance(value, np.ndarray) and value.dtype == np.uint8 and value.ndim == 3:
        height, width, _ = value.shape
        return label_of(width, height, _digest(str(value.shape).encode(), value.tobytes()))
    if isinstance(value, (bytes, bytearray, memoryview)):
        data = bytes(value)
        try:
            data.decode()
        except UnicodeDecodeError:
            return f"[{len(data)} bytes {_digest(data)[:DIGEST_CHARS]}]"
    return value


def _digest(*pieces: bytes) -> str:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def _as_json(value: Any) -> Any:
    """Return what replaces a value that is not JSON: the numbers of a vector, a description of anything else."""
    return value.tolist() if isinstance(value, np.ndarray) else repr(value)


def saved(values: Mapping[str, Any], types: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """Return the fields of a line that hold the values; a key that lists no name is missing.

    Args:
        types: Python type of each value that has one.
        scope: names that the program sees.

    Warns:
        UserWarning: a value cannot be read back as its type; it will be plain JSON.
    """
    line: dict[str, Any] = {VALUES: plain(values)}
    for name, value in values.items():
        if isinstance(value, np.ndarray):
            line.setdefault(VECTORS, []).append(name)
        elif isinstance(value, list) and value and all(isinstance(each, RankedDocument) for each in value):
            line.setdefault(RANKINGS, []).append(name)
        elif types.get(name) not in PLAIN:
            try:
                kind = name_of(types[name])
                again = _typed(line[VALUES][name], kind, scope)
                if type(again) is not type(value) or again != value:
                    raise ValueError("its JSON form stands for another value")
                line.setdefault(TYPES, {})[name] = kind
            except ValueError as error:
                warnings.warn(f"a resumed batch will have plain JSON for {name!r}: {error}", stacklevel=2)
    return line


def restored(line: Mapping[str, Any], scope: Scope) -> dict[str, Any]:
    """Return the values of a line: float32 arrays, `RankedDocument`s and Python types where the line names them.

    Raises:
        KeyError, TypeError, ValueError: a value is missing, or is not of its kind.
    """
    values: dict[str, Any] = dict(line[VALUES])
    for name in line.get(VECTORS, ()):
        values[name] = np.array(values[name], np.float32)
    for name in line.get(RANKINGS, ()):
        values[name] = [_ranked(**each) for each in values[name]]
    for name, kind in line.get(TYPES, {}).items():
        try:
            values[name] = _typed(values[name], kind, scope)
        except ValueError as error:
            raise ValueError(f"the value {name!r} cannot be read: {error}") from None
    return values


def _typed(value: Any, kind: Any, scope: Scope) -> Any:
    try:
        return parse(type_of(kind, scope), json.dumps(value))
    except RequestError as error:
        raise ValueError(str(error)) from None


def _ranked(index: int, score: float | str, document: str) -> RankedDocument:
    return RankedDocument(index, float(score), document)  # a score that is not finite was written as a text
