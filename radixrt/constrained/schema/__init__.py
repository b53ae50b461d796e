"""Translates a JSON Schema of any draft into productions that enforce the schema exactly, or refuses it and names the
place."""

from radixrt.constrained.schema.errors import EmptySchema, MalformedSchema, SchemaRefused, Unsupported
from radixrt.constrained.schema.limits import Limits
from radixrt.constrained.schema.normal_schema import NormalSchema, normalize

__all__ = ["EmptySchema", "Limits", "MalformedSchema", "NormalSchema", "SchemaRefused", "Unsupported", "normalize"]
