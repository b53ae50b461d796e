"""Python types by name: what a file says of the type of a value, so that a later run can read the value back.

The name of a class is "module:QualifiedName". The name of a type that is made of others is a list: of the origin and
its arguments (`["builtins:list", "shop:Item"]`), of "|" and the members of a union, or of "literal" and its values.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Union

Scope = Mapping[str, Any]
"""Names that a function sees: globals of its module, and its closure."""

UNION, LITERAL = "|", "literal"


def scope_of(body: Callable[..., Any]) -> Scope:
    """Return the names that a function sees, in which classes are found that have no place in a module."""
    inner = inspect.unwrap(body)
    if not inspect.isfunction(inner):
        return {}
    return {**inner.__globals__, **inspect.getclosurevars(inner).nonlocals}


def name_of(kind: Any) -> Any:
    """Return the name of a type, as plain JSON. Metadata of `Annotated` are not part of the name.

    Raises:
        ValueError: the type has no name.
    """
    if kind is None or kind is type(None):
        return None
    if kind is Ellipsis:  # tuple[int, ...]
        return "..."
    if isinstance(kind, type):
        generic = getattr(kind, "__pydantic_generic_metadata__", None) or {}
        if generic.get("args"):
            return [name_of(generic["origin"]), *map(name_of, generic["args"])]
        return f"{kind.__module__}:{kind.__qualname__}"
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return name_of(arguments[0])
    if origin in (Union, types.UnionType):
        return [UNION, *map(name_of, arguments)]
    if origin is typing.Literal and all(isinstance(value, (str, int)) for value in arguments):
        return [LITERAL, *arguments]
    if isinstance(origin, type):
        return [name_of(origin), *map(name_of, arguments)]
    raise ValueError(f"the type {kind!r} has no name")


def type_of(name: Any, scope: Scope) -> Any:
    """Return the type of a name. No module is imported: a class must be in a loaded module, or in the scope.

    Raises:
        ValueError: no such class is defined here, or the name is malformed.
    """
    if name is None:
        return None
    if name == "...":
        return Ellipsis
    if isinstance(name, str):
        return _class(name, scope)
    if not isinstance(name, list) or not name:
        raise ValueError(f"{name!r} is not the name of a type")
    first, *arguments = name
    if first == LITERAL:
        return typing.Literal[tuple(arguments)]
    found = tuple(type_of(argument, scope) for argument in arguments)
    return Union[found] if first == UNION else _class(first, scope)[found]  # noqa: UP007


def _class(name: str, scope: Scope) -> Any:
    module, _, qualified = name.partition(":")
    first, *inner = qualified.rpartition("<locals>.")[2].split(".")
    for place in (vars(sys.modules[module]) if module in sys.modules else {}, scope):
        found = place.get(first)
        for attribute in inner:
            found = getattr(found, attribute, None)
        if isinstance(found, type) and found.__qualname__ == qualified:
            return found
    raise ValueError(f"the class {qualified} of the module {module} is not defined in this program")
