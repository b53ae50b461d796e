"""`StructuredOptions` from what a Python caller passes for it."""

from __future__ import annotations

from typing import Any

from radixrt.constrained.constraint import StructuredOptions
from radixrt.errors import RequestError, shown


def as_structured_options(value: Any) -> StructuredOptions:
    """StructuredOptions from itself or a dict of its fields.

    Raises:
        RequestError: an unknown field, or a value out of bounds; names it.
    """
    if isinstance(value, StructuredOptions):
        return value.validate()
    if not isinstance(value, dict):
        raise RequestError("structured must be a StructuredOptions or a dict", param="structured")
    for name in value:
        if name not in StructuredOptions.__struct_fields__:
            known = ", ".join(StructuredOptions.__struct_fields__)
            raise RequestError(f"unknown field {shown(name)} of structured; known are {known}", param="structured")
    return StructuredOptions(**value).validate()
