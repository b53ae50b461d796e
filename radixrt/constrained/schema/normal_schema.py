"""`normalize`: from a JSON Schema to a `NormalSchema`, or to a refusal that names the places at fault."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

from radixrt.constrained.obligations import Obligation
from radixrt.constrained.productions import Productions
from radixrt.constrained.schema.emit.grammar import GrammarEmitter, emit_productions
from radixrt.constrained.schema.emit.json_text import TextStyle
from radixrt.constrained.schema.errors import EmptySchema, SchemaRefused, Unsupported
from radixrt.constrained.schema.limits import Budget, Limits, over_limit
from radixrt.constrained.schema.normal_form.graph import Graph
from radixrt.constrained.schema.normal_form.keywords.reader import FormatMode
from radixrt.constrained.schema.normal_form.solver import normal_form
from radixrt.constraint import KeyOrder

MAX_PASSES = 20
"""Maximum number of times that a schema is normalized, each time without the keywords refused before."""


class NormalSchema:
    """A schema that is enforced exactly.

    Attributes:
        graph: the normal form.
        draft: the name of its draft.
        ignored: keywords that cannot be enforced and that the caller chose to ignore.
        obligations: what the productions leave to guards.
        annotations: keywords (pointer of their schema, name) that are not enforced because they only annotate.
        misspelt: unknown keywords (pointer of their schema, name, the known keyword that they resemble).
    """

    def __init__(
        self,
        graph: Graph,
        productions: Productions,
        obligations: tuple[Obligation, ...],
        ignored: list[Unsupported],
        style: Callable[[int], TextStyle],
    ) -> None:
        self.graph = graph
        self._productions = {0: productions}
        self.obligations = obligations
        self._style = style
        self.draft = graph.document.dialect.name
        self.ignored = ignored
        self.annotations = list(graph.reader.annotations)
        self.misspelt = graph.document.misspelt

    def remarks(self, pointer: str = "") -> list[str]:
        """Return the keywords that are not enforced, for the report of an answer: ignored and misspelt ones.

        Args:
            pointer: of the schema in a larger document.
        """
        ignored = [f"{pointer}{one.pointer}: {one.keyword}" for one in self.ignored]
        return ignored + [f"{pointer}{at}: {name} (unknown; {meant} is a keyword)" for at, name, meant in self.misspelt]

    def productions(self, whitespace: int = 0) -> Productions:
        """Return the JSON texts of the values that the schema accepts, with keys in the schema's order and without
        long free parts, as `normalize` was told.

        Args:
            whitespace: maximum number of characters after `{ [ , :` and before `} ]`.
        """
        if whitespace not in self._productions:
            self.graph.budget.restart()
            self._productions[whitespace], _ = emit_productions(self.graph, self._style(whitespace))
        return self._productions[whitespace]

    def emitted_by(
        self, make: Callable[[Graph, TextStyle], GrammarEmitter]
    ) -> tuple[Productions, tuple[Obligation, ...]]:
        """Return the texts of the values in another notation than JSON, and what they leave to guards.

        Args:
            make: returns the emitter of the notation, given the normal form and the style of JSON within the values.

        Raises:
            SchemaRefused: the notation cannot enforce some keywords that JSON texts can.
        """
        self.graph.budget.restart()
        emitter = make(self.graph, self._style(0))
        productions = emitter.emit()
        # The normal form has no refusals, so these are about the notation alone.
        refusals, self.graph.refusals = self.graph.refusals, []
        if refusals:
            raise SchemaRefused(refusals)
        return productions, emitter.obligations


def normalize(
    schema: Any,
    *,
    on_unsupported: Literal["error", "ignore"] = "error",
    closed: bool = False,
    formats: FormatMode = "assert",
    bounded: bool = False,
    max_digits: int | None = None,
    key_order: KeyOrder = "schema",
    guarded: bool = True,
    limits: Limits | None = None,
) -> NormalSchema:
    """Normalize a schema.

    Args:
        schema: the parsed schema.
        on_unsupported: "ignore" skips keywords that cannot be enforced, and lists them in `NormalSchema.ignored`.
        closed: objects that declare members have no others; see `Graph`.
        formats: "annotate" leaves `format` unenforced, as the drafts do by default.
        bounded: parts that the schema leaves free have the bounds of `emit.free_parts` in the productions.
        max_digits: digits after the first digit of a number, and after its point, where the schema sets no bound; None
            is 40, or 307 if not `bounded`.
        key_order: "any" lets the declared keys of each object come in any order in the productions.
        guarded: guards will enforce `NormalSchema.obligations`; else a schema that relies on them is refused.
        limits: bounds on the work.

    Raises:
        MalformedSchema: the document is not a schema of its draft.
        SchemaRefused: some keywords cannot be enforced; the error lists all of them.
        EmptySchema: no value satisfies the schema.
    """
    limits = limits or Limits()
    deadline = time.thread_time() + limits.seconds
    style = partial(TextStyle, bounded=bounded, max_digits=max_digits, key_order=key_order)
    refusals: dict[tuple[str, str], Unsupported] = {}
    for _ in range(MAX_PASSES):
        budget = Budget(limits, deadline)
        try:
            normal, found = _attempt(schema, budget, formats, closed, refusals, style, guarded=guarded)
        except EmptySchema:
            if not refusals:
                raise
            break  # the schema is empty only without the refused keywords
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
    schema: Any,
    budget: Budget,
    formats: FormatMode,
    closed: bool,
    ignored: Mapping[tuple[str, str], Unsupported],
    style: Callable[[int], TextStyle],
    *,
    guarded: bool,
) -> tuple[NormalSchema | None, list[Unsupported]]:
    """Return the schema without some keywords, if it can be normalized, and further keywords to refuse."""
    graph = None
    try:
        graph = normal_form(schema, budget, formats=formats, closed=closed, ignored=frozenset(ignored))
        graph.guarded = guarded
        productions, obligations = emit_productions(graph, style(0))
    except RecursionError:
        return None, [over_limit("", "schema", "it is nested too deeply")]
    except Unsupported as refusal:
        return None, [*(graph.refusals if graph else ()), refusal]
    except EmptySchema:
        if graph is None or not graph.refusals:
            raise
        return None, graph.refusals
    return NormalSchema(graph, productions, obligations, list(ignored.values()), style), graph.refusals
