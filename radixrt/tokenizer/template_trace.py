"""Traced rendering: the output of a chat template, with a record of the characters that the template itself wrote.

A template may trim, cut, repeat, reorder or JSON-encode what a request brings, so that contents cannot be found in the
output by searching for them. Therefore the template's own texts are marked instead. `traceable` replaces the string
constants of a template by variables, and `Trace` gives these the constants as `Constant`: strings that compare, search
and split as the plain text, and become *marked* text as soon as they are part of another string or of the output. A
marked text stands between two copies of a mark with a random number that is new for each rendering, so that no request
can contain it, and whatever the template does to it later takes the marks along. Text between two marks that is not
exactly the constant of that number counts as the request's: an operation that is not foreseen here can only take trust
away.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import jinja2
import jinja2.nodes as nodes
from jinja2.visitor import NodeTransformer

from radixrt.messages.parts import PromptPart, TemplateText

ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
"""Roles, which are no client's text: a template may write them into a control token, as in `'<|' + role + '|>'`."""
VARIABLE = "radixrt_template_text_{}"
NUMBER_DIGITS = 24
INDEX_DIGITS = 6
NAME_DIGITS = 1 + INDEX_DIGITS
CUT = "3" * NAME_DIGITS


class Constant(str):
    """String constant of a template: equal to its plain text, and marked wherever it becomes part of another string.

    Calling the class with one argument returns a plain string: Jinja calls the class of a format string with the
    formatted text, which may hold anything.
    """

    _marked: str

    def __new__(cls, text: str, marked: str = "") -> Any:
        if not marked:
            return str(text)
        made = super().__new__(cls, text)
        made._marked = marked
        return made

    def __str__(self) -> str:
        return self._marked

    def __format__(self, spec: str) -> str:
        return format(self._marked, spec)

    def __add__(self, other: str) -> str:
        return self._marked + _marked(other)

    def __radd__(self, other: str) -> str:
        return _marked(other) + self._marked

    def __mul__(self, times: Any) -> str:
        return str(self._marked * times)

    __rmul__ = __mul__

    def __mod__(self, values: Any) -> str:
        return str(self._marked % values)

    def join(self, texts: Iterable[Any]) -> str:
        return self._marked.join(map(str, texts))

    def strip(self, chars: str | None = None) -> str:
        return self._marked.strip(chars)

    def lstrip(self, chars: str | None = None) -> str:
        return self._marked.lstrip(chars)

    def rstrip(self, chars: str | None = None) -> str:
        return self._marked.rstrip(chars)


def _marked(text: str) -> str:
    return str(text) if isinstance(text, Constant) else text


class Trace:
    """Marks of one rendering."""

    def __init__(self) -> None:
        # Digits alone: they survive JSON, URL and HTML encoding and changes of case.
        self._number = f"{secrets.randbelow(10**NUMBER_DIGITS):0{NUMBER_DIGITS}}"
        self._constants: dict[str, Constant] = {}
        self._cores: dict[str, tuple[str, str]] = {}  # text and closing name by the name of the opening mark

    def constant(self, text: str) -> Constant:
        """Return a text of the template. Whitespace at its ends stays outside the marks, where `trim` finds it."""
        made = self._constants.get(text)
        if made is None:
            core, index = text.strip(), len(self._constants)
            opening, closing = f"1{index:0{INDEX_DIGITS}}", f"2{index:0{INDEX_DIGITS}}"
            self._cores[opening] = (core, closing)
            marked = f"{self._number}{opening}{core}{self._number}{closing}"
            head, tail = text[: len(text) - len(text.lstrip())], text[len(text.rstrip()) :]
            made = self._constants[text] = Constant(text, f"{head}{marked}{tail}")
        return made

    def cut_inside(self, pattern: re.Pattern[str], value: Any) -> Any:
        """Copy a JSON value, with a cut after the first character of each match in its strings and keys."""
        mark = self._number + CUT

        def cut(match: re.Match[str]) -> str:
            return match[0][:1] + mark + match[0][1:]

        return _map_strings(lambda text: pattern.sub(cut, text), value)

    def parts(self, rendered: str) -> list[PromptPart]:
        """Divide a rendered text into texts of the template, texts of the request, and cuts (empty lists of ids).

        Raises:
            ValueError: the template has taken a mark apart.
        """
        half = NUMBER_DIGITS // 2
        parts = _Parts()
        first, *chunks = rendered.split(self._number)  # all but the first begin with the name of a mark
        parts.add(first, by_template=False)
        texts, at = [first], 0
        while at < len(chunks):
            name, text = chunks[at][:NAME_DIGITS], chunks[at][NAME_DIGITS:]
            core, closing = self._cores.get(name, ("", ""))
            at += 1
            if closing and text == core and at < len(chunks) and chunks[at].startswith(closing):
                parts.add(core, by_template=True)
                text = chunks[at][NAME_DIGITS:]
                at += 1
            elif name == CUT:
                parts.cut()
            parts.add(text, by_template=False)
            texts.append(text)
        if any(self._number[:half] in text or self._number[half:] in text for text in texts):
            raise ValueError("a mark of a traced text was taken apart")
        return parts.done()


