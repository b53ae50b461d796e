"""Python types as schemas: the JSON text of a schema for whatever a caller may name one by, and the typed value back.

`schema_text` accepts the same values as `SamplingParams.json_schema`; `parse` converts the text of an answer into a
value of the type.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import sys
import types
import typing
from typing import TYPE_CHECKING, Any

from radixrt.errors import RequestError, shown

if TYPE_CHECKING:
    from pydantic import TypeAdapter

PARAM = "json_schema"
CACHED_TYPES = 256


def schema_text(value: Any) -> str:
    """The JSON text of a schema.

    Args:
        value: a schema (a dict, True or False, or JSON text), or a Python type: a pydantic model, dataclass, TypedDict,
            NamedTuple, Enum, Literal, Annotated, Union, list[...], dict[str, ...], int, float, bool, str and so on.
            Objects of Python types are closed: they have their declared keys and no others, in the order of
            declaration.

    Raises:
        RequestError: it is none of these; names the field of a type that has no JSON form.
    """
    if isinstance(value, str):
        return _checked_text(value)
    if isinstance(value, (dict, bool)):
        return _dumps(value)
    return _type_schema(value)[1]


def parse(value: Any, text: str) -> Any:
    """The value that `text`, an answer under the schema `value`, stands for: of the type, if `value` is a Python type.

    Raises:
        ValueError: the text is not JSON, or the type has a rule of its own that its schema does not say (pydantic's
            ValidationError, which tells the field and the rule).
    """
    if isinstance(value, (str, dict, bool)):
        return json.loads(text)
    return _type_schema(value)[0].validate_json(text)


def _checked_text(text: str) -> str:
    try:
        schema = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{PARAM} is a text that is not JSON: {error}", param=PARAM) from None
    if not isinstance(schema, (dict, bool)):
        raise RequestError(
            f"{PARAM} must be a JSON object, true or false; not {shown(schema)}. A Python type is given as itself",
            param=PARAM,
        )
    return text


def _dumps(schema: Any) -> str:
    try:
        return json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{PARAM} cannot be written as JSON: {error}", param=PARAM) from None


def _type_schema(kind: Any) -> tuple[TypeAdapter[Any], str]:
    try:
        hash(kind)
    except TypeError:  # e.g. Annotated with a list in it
        return _uncached(kind)
    return _cached(kind)


@functools.lru_cache(maxsize=CACHED_TYPES)
def _cached(kind: Any) -> tuple[TypeAdapter[Any], str]:
    return _uncached(kind)


def _uncached(kind: Any) -> tuple[TypeAdapter[Any], str]:
    try:
        return _build(kind)
    except Exception as error:  # pydantic's errors have several roots, and a type's own hooks may raise anything
        path, cause = _culprit(kind, error, ())
        where = f"field {'.'.join(path)} of {_name(kind)}" if path else _name(kind)
        raise RequestError(
            f"{PARAM}: {where} cannot be expressed as a JSON Schema: {_reason(cause)}", param=PARAM
        ) from (error)


def _build(kind: Any, *, convert: bool = True) -> tuple[TypeAdapter[Any], str]:
    from pydantic import TypeAdapter

    from radixrt.pydantic_schema import json_schema

    if not _is_type(kind):
        raise TypeError("it is neither a schema nor a type")
    adapter: TypeAdapter[Any] = TypeAdapter(_with_typed_dicts(kind, ()) if convert else kind)
    return adapter, _dumps(json_schema(adapter))


def _is_type(kind: Any) -> bool:
    return (
        isinstance(kind, (type, types.UnionType, typing.TypeVar))
        or typing.get_origin(kind) is not None
        or kind in (Any, None)
        or type(kind).__module__ in ("typing", "typing_extensions")
    )


def _with_typed_dicts(kind: Any, inside: tuple[Any, ...]) -> Any:
    """Return the type with typing's TypedDicts replaced by typing_extensions', which pydantic needs before Python 3.12.

    TypedDicts in generics and in other TypedDicts are found. In the fields of other classes pydantic refuses them
    with an error.
    """
    if sys.version_info >= (3, 12) or kind in inside:
        return kind
    import typing_extensions

    if typing.is_typeddict(kind) and type(kind).__module__ == "typing":
        hints = {}
        for name, hint in typing.get_type_hints(kind, include_extras=True).items():
            wrapper = _wrapper(hint)  # written as text, it is not in __required_keys__
            required = wrapper is typing.Required or (wrapper is None and name in kind.__required_keys__)
            needed = typing_extensions.Required if required else typing_extensions.NotRequired
            hints[name] = needed[_with_typed_dicts(_unwrapped(hint), (*inside, kind))]
        made: Any = typing_extensions.TypedDict(kind.__name__, hints)  # type: ignore[misc]
        made.__doc__ = kind.__doc__
        return made
    arguments = typing.get_args(kind)
    origin = typing.get_origin(kind)
    if not arguments or origin is typing.Literal:
        return kind
    if origin is typing.Annotated:
        return typing.Annotated[(_with_typed_dicts(arguments[0], inside), *kind.__metadata__)]
    changed = tuple(a if isinstance(a, list) else _with_typed_dicts(a, inside) for a in arguments)
    if changed == arguments or any(isinstance(a, list) for a in arguments):
        return kind
    if origin in (typing.Union, types.UnionType):
        return typing.Union[changed]  # noqa: UP007
    return origin[changed]


def _unwrapped(hint: Any) -> Any:
    """A TypedDict's field without its Required or NotRequired."""
    return hint if _wrapper(hint) is None else typing.get_args(hint)[0]


def _wrapper(hint: Any) -> Any:
    origin = typing.get_origin(hint)
    return origin if origin in (typing.Required, typing.NotRequired) else None


def _culprit(
    kind: Any, error: Exception, path: tuple[str, ...], seen: tuple[Any, ...] = ()
) -> tuple[tuple[str, ...], Exception]:
    """Return the path of the innermost field whose type alone fails to build, and the error."""
    for name, part in _parts(kind):
        if any(part is other for other in seen):
            continue
        try:
            _build(part, convert=not path and not name)
        except Exception as inner:  # see _uncached
            return _culprit(part, inner, (*path, name) if name else path, (*seen, kind))
    return path, error


def _parts(kind: Any) -> list[tuple[str, Any]]:
    """Return the types that a type consists of, with field names; the name is empty for parts that are not fields."""
    origin = typing.get_origin(kind)
    if isinstance(kind, type) and origin is None:
        fields = hasattr(kind, "model_fields") or hasattr(kind, "_fields")
        if not (fields or dataclasses.is_dataclass(kind) or typing.is_typeddict(kind)):
            return []
        try:
            hints = typing.get_type_hints(kind, include_extras=True)
        except (NameError, TypeError, AttributeError):
            return []
        return [(name, _unwrapped(hint)) for name, hint in hints.items()]
    if origin in (None, typing.Literal):
        return []
    arguments = typing.get_args(kind)[: 1 if origin is typing.Annotated else None]
    return [("", argument) for argument in arguments if _is_type(argument)]


def _name(kind: Any) -> str:
    return kind.__qualname__ if isinstance(kind, type) and hasattr(kind, "__qualname__") else shown(kind)


def _reason(error: Exception) -> str:
    """The first sentences of pydantic's message; the rest is about its own settings."""
    text = str(error).split("\n\n")[0]
    return text.split(" Set `arbitrary_types_allowed")[0].strip() or type(error).__name__
