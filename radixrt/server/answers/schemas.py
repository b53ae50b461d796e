"""`Schemas`: JSON Schemas of the types that parse requests and of the types of answers.

msgspec's own generator refuses types with defaults of the type Raw, which keep JSON as the client wrote it, and unions
of types that are told apart by a member after their first.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Raw, UnsetType

from radixrt.server.answers.base import Answer

Json = dict[str, Any]
_SIMPLE: dict[Any, Json] = {
    Any: {},
    Raw: {},
    types.NoneType: {"type": "null"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
}


class Schemas:
    """Generates schemas; the schemas of structs become components.

    Attributes:
        components: schemas of structs by the name of the struct.
    """

    def __init__(self) -> None:
        self.components: dict[str, Json] = {}

    def of(self, kind: Any) -> Json:
        """Return the schema of a type, which is an annotation of a field or a union of these."""
        if kind in _SIMPLE:
            return dict(_SIMPLE[kind])
        origin, arguments = get_origin(kind), get_args(kind)
        if origin is Literal:
            return {"enum": list(arguments)}
        if origin in (Union, types.UnionType):
            # The other types say the form of JSON that is kept as it is.
            known = [one for one in arguments if one not in (UnsetType, Raw)]
            return self.of(known[0]) if len(known) == 1 else {"anyOf": [self.of(one) for one in known]}
        if origin is tuple and arguments[-1] is not ...:
            items = [self.of(one) for one in arguments]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if origin in (list, tuple):
            return {"type": "array", "items": self.of(arguments[0])}
        if origin is dict:
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        assert issubclass(kind, msgspec.Struct), kind
        if kind.__name__ not in self.components:
            self.components[kind.__name__] = {}
            self.components[kind.__name__] |= self._struct(kind)
        return {"$ref": f"#/components/schemas/{kind.__name__}"}

    def _struct(self, kind: type[msgspec.Struct]) -> Json:
        fields, config = msgspec.structs.fields(kind), kind.__struct_config__
        properties: dict[str, Json] = {}
        required = [each.encode_name for each in fields if each.required]
        if issubclass(kind, Answer):
            required = [each.encode_name for each in fields if each.default is not UNSET]
        if config.tag is not None:
            properties["type"] = {"const": config.tag}
            required.insert(0, "type")
        for each in fields:
            schema = properties[each.encode_name] = self.of(each.type)
            given = not issubclass(kind, Answer) and isinstance(each.default, bool | int | float | str)
            if given and "$ref" not in schema:
                schema["default"] = each.default
        made: Json = {"type": "object"}
        text = inspect.getdoc(kind) if kind.__dict__.get("__doc__") else None
        if text:
            made["description"] = text.partition("\n\nAttributes:")[0]
        made |= {"properties": properties, "required": required}
        if config.forbid_unknown_fields:
            made["additionalProperties"] = False
        return made
