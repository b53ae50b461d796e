"""`KeywordReader`: reads the keywords of a schema object as assertions, according to the schema's draft."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Literal

from radixrt.constrained.regex import Regex, RegexError, RegexTooComplex, parse_regex
from radixrt.constrained.regex.readings import Mode
from radixrt.constrained.schema.document.document import Document
from radixrt.constrained.schema.document.index import Located
from radixrt.constrained.schema.errors import MalformedSchema, Unsupported
from radixrt.constrained.schema.limits import Limits, over_limit
from radixrt.constrained.schema.normal_form.keywords import applicators, arrays, objects, scalars
from radixrt.constrained.schema.normal_form.keywords.applicators import Reference
from radixrt.constrained.schema.normal_form.keywords.base import REFERENCES, Assertion
from radixrt.constrained.schema.normal_form.keywords.scalars import FalseSchema
from radixrt.constrained.schema.normal_form.strings import StringTest
from radixrt.constrained.schema.values import is_utf8, key, text_of

FormatMode = Literal["assert", "annotate"]

_FIRST = ("type", "enum", "const")
_CLASSES: dict[str, type[Assertion]] = {
    keyword: found
    for module in (applicators, arrays, objects, scalars)
    for found in vars(module).values()
    if isinstance(found, type) and issubclass(found, Assertion)
    for keyword in found.keywords
}
"""The class that reads each keyword."""


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
                found.extend(_CLASSES[keyword].read(self, located, keyword, schema[keyword]))
        for keyword, value in schema.items():
            if keyword not in known:
                continue
            if keyword in REFERENCES:
                references.append((len(found) + len(references), keyword, value))
            elif keyword in _CLASSES and keyword not in _FIRST:
                found.extend(_CLASSES[keyword].read(self, located, keyword, value))
        for place, keyword, value in references:  # resolved last, for refusals of the schema itself to come first
            found[place:place] = Reference.read(self, located, keyword, value)
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

    def listed(self, located: Located, keyword: str, values: list[Any]) -> dict[Hashable, Any]:
        """Return listed values by `values.key`. Raises MalformedSchema, Unsupported."""
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
        return by_key
