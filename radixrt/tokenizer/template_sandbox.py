"""Sandbox for chat templates: Jinja's immutable sandbox with the functions of Hugging Face templates, and a budget.

The budget bounds time and output in the sandbox's hooks (calls, attributes, items, multiplications) and between the
pieces that a template yields. Operations without a hook are not bounded (one filter that creates a huge string, nested
loops with an empty body): only the author of a template can cause them, never a message.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox
import jinja2.utils

MAX_PRODUCT = 1_000_000
"""Largest sequence that a template may make by repetition, which no hook could end."""

HOOKS_PER_CLOCK = 256


class BudgetExceeded(Exception):
    """Error: a rendering used up its budget; `what` is "seconds" or "characters"."""

    def __init__(self, what: str) -> None:
        super().__init__(f"out of {what}")
        self.what = what


class Budget:
    """Remaining budget of one rendering. Hooks call `spend`, which reads the clock every HOOKS_PER_CLOCK calls."""

    __slots__ = ("_calls", "_deadline", "chars")

    def __init__(self, max_seconds: float, max_chars: int) -> None:
        self.chars = max_chars
        self._deadline = time.monotonic() + max_seconds
        self._calls = 0

    def spend(self) -> None:
        self._calls += 1
        if self._calls % HOOKS_PER_CLOCK == 0 and time.monotonic() > self._deadline:
            raise BudgetExceeded("seconds")


class _GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks assistant text for training; here the tag only renders it."""

    tags = {"generation"}  # noqa: RUF012 (typed by the base class)

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        # As a call block, and not as the bare body, so that assignments inside stay inside, as in transformers.
        return jinja2.nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Callable[[], str]) -> str:
        return caller()


class _Namespace(jinja2.utils.Namespace):
    """Jinja's namespace without names that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # Jinja's trick: `namespace(self=...)` works too
        self, args = args[0], args[1:]
        values = dict(*args, **kwargs)
        for name in values:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, values)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a chat template cannot store {name!r} on a namespace")


class _Dict:
    """The `dict` function for templates, without the attributes of the class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args)


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML characters, which models have not seen in training.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class Sandbox(jinja2.sandbox.ImmutableSandboxedEnvironment):
    """Jinja environment of Hugging Face chat templates, with a budget for the current rendering."""

    intercepted_binops = frozenset(("*", "**"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols], cache_size=0
        )
        self.filters["tojson"] = _to_json
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
        self.globals["dict"] = _Dict()
        self.globals["namespace"] = _Namespace
        self._budget: Budget | None = None

    def render_within(self, template: jinja2.Template, values: dict[str, Any], budget: Budget) -> str:
        """Render a template; raises BudgetExceeded. Not reentrant."""
        pieces: list[str] = []
        self._budget = budget
        try:
            for piece in template.generate(values):
                budget.spend()
                budget.chars -= len(piece)
                if budget.chars < 0:
                    raise BudgetExceeded("characters")
                pieces.append(piece)
        finally:
            self._budget = None
        return "".join(pieces)

    def call(self, context: Any, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        self._spend()
        return super().call(context, obj, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        self._spend()
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        self._spend()
        return super().getitem(obj, argument)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._spend()
        numbers = [value for value in (left, right) if isinstance(value, (int, float))]
        if operator == "**" and any(abs(number) > 1000 for number in numbers):
            raise jinja2.exceptions.SecurityError("a power in a chat template is too large")
        if operator == "*" and len(numbers) == 1:
            sized = right if numbers[0] is left else left
            if hasattr(sized, "__len__") and numbers[0] * len(sized) > MAX_PRODUCT:
                raise jinja2.exceptions.SecurityError("a repetition in a chat template is too long")
        return super().call_binop(context, operator, left, right)

    def _spend(self) -> None:
        if self._budget is not None:
            self._budget.spend()
