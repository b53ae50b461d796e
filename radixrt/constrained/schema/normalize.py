"""The way in: a JSON Schema becomes a `NormalSchema`, or is refused with the places that cannot be enforced."""

from __future__ import annotations

from typing import Any, Literal

from radixrt.constrained.productions import EmptyLanguage, Productions
from radixrt.constrained.schema.admits import admits
from radixrt.constrained.schema.errors import EmptySchema, MalformedSchema, SchemaRefused, Unsupported
from radixrt.constrained.schema.graph import Formats, Graph
from radixrt.constrained.schema.limits import Limits
from radixrt.constrained.schema.to_productions import Writer
from radixrt.errors import RequestError, shown

MOST_REFUSALS = 20
"""Refusals that are collected, and keywords that are left out on request, at most."""


class NormalSchema:
    """A schema that is enforced exactly.

    Attributes:
        draft: the draft that it was read as.
        ignored: keywords that are not enforced because the caller chose to leave out what cannot be.
        annotations: keywords (pointer of their schema, name) that are not enforced because they only annotate.
    """

    def __init__(self, graph: Graph, productions: Productions, ignored: list[Unsupported]) -> None:
        self._graph = graph
        self._productions = {0: productions}
        self.draft = graph.document.dialect.name
        self.ignored = ignored
        self.annotations = list(graph.annotations)

    def productions(self, whitespace: int = 0) -> Productions:
        """The JSON texts of the values that the schema accepts, keys in the schema's order.

        Args:
            whitespace: characters that may stand after `{ [ , :` and before `} ]`.
        """
        if whitespace not in self._productions:
            self._productions[whitespace] = Writer(self._graph, whitespace).write()
        return self._productions[whitespace]

    def accepts(self, value: Any) -> bool:
        """Whether the schema, as it is enforced, accepts a parsed value; the order of keys does not matter.

        Raises:
            RequestError: the value is nested too deeply, or is not JSON.
        """
        try:
            return admits(self._graph, self._graph.root, value)
        except RecursionError:
            raise RequestError("The value is nested too deeply to be judged.", code="invalid_value") from None
        except KeyError:
            raise RequestError("The value has parts that are not JSON.", code="invalid_value") from None


def normalize(
    schema: Any,
    *,
    on_unsupported: Literal["error", "ignore"] = "error",
    closed: bool = False,
    formats: Formats = "assert",
    limits: Limits | None = None,
) -> NormalSchema:
    """Work out what a schema accepts.

    Args:
        schema: the parsed schema.
        on_unsupported: "ignore" leaves out keywords that cannot be enforced, and lists them in `ignored`.
        closed: objects that do not say anything about further members have none.
        formats: "annotate" leaves `format` unenforced, as the drafts do by default.
        limits: bounds on the work.

    Raises:
        MalformedSchema: it is no schema of its draft.
        SchemaRefused: keywords of it cannot be enforced; has them all.
        EmptySchema: no value satisfies it.
    """
    if not isinstance(schema, dict | bool):
        raise MalformedSchema("", f"a schema is an object, true or false, not {shown(schema)}")
    limits = limits or Limits()
    refusals: list[Unsupported] = []
    while True:
        ignored = frozenset((refusal.pointer, refusal.keyword) for refusal in refusals)
        try:
            graph = Graph(schema, limits, formats=formats, closed=closed, ignored=ignored)
            productions = Writer(graph, 0).write()
        except Unsupported as refusal:
            repeated = (refusal.pointer, refusal.keyword) in ignored
            refusals.append(refusal)
            if repeated or not refusal.droppable or len(refusals) >= MOST_REFUSALS:
                raise SchemaRefused([refusal] if on_unsupported == "ignore" else refusals) from None
            continue
        except EmptyLanguage:
            if refusals and on_unsupported == "error":
                raise SchemaRefused(refusals) from None
            raise EmptySchema("", "its conditions exclude one another") from None
        if refusals and on_unsupported == "error":
            raise SchemaRefused(refusals)
        return NormalSchema(graph, productions, refusals)
