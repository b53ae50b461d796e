"""`Report`: the result of `explain`."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixrt.constraint import Constraint
from radixrt.errors import RequestError

if TYPE_CHECKING:
    from radixrt.constrained.schema import NormalSchema
    from radixrt.explain.text_checker import TextChecker

SHOWN_TEXT = 300
"""Maximum number of characters of a schema or an example in `str(report)`."""


@dataclass(frozen=True)
class Finding:
    """A remark on one keyword of a schema.

    Attributes:
        pointer: JSON pointer to the schema object that holds the keyword; "" is the root.
        keyword: the keyword.
        reason, fix: the reason why the keyword is not enforced, and a remedy; empty for annotations.
    """

    pointer: str
    keyword: str
    reason: str = ""
    fix: str = ""

    def __str__(self) -> str:
        return f"#{self.pointer}: {self.keyword}" + (f": {self.reason}. {self.fix}" if self.reason else "")


@dataclass(frozen=True)
class Cost:
    """The cost of a constraint on this machine.

    Attributes:
        size: expressions and characters of its grammar.
        compile_s: seconds from the constraint to a grammar with probed masks, without caches.
        mask_s: mean seconds to compute a mask.
    """

    size: int
    compile_s: float
    mask_s: float


@dataclass(frozen=True)
class Report:
    """The result of `explain`; `print` shows it to people.

    Attributes:
        constraint: the analyzed constraint.
        error: the refusal; None if the constraint is enforced.
        refused: keywords because of which the schema is refused: all that cannot be enforced.
        ignored: keywords that cannot be enforced and are dropped, with `on_unsupported="ignore"`.
        annotations: keywords that are not enforced because they only annotate (unknown formats, ...).
        misspelt: unknown keywords that resemble a known keyword.
        draft: the dialect of the schema.
        backend, why: the library that computes the masks, and the reason for its choice.
        normalized: an equivalent schema, made from the normal form that is enforced.
        cost: measured on this machine.
        in_any_order: sizes of the sets of parts (keys, different values, counted items) that may come in any order.
        min_tokens, min_characters, shortest: the size of a shortest output, and that output; the least `max_tokens`.
    """

    constraint: Constraint
    error: RequestError | None = None
    refused: list[Finding] = field(default_factory=list)
    ignored: list[Finding] = field(default_factory=list)
    annotations: list[Finding] = field(default_factory=list)
    misspelt: list[Finding] = field(default_factory=list)
    draft: str | None = None
    backend: str | None = None
    why: str = ""
    normalized: Any = None
    cost: Cost | None = None
    in_any_order: tuple[int, ...] = ()
    min_tokens: int = 0
    min_characters: int = 0
    shortest: str = ""
    _checker: TextChecker | None = field(default=None, repr=False, compare=False)
    _schema: NormalSchema | None = field(default=None, repr=False, compare=False)

    @property
    def enforced(self) -> bool:
        """True if an engine accepts this constraint."""
        return self.error is None

    def accepts(self, text: str) -> bool:
        """Return whether the engine can generate exactly this text.

        Raises:
            RequestError: the constraint is refused.
        """
        return self._texts().accepts(text)

    def accepts_value(self, value: Any) -> bool:
        """Return whether the schema accepts this value in any spelling; for other constraints, this text.

        Raises:
            RequestError: the constraint is refused.
        """
        texts = self._texts()
        if self._schema is None:
            return isinstance(value, str) and texts.accepts(value)
        from radixrt.explain.value_check import accepts

        return accepts(self._schema, value)

    def why_not(self, text: str) -> str | None:
        """Return the position where the text leaves the grammar, and possible continuations; None if it is accepted.

        Raises:
            RequestError: the constraint is refused.
        """
        problem = self._texts().problem(text)
        if problem is None or self._schema is None:
            return problem
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return problem
        if self.accepts_value(value):
            return f"{problem}. The value itself is accepted: keys come in the order of the schema, {self._spaces()}"
        return f"{problem}. {self.why_not_value(value)}"

    def why_not_value(self, value: Any) -> str | None:
        """Return the problem with a value, with its place; None if the value is accepted.

        Raises:
            RequestError: the constraint is refused.
        """
        if self.accepts_value(value):
            return None
        if self._schema is None:
            return self.why_not(value) if isinstance(value, str) else "the constraint is about text"
        from radixrt.explain.text_checker import value_problem

        return value_problem(json.loads(self.constraint.source), value, self.constraint.options)

    def _spaces(self) -> str:
        most = self.constraint.options.whitespace
        return f"with at most {most} spaces between tokens" if most else "without spaces between tokens"

    def _texts(self) -> TextChecker:
        if self.error is not None:
            raise self.error
        assert self._checker is not None
        return self._checker

    def __str__(self) -> str:
        return "\n".join([f"{self.constraint.kind}: {'enforced' if self.enforced else 'refused'}", *self.lines()])

    def lines(self) -> list[str]:
        """Return the lines of `str(report)` below the first."""
        lines = [f"dialect: {self.draft}"] if self.draft else []
        if self.error is not None and not self.refused:
            lines.append(self.error.message)
        lines += _listed("cannot be enforced", self.refused)
        lines += _listed("ignored, as asked for", self.ignored)
        lines += _listed("warning: misspelt, not enforced", self.misspelt)
        lines += _listed("annotations, not enforced", self.annotations)
        if self.cost is not None:
            lines += [
                f"backend: {self.backend} ({self.why})",
                f"cost: {self.cost.compile_s * 1e3:.1f} ms to compile, {self.cost.mask_s * 1e6:.0f} us for a mask, "
                f"grammar of size {self.cost.size}",
                *([f"in any order: {_parts(self.in_any_order)}"] if self.in_any_order else []),
                f"shortest: {self.min_tokens} tokens, {self.min_characters} characters: {_cut(self.shortest)}",
            ]
        if self.normalized is not None:
            lines.append(f"normalized: {_cut(json.dumps(self.normalized, ensure_ascii=False))}")
        return lines


def _parts(sizes: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, sorted(sizes)))} parts, counted by parametric rules"


def _listed(title: str, findings: list[Finding]) -> list[str]:
    return [f"{title}:", *(f"  {finding}" for finding in findings)] if findings else []


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_TEXT else f"{text[:SHOWN_TEXT]}... ({len(text)} characters)"
