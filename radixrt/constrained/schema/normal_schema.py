"""The way in: a JSON Schema becomes a `NormalSchema`, or is refused with the places that cannot be enforced."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from radixrt.constrained.productions import Productions
from radixrt.constrained.schema.emit.grammar import Writer
from radixrt.constrained.schema.emit.json_schema import SchemaWriter
from radixrt.constrained.schema.errors import EmptySchema, SchemaRefused, Unsupported
from radixrt.constrained.schema.limits import Budget, Limits, over_limit
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.keywords import FormatMode
from radixrt.constrained.schema.normal_form.solver import normal_form
from radixrt.constrained.schema.normal_form.validation import admits
from radixrt.errors import RequestError

MOST_PASSES = 20
"""Times that a schema is worked out again without what was refused, to find more or to do without."""


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
        self.annotations = list(graph.reader.annotations)

    def productions(self, whitespace: int = 0) -> Productions:
        """The JSON texts of the values that the schema accepts, keys in the schema's order.

        Args:
            whitespace: characters that may stand after `{ [ , :` and before `} ]`.
        """
        if whitespace not in self._productions:
            self._graph.budget.restart()
            self._productions[whitespace] = Writer(self._graph, whitespace).write()
        return self._productions[whitespace]

    def to_schema(self) -> dict[str, Any]:
        """What is enforced, as a JSON Schema of draft 2020-12: every keyword worked out, one type at a time."""
        self._graph.budget.restart()
        return SchemaWriter(self._graph).write()

    def accepts(self, value: Any) -> bool:
        """Whether the schema, as it is enforced, accepts a parsed value; the order of keys does not matter.

        Raises:
            RequestError: the value is nested too deeply, or is not JSON.
        """
        self._graph.budget.restart()
        try:
            return admits(self._graph, self._graph.root, value)
        except RecursionError:
            raise RequestError("The value is nested too deeply to be judged.", code="invalid_value") from None
        except (KeyError, TypeError):
            raise RequestError("The value has parts that are not JSON.", code="invalid_value") from None


def normalize(
    schema: Any,
    *,
    on_unsupported: Literal["error", "ignore"] = "error",
    closed: bool = False,
    formats: FormatMode = "assert",
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
    limits = limits or Limits()
    deadline = time.monotonic() + limits.seconds
    refusals: dict[tuple[str, str], Unsupported] = {}
    for _ in range(MOST_PASSES):
        budget = Budget(limits, deadline)
        try:
            normal, found = _attempt(schema, budget, formats, closed, refusals)
        except EmptySchema:
            if not refusals:
                raise
            break  # what is left without them says nothing about the schema
        news = {(one.pointer, one.keyword): one for one in found if (one.pointer, one.keyword) not in refusals}
        final = [one for one in found if not one.droppable]
        if normal is not None and (on_unsupported == "ignore" or not refusals) and not found:
            return normal
        if on_unsupported == "ignore" and final:
            raise SchemaRefused(final)
        refusals |= news
        if final or not news or (normal is not None and on_unsupported == "error"):
            break
    raise SchemaRefused(list(refusals.values()))


def _attempt(
    schema: Any, budget: Budget, formats: FormatMode, closed: bool, left_out: Mapping[tuple[str, str], Unsupported]
) -> tuple[NormalSchema | None, list[Unsupported]]:
    """The schema without some keywords, as far as it comes, and further keywords that cannot be enforced."""
    graph = None
    try:
        graph = normal_form(schema, budget, formats=formats, closed=closed, ignored=frozenset(left_out))
        productions = Writer(graph, 0).write()
    except RecursionError:
        return None, [over_limit("", "schema", "it is nested too deeply")]
    except Unsupported as refusal:
        return None, [*(graph.refusals if graph else ()), refusal]
    except EmptySchema:
        if graph is None or not graph.refusals:
            raise
        return None, graph.refusals
    return NormalSchema(graph, productions, list(left_out.values())), graph.refusals
