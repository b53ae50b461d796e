"""`Schemas`: JSON Schemas of the types that parse requests and describe answers.

msgspec's own generator refuses types with defaults of the type Raw, which keep JSON as the client wrote it.
"""

from __future__ import annotations

import inspect
from typing import Any

from msgspec import inspect as types

Json = dict[str, Any]
_SIMPLE: dict[type, Json] = {
    types.AnyType: {},
    types.RawType: {},
    types.NoneType: {"type": "null"},
    types.BoolType: {"type": "boolean"},
    types.StrType: {"type": "string"},
}


class Schemas:
    """Generates schemas; those of structs become components.

    Attributes:
        components: schemas of structs by the name of the struct.
    """

    def __init__(self) -> None:
        self.components: dict[str, Json] = {}

    def of(self, kind: Any) -> Json:
        """Return the schema of a type, or of several types of which a value has one."""
        if isinstance(kind, tuple):
            return {"anyOf": [self.of(one) for one in kind]}
        return self._schema(types.type_info(kind))

    def _schema(self, info: types.Type) -> Json:
        if type(info) in _SIMPLE:
            return dict(_SIMPLE[type(info)])
        if isinstance(info, types.IntType | types.FloatType):
            made: Json = {"type": "integer" if isinstance(info, types.IntType) else "number"}
            bounds = {"minimum": info.ge, "maximum": info.le, "exclusiveMinimum": info.gt, "exclusiveMaximum": info.lt}
            return made | {name: bound for name, bound in bounds.items() if bound is not None}
        if isinstance(info, types.LiteralType):
            return {"enum": list(info.values)}
        if isinstance(info, types.UnionType):
            return {"anyOf": [self._schema(one) for one in info.types]}
        if isinstance(info, types.ListType):
            return {"type": "array", "items": self._schema(info.item_type)}
        if isinstance(info, types.TupleType):
            items = [self._schema(one) for one in info.item_types]
            return {"type": "array", "prefixItems": items, "minItems": len(items), "maxItems": len(items)}
        if isinstance(info, types.VarTupleType):
            return {"type": "array", "items": self._schema(info.item_type)}
        if isinstance(info, types.DictType):
            return {"type": "object", "additionalProperties": self._schema(info.value_type)}
        assert isinstance(info, types.StructType), info
        name = info.cls.__name__
        if name not in self.components:
            self.components[name] = {}
            self.components[name] |= self._struct(info)
        return {"$ref": f"#/components/schemas/{name}"}

    def _struct(self, info: types.StructType) -> Json:
        properties: dict[str, Json] = {}
        required = [field.encode_name for field in info.fields if field.required]
        if info.tag_field is not None:
            properties[info.tag_field] = {"const": info.tag}
            required.insert(0, info.tag_field)
        for field in info.fields:
            schema = properties[field.encode_name] = self._schema(field.type)
            if isinstance(field.default, bool | int | float | str) and "$ref" not in schema:
                schema["default"] = field.default
        made: Json = {"type": "object"}
        text = inspect.getdoc(info.cls) if info.cls.__dict__.get("__doc__") else None
        if text:
            made["description"] = text.partition("\n\nAttributes:")[0]
        made |= {"properties": properties, "required": required}
        if info.forbid_unknown_fields:
            made["additionalProperties"] = False
        return made
