"""JSON Schemas of Python types, made by pydantic and narrowed where they admit values that its validation refuses.

A model may write everything that the schema allows, so a schema wider than the type would admit texts that do not
become values. The module is imported when a Python type is first used, because importing pydantic takes longer than
importing most of radixrt.
"""

from __future__ import annotations

import re
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

INTEGER_KEY = "^-?(0|[1-9][0-9]*)$"
NUMBER_KEY = r"^-?(0|[1-9][0-9]*)(\.[0-9]+)?$"
KEYS = {"int": INTEGER_KEY, "float": NUMBER_KEY, "bool": "^(true|false)$"}
ASCII = r"^[\x00-\x7F]*$"
YEAR_NOT_ZERO = "^([1-9]|0[1-9]|00[1-9]|000[1-9])"
"""Excludes the year 0: Python's calendar starts with the year 1."""
NO_LEAP_SECOND = "^([^T]*T)?[0-9]{2}:[0-9]{2}:[0-5]"
"""Excludes leap seconds, which Python's `time` cannot represent."""
SHORT_NUMBERS = "^[^0-9]*([0-9]{1,6}[^0-9]+)*$"
"""At most six digits in a row, so that a duration fits into a timedelta."""
URL_REST = r"([a-z0-9]+(-[a-z0-9]+)*\.)*[a-z][a-z0-9]*(:[0-9]{1,4})?(/[A-Za-z0-9._~!$&'()*+,;=:@%/?#-]*)?"

DATE_IN_ANY_YEAR = (
    r"([1-9][0-9]{3}|0[1-9][0-9]{2}|00[1-9][0-9]|000[1-9])-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])"
    r"|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
)
WITHOUT_ZONE = rf"^{DATE_IN_ANY_YEAR}T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{{1,6}})?$"

ASCII_IN_BASE64 = {
    "base64": "^([A-Za-f][A-HQ-Xg-nw-z01][ABEFIJMNQRUVYZcdghkloptwx0145][A-Za-z0-9+/])*$",
    "base64url": "^([A-Za-f][A-HQ-Xg-nw-z01][ABEFIJMNQRUVYZcdghkloptwx0145][A-Za-z0-9_-])*$",
}
"""Whole groups of three ASCII characters, by format: a Base64Str decodes its bytes as UTF-8."""

FINITE: JsonSchemaValue = {"type": "number", "minimum": -(10**308), "maximum": 10**308}
"""Numbers that become a finite float."""

DECIMAL_BOUNDS = {
    "multiple_of": "multipleOf",
    "ge": "minimum",
    "le": "maximum",
    "gt": "exclusiveMinimum",
    "lt": "exclusiveMaximum",
}


def json_schema(adapter: TypeAdapter[Any]) -> dict[str, Any]:
    """Return the schema of a type, with closed objects, keys in the order of declaration, and $defs.

    Raises:
        pydantic.errors.PydanticUserError: the type has a part without a JSON form.
    """
    return adapter.json_schema(schema_generator=_Generator)


def _closed(schema: JsonSchemaValue) -> JsonSchemaValue:
    """Close an object schema that declares properties, unless the type allows additional properties."""
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def _also_pattern(schema: JsonSchemaValue, *patterns: str) -> JsonSchemaValue:
    """Return the schema with the patterns added to its own."""
    if schema.get("type") != "string":  # the type's configuration asks for another form
        return schema
    if "pattern" not in schema and len(patterns) == 1:
        return schema | {"pattern": patterns[0]}
    return schema | {"allOf": [*schema.get("allOf", []), *({"pattern": p} for p in patterns)]}