class _Parts:
    """Prompt parts, in which neighbouring texts of one origin are joined."""

    def __init__(self) -> None:
        self._done: list[PromptPart] = []
        self._texts: list[str] = []
        self._by_template = False

    def add(self, text: str, *, by_template: bool) -> None:
        if text:
            if by_template is not self._by_template:
                self._end_text()
                self._by_template = by_template
            self._texts.append(text)

    def cut(self) -> None:
        self._end_text()
        self._done.append([])

    def done(self) -> list[PromptPart]:
        self._end_text()
        return self._done

    def _end_text(self) -> None:
        if self._texts:
            text = "".join(self._texts)
            self._done.append(TemplateText(text) if self._by_template else text)
            self._texts = []


def strings(value: Any) -> Iterator[str]:
    """Yield the strings within a JSON value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, one in value.items():
            yield from (key, *strings(one))
    elif isinstance(value, list):
        for one in value:
            yield from strings(one)


def _map_strings(change: Callable[[str], str], value: Any) -> Any:
    """Copy a JSON value with each of its strings, keys included, changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _map_strings(change, one) for key, one in value.items()}
    if isinstance(value, list):
        return [_map_strings(change, one) for one in value]
    return value


def traceable(environment: jinja2.Environment, source: str) -> tuple[jinja2.Template, list[str]]:
    """Compile a template with variables (named by VARIABLE and an index) in place of its string constants.

    Returns:
        The template and its constants, by index.
    """
    transformer = _ConstantsToVariables()
    tree: nodes.Template = transformer.visit(environment.parse(source))
    tree.set_environment(environment)
    return environment.from_string(tree), list(transformer.texts)


class _ConstantsToVariables(NodeTransformer):
    """Replaces string constants that may reach the output: not those that only select, compare or test a value."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}

    def visit_Const(self, node: nodes.Const) -> nodes.Expr:
        return self._variable(node, node.value)

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Expr:
        return self._variable(node, node.data)

    def _variable(self, node: nodes.Expr, text: Any) -> nodes.Expr:
        if not isinstance(text, str) or not text.strip():
            return node
        index = self.texts.setdefault(text, len(self.texts))
        return nodes.Name(VARIABLE.format(index), "load", lineno=node.lineno)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        return node

    def visit_Test(self, node: nodes.Test) -> nodes.Test:
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Getitem:
        node.node = self.visit(node.node)
        return node

    def visit_Pair(self, node: nodes.Pair) -> nodes.Pair:
        node.value = self.visit(node.value)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:
        if node.name != "replace":
            return self.generic_visit(node)
        if node.node is not None:
            node.node = self.visit(node.node)
        node.args[1:] = [self.visit(argument) for argument in node.args[1:]]
        return node
