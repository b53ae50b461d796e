"""`KeywordReader`: translates the keywords of a schema object into assertions, according to the schema's draft."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import cache
from typing import Any, Literal

from radixrt.constrained.regex import FORMATS, Regex, RegexError, RegexTooComplex, parse_regex
from radixrt.constrained.regex.readings import Mode
from radixrt.constrained.schema.document.document import Document
from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.errors import MalformedSchema, Unsupported
from radixrt.constrained.schema.limits import Limits, over_limit
from radixrt.constrained.schema.normal_form.assertions import (
    AllOf,
    AnyOf,
    ArrayLength,
    Assertion,
    Bound,
    Contains,
    DependentRequired,
    DependentSchema,
    Enum,
    FalseSchema,
    If,
    Items,
    MembersMatching,
    MultipleOf,
    Not,
    ObjectSize,
    OneOf,
    Pattern,
    PrefixItems,
    Properties,
    PropertyNames,
    Reference,
    Required,
    Size,
    StringLength,
    Type,
    UnevaluatedItems,
    UnevaluatedProperties,
    UniqueItems,
)
from radixrt.constrained.schema.normal_form.strings import MatchingKeys, RemainingKeys, StringTest
from radixrt.constrained.schema.values import decimal_of, is_utf8, key, text_of, type_of

FormatMode = Literal["assert", "annotate"]

EXACT_FORMATS = frozenset({"date", "ipv4", "json-pointer", "uuid"})
"""Formats whose language is everything that their specification allows."""
_VISIBLE = r"[^\u0000-\u0020]"
_OFFSET = r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
_CLOCK = rf"[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]+)?{_OFFSET}"
_SUPERSETS = {
    "date-time": rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[^0-9]{_CLOCK}",
    "duration": r"P[0-9A-Z.,]+",
    "email": r"[^]*@[^]*",
    "hostname": r"[A-Za-z0-9._-]+",
    "idn-email": r"[^]*@[^]*",
    "idn-hostname": rf"{_VISIBLE}+",
    "ipv6": r"[0-9A-Fa-f:.]{2,}",
    "iri": rf"[A-Za-z][A-Za-z0-9+.-]*:{_VISIBLE}*",
    "iri-reference": rf"{_VISIBLE}*",
    "relative-json-pointer": r"[0-9][^]*",
    "time": _CLOCK,
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]*",
    "uri-reference": r"[!-~]*",
    "uri-template": rf"{_VISIBLE}*",
}
"""Languages with every string of a format, and others, for a format that must not hold."""


@cache
def format_superset(name: str) -> Regex | None:
    """Return a language that has every string of the format; None if none is known.

    The language of a format (`regex.FORMATS`) never has a string that violates the specification, but may lack some
    that conform. Where a format must not hold, the complement of this superset is enforced instead.
    """
    if name in EXACT_FORMATS:
        return FORMATS[name]
    pattern = _SUPERSETS.get(name)
    return None if pattern is None else parse_regex(pattern, search=False, mode="ecma")


class KeywordReader:
    """Reads the assertions of the schemas of one document, each schema once.

    Args:
        document: the document.
        limits: bounds on the work.
        formats: "assert" enforces the known formats.
        ignored: keywords (pointer of their schema, name) that are skipped.

    Attributes:
        annotations: keywords (pointer of their schema, name) that are not enforced because they only annotate.
        unwritable: by `values.key`, the listed values that have no UTF-8 text, with the pointer and keyword of the
            list.
    """

    def __init__(
        self, document: Document, limits: Limits, formats: FormatMode, ignored: frozenset[tuple[str, str]]
    ) -> None:
        self.document = document
        self.annotations = dict.fromkeys(document.annotations)
        self.unwritable: dict[Hashable, tuple[str, str]] = {}
        self._limits = limits
        self.formats = formats
        self._ignored = ignored
        self._assertions: dict[Located, tuple[Assertion, ...]] = {}
        self._patterns: dict[tuple[str, Mode], Regex] = {}
        self._members: dict[Located, dict[str, Located]] = {}

    def assertions(self, located: Located) -> tuple[Assertion, ...]:
        """Return the assertions of a schema: types and single values first, then document order, deferred ones last.

        The empty tuple is satisfied by every value.

        Raises:
            Unsupported: a keyword cannot be enforced.
            MalformedSchema: a value of `enum` or `const` is not JSON.
        """
        found = self._assertions.get(located)
        if found is None:
            found = self._assertions[located] = self._read(located)
        return found

    def _read(self, located: Located) -> tuple[Assertion, ...]:
        schema = located.schema
        if schema is True:
            return ()
        if schema is False:
            return (FalseSchema(located, "false"),)
        if located.resource.dialect.ref_alone and "$ref" in schema:
            schema = {"$ref": schema["$ref"]}
        known = self.keywords(located)
        found: list[Assertion] = []
        references: list[tuple[int, str, Any]] = []
        for keyword in _FIRST:
            if keyword in schema and keyword in known:
                found.extend(_READERS[keyword](self, located, keyword, schema[keyword]))
        for keyword, value in schema.items():
            if keyword not in known:
                continue
            if keyword in _REFERENCES:
                references.append((len(found) + len(references), keyword, value))
            elif keyword in _READERS and keyword not in _FIRST:
                found.extend(_READERS[keyword](self, located, keyword, value))
        for place, keyword, value in references:  # resolved last, for refusals of the schema itself to come first
            found.insert(place, Reference(located, keyword, _target(self.document, located, keyword, value)))
        if any(assertion.is_deferred for assertion in found):
            found.sort(key=lambda assertion: assertion.is_deferred)
        return tuple(found)

    @property
    def skips_keywords(self) -> bool:
        """True if the caller ignores some keyword somewhere."""
        return bool(self._ignored)

    def keywords(self, located: Located) -> frozenset[str]:
        """Return the keywords that are read at a schema: the draft's keywords without the ones that the caller ignores
        at this schema."""
        known = located.resource.dialect.keywords
        if self._ignored:
            known = known.difference(keyword for pointer, keyword in self._ignored if pointer == located.pointer)
        return known

    def child(self, located: Located, keyword: str, *tokens: str) -> Located:
        """Return the subschema below a keyword, at the place that the further tokens name."""
        schema = located.schema[keyword]
        for token in tokens:
            schema = schema[token]
        return self.document.child(located, schema, keyword, *tokens)

    def children(self, located: Located, keyword: str) -> tuple[Located, ...]:
        """Return the subschemas of a keyword whose value is a list."""
        child = self.document.child
        return tuple(child(located, item, keyword, str(i)) for i, item in enumerate(located.schema[keyword]))

    def members(self, located: Located) -> dict[str, Located]:
        """Return the subschemas of `properties`, which are shared by the assertions of `properties` and `required`."""
        found = self._members.get(located)
        if found is None:
            child = self.document.child
            schemas = located.schema.get("properties", {}) if "properties" in self.keywords(located) else {}
            found = {name: child(located, schema, "properties", name) for name, schema in schemas.items()}
            self._members[located] = found
        return found

    def pattern_test(
        self, located: Located, keyword: str, pattern: str, pointer: str, mode: Mode = "narrow"
    ) -> StringTest:
        """Return the test for strings in which all readers, or with "wide" any reader, find the pattern.

        Raises:
            Unsupported: the pattern is not taken.
        """
        found = self._patterns.get((pattern, mode))
        if found is None:
            try:
                found = self._patterns[pattern, mode] = parse_regex(pattern, search=True, mode=mode)
            except (RegexError, RegexTooComplex) as error:
                reason = f"the pattern {pattern[:80]!r} is not taken: {error}"
                fix = "Write it without that, in the syntax of ECMA-262."
                raise Unsupported(located.pointer, keyword, reason, fix) from None
        return StringTest(found, True, (pointer, keyword, pattern))

    def pattern_properties(self, located: Located, mode: Mode) -> tuple[StringTest, ...]:
        """Return the tests of `patternProperties`, in order. Raises Unsupported."""
        keyword = "patternProperties"
        if (located.pointer, keyword) in self._ignored:
            return ()
        patterns = located.schema.get(keyword, {})
        return tuple(self.pattern_test(located, keyword, p, f"{located.pointer}/{keyword}", mode) for p in patterns)

    def required_names(self, located: Located) -> tuple[str, ...]:
        """Return the names that `required` of the schema lists, each once."""
        names = located.schema.get("required", ()) if "required" in self.keywords(located) else ()
        return tuple(dict.fromkeys(names))

    def enum(self, located: Located, keyword: str, values: list[Any]) -> Enum:
        """Return the assertion for listed values. Raises MalformedSchema, Unsupported."""
        limit = self._limits.enum_values
        if len(values) > limit:
            raise over_limit(located.pointer, keyword, f"it has {len(values)} values, and at most {limit} are taken")
        try:
            text = text_of(values)
            by_key = {key(value): value for value in values}
        except (AttributeError, RecursionError, TypeError, ValueError):
            problem = "a value is not JSON, is nested too deeply, or is a number of thousands of digits"
            raise MalformedSchema(f"{located.pointer}/{keyword}", problem) from None
        if not is_utf8(text):
            for name, value in by_key.items():
                if not is_utf8(text_of(value)):
                    self.unwritable.setdefault(name, (located.pointer, keyword))
        types = 0
        for value in by_key.values():
            types |= type_of(value)
        return Enum(located, keyword, by_key, types)


def _type(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    types, integer = located.resource.dialect.types(located.schema)
    yield Type(located, keyword, types, integer)


def _enum(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield reader.enum(located, keyword, value if keyword == "enum" else [value])


_SIZES: dict[str, type[Size]] = {"Length": StringLength, "Items": ArrayLength, "Properties": ObjectSize}


def _size(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    size = _SIZES[keyword[3:]]
    yield size(located, keyword, int(value), None) if keyword[:3] == "min" else size(located, keyword, 0, int(value))


def _pattern(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    test = reader.pattern_test(located, keyword, value, located.pointer)
    yield Pattern(located, keyword, test, None)


def _format(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    if reader.formats != "assert" or value not in FORMATS:
        reader.annotations[located.pointer, keyword] = None
    else:
        test = StringTest(FORMATS[value], True, (located.pointer, keyword, value))
        yield Pattern(located, keyword, test, format_superset(value))


def _bound(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    if isinstance(value, bool):
        return  # draft 4: read together with `minimum` or `maximum`
    is_lower = keyword.lower().endswith("minimum")
    is_open = keyword.startswith("exclusive")
    is_open = is_open or located.schema.get("exclusiveMinimum" if is_lower else "exclusiveMaximum") is True
    yield Bound(located, keyword, decimal_of(value), is_lower, is_open)


def _items(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    if isinstance(value, list):
        yield PrefixItems(located, keyword, reader.children(located, keyword))
        return
    has_prefix = "prefixItems" in located.resource.dialect.keywords
    start = len(located.schema.get("prefixItems", ())) if has_prefix else 0
    yield Items(located, keyword, start, reader.child(located, keyword))


def _additional_items(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    items = located.schema.get("items")
    if isinstance(items, list):
        yield Items(located, keyword, len(items), reader.child(located, keyword))


def _contains(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    known = located.resource.dialect.keywords
    low = int(located.schema.get("minContains", 1)) if "minContains" in known else 1
    high = located.schema.get("maxContains") if "maxContains" in known else None
    yield Contains(located, keyword, reader.child(located, keyword), low, None if high is None else int(high))


def _unique_items(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    if value:
        yield UniqueItems(located, keyword)


def _properties(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    required = frozenset(reader.required_names(located))
    yield Properties(located, keyword, reader.members(located), required)


def _required(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    names = reader.required_names(located)
    members = reader.members(located)
    yield Required(located, keyword, names, {name: members[name] for name in names if name in members})


def _pattern_properties(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    # A name that only some readers match must satisfy both the schema of the pattern and the schema of other names.
    tests = zip(reader.pattern_properties(located, "wide"), reader.pattern_properties(located, "narrow"), value)
    for test, certain, pattern in tests:
        member = reader.child(located, keyword, pattern)
        yield MembersMatching(located, keyword, MatchingKeys(test), MatchingKeys(certain), member)


def _additional_properties(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    names = frozenset(located.schema.get("properties", ()))
    keys = RemainingKeys(names, reader.pattern_properties(located, "narrow"))
    certain = RemainingKeys(names, reader.pattern_properties(located, "wide"))
    yield MembersMatching(located, keyword, keys, certain, reader.child(located, keyword))


def _dependent(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    for name, needed in value.items():
        if isinstance(needed, list):
            others = tuple(dict.fromkeys(other for other in needed if other != name))
            yield DependentRequired(located, keyword, name, others)
        else:
            yield DependentSchema(located, keyword, name, reader.child(located, keyword, name))


_WITH_SUBSCHEMA: dict[str, Callable[[Located, str, Located], Assertion]] = {
    "not": Not,
    "propertyNames": PropertyNames,
    "unevaluatedItems": UnevaluatedItems,
    "unevaluatedProperties": UnevaluatedProperties,
}
_WITH_LIST: dict[str, Callable[[Located, str, tuple[Located, ...]], Assertion]] = {
    "allOf": AllOf,
    "anyOf": AnyOf,
    "oneOf": OneOf,
    "prefixItems": PrefixItems,
}


def _subschema(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield _WITH_SUBSCHEMA[keyword](located, keyword, reader.child(located, keyword))


def _list(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    yield _WITH_LIST[keyword](located, keyword, reader.children(located, keyword))


def _if(reader: KeywordReader, located: Located, keyword: str, value: Any) -> Iterator[Assertion]:
    then = reader.child(located, "then") if "then" in located.schema else None
    otherwise = reader.child(located, "else") if "else" in located.schema else None
    yield If(located, keyword, reader.child(located, keyword), then, otherwise)


def _target(document: Document, located: Located, keyword: str, reference: str) -> Located:
    if keyword == "$dynamicRef":
        return document.resolve_dynamic(located, reference)
    return document.resolve_recursive(located) if keyword == "$recursiveRef" else document.resolve(located, reference)


_FIRST = ("type", "enum", "const")
_REFERENCES = frozenset({"$dynamicRef", "$recursiveRef", "$ref"})
_READERS: dict[str, Callable[[KeywordReader, Located, str, Any], Iterator[Assertion]]] = {
    "additionalItems": _additional_items,
    "additionalProperties": _additional_properties,
    "const": _enum,
    "contains": _contains,
    "dependencies": _dependent,
    "dependentRequired": _dependent,
    "dependentSchemas": _dependent,
    "enum": _enum,
    "exclusiveMaximum": _bound,
    "exclusiveMinimum": _bound,
    "format": _format,
    "if": _if,
    "items": _items,
    "maxItems": _size,
    "maxLength": _size,
    "maxProperties": _size,
    "maximum": _bound,
    "minItems": _size,
    "minLength": _size,
    "minProperties": _size,
    "minimum": _bound,
    "multipleOf": lambda reader, at, keyword, value: iter((MultipleOf(at, keyword, decimal_of(value)),)),
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "properties": _properties,
    "required": _required,
    "type": _type,
    "uniqueItems": _unique_items,
    **dict.fromkeys(_WITH_LIST, _list),
    **dict.fromkeys(_WITH_SUBSCHEMA, _subschema),
}