class _Generator(GenerateJsonSchema):
    # The base class calls these methods by name; each one narrows the result of the base class.

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        out = super().generate_inner(schema)
        pattern = ASCII_IN_BASE64.get(out.get("format", ""))
        is_text = schema["type"] == "function-after" and schema["schema"]["type"] == "str"
        return _also_pattern(out, pattern) if pattern is not None and is_text else out

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False  # a title derived from a name adds nothing to the name

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _closed(super().model_schema(schema))

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _closed(super().dataclass_schema(schema))

    def typed_dict_schema(self, schema: core_schema.TypedDictSchema) -> JsonSchemaValue:
        return _closed(super().typed_dict_schema(schema))

    def dict_schema(self, schema: core_schema.DictSchema) -> JsonSchemaValue:
        out = super().dict_schema(schema)
        pattern = KEYS.get(schema.get("keys_schema", {}).get("type", ""))
        if "patternProperties" in out:
            return out | {"additionalProperties": False}
        return out if pattern is None else out | {"propertyNames": {"pattern": pattern}}

    def decimal_schema(self, schema: core_schema.DecimalSchema) -> JsonSchemaValue:
        """Describe a Decimal as a number; pydantic's own schema also admits any string."""
        bounds = {name: schema.get(name) for name in DECIMAL_BOUNDS}
        out: JsonSchemaValue = dict(FINITE)
        out |= {DECIMAL_BOUNDS[name]: _plain(bound) for name, bound in bounds.items() if bound is not None}
        digits, places = schema.get("max_digits"), schema.get("decimal_places")
        if digits is not None or places is not None:
            places = places or 0
            step: JsonSchemaValue = {"multipleOf": 1 if places == 0 else float(f"1e-{places}")}
            if digits is not None:
                whole = 10 ** max(0, digits - places)
                step |= {"exclusiveMinimum": -whole, "exclusiveMaximum": whole}
            out["allOf"] = [step]
        return out

    def float_schema(self, schema: core_schema.FloatSchema) -> JsonSchemaValue:
        out = super().float_schema(schema)
        return {**FINITE, **out} if schema.get("allow_inf_nan") is False else out

    def bytes_schema(self, schema: core_schema.BytesSchema) -> JsonSchemaValue:
        """Bounds are about bytes, and JSON Schema counts characters."""
        out = super().bytes_schema(schema)
        return _also_pattern(out, ASCII) if "minLength" in out or "maxLength" in out else out

    def date_schema(self, schema: core_schema.DateSchema) -> JsonSchemaValue:
        return _also_pattern(super().date_schema(schema), YEAR_NOT_ZERO)

    def time_schema(self, schema: core_schema.TimeSchema) -> JsonSchemaValue:
        return _also_pattern(super().time_schema(schema), NO_LEAP_SECOND)

    def datetime_schema(self, schema: core_schema.DatetimeSchema) -> JsonSchemaValue:
        """With a zone, as the format wants it, except where the type has none."""
        out = super().datetime_schema(schema)
        if schema.get("tz_constraint") == "naive" and out.get("type") == "string":
            return {"type": "string", "pattern": WITHOUT_ZONE}
        return _also_pattern(out, YEAR_NOT_ZERO, NO_LEAP_SECOND)

    def timedelta_schema(self, schema: core_schema.TimedeltaSchema) -> JsonSchemaValue:
        return _also_pattern(super().timedelta_schema(schema), SHORT_NUMBERS)

    def url_schema(self, schema: core_schema.UrlSchema) -> JsonSchemaValue:
        return self._url(schema, super().url_schema(schema))

    def multi_host_url_schema(self, schema: core_schema.MultiHostUrlSchema) -> JsonSchemaValue:
        return self._url(schema, super().multi_host_url_schema(schema))

    def _url(
        self, schema: core_schema.UrlSchema | core_schema.MultiHostUrlSchema, out: JsonSchemaValue
    ) -> JsonSchemaValue:
        """An absolute URL with a plain host, which every URL parser takes."""
        schemes = schema.get("allowed_schemes")
        scheme = "|".join(re.escape(s) for s in schemes) if schemes else "[a-z][a-z0-9+.-]*"
        return {k: v for k, v in out.items() if k != "format"} | {"pattern": f"^({scheme})://{URL_REST}$"}

    def complex_schema(self, schema: core_schema.ComplexSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(schema, "a complex number, which JSON does not have")

    def json_schema(self, schema: core_schema.JsonSchema) -> JsonSchemaValue:
        return self.handle_invalid_for_json_schema(schema, "JSON inside a string; use its type itself")


def _plain(bound: Any) -> int | float:
    """A Decimal bound as a JSON number."""
    return int(bound) if bound == int(bound) else float(bound)
