"""`Expr`: primitives that a program appends to a state. A primitive is a description; `StepBuilder` makes its steps.

The functions in `radixrt.lang.core.primitives` create primitives.
"""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from radixrt.errors import shown
from radixrt.lang.core.answer_type import VALUE_TOKENS, AnswerType
from radixrt.lang.errors import ProgramError, place
from radixrt.lang.pictures import Picture
from radixrt.messages.parts import SelectMethod
from radixrt.sampling_params import SamplingParams
from radixrt.tasks.generate import as_sampling_params

if TYPE_CHECKING:
    from radixrt.lang.core.tools import Offer
    from radixrt.lang.core.values import Slot


class Expr:
    """A primitive that can be appended to a state. `a + b` is a, and then b; either may be a text.

    A primitive has no text: `str` and f-strings raise a `ProgramError`, except for a `join`.
    """

    def __str__(self) -> str:
        if isinstance(self, ImageWord):
            raise ProgramError(f'{place()}rt.image(...) is put into a text; append it: "before " + rt.image("cat.png")')
        kind = type(self).__name__.lower()
        what = f"rt.{kind}(...)" if isinstance(self, Gen | Select) else "a primitive"
        raise ProgramError(
            f"{place()}{what} is put into a text, which has nowhere to write its value; append it instead: "
            's += "before " + rt.gen("name") + " after"'
        )

    def __add__(self, other: Expr | str) -> Sequence_:
        return Sequence_([*items_of(self), *items_of(as_expr(other))])

    def __radd__(self, other: Expr | str) -> Sequence_:
        return Sequence_([*items_of(as_expr(other)), *items_of(self)])


@dataclass(frozen=True)
class Sequence_(Expr):
    """Several primitives, one after another."""

    items: Sequence[Expr]


@dataclass(frozen=True)
class TextWord(Expr):
    text: str


@dataclass(frozen=True)
class ImageWord(Expr):
    """See `image`."""

    picture: Picture


@dataclass(frozen=True)
class RoleBegin(Expr):
    role: str


@dataclass(frozen=True)
class RoleEnd(Expr):
    """End of a message. `role`: the role of the message; "" for the open message, whatever its role."""

    role: str = ""


@dataclass(frozen=True)
class Gen(Expr):
    """See `gen`."""

    name: str | None
    type: AnswerType
    sampling: Mapping[str, Any]
    n: int = 1
    timeout_s: float | None = None
    tools: Offer | None = None
    retries: int = 0
    check: Callable[[Any], object] | None = None

    @property
    def python_type(self) -> Any:
        """Type of the value; None for a text, and for the JSON values of a schema."""
        one = self.type.python_type
        return one if self.n == 1 or one is None else types.GenericAlias(list, one)

    def params(self, defaults: Mapping[str, Any]) -> SamplingParams:
        """Sampling parameters of the request: the type's constraint, this gen's own parameters, and then the defaults.

        Raises:
            RequestError: a value is out of bounds; names it.
        """
        chosen = {**defaults, **self.sampling}
        if self.type.constraint and "stop" not in self.sampling:
            chosen.pop("stop", None)  # stop strings of the program apply to text only
        if self.tools is not None:
            chosen.pop("stop", None)
        chosen.setdefault("max_tokens", self.type.max_tokens if self.tools is None else VALUE_TOKENS)
        params = as_sampling_params({**chosen, **self.type.constraint})
        if params.structured.reasoning_end is not None:  # it may be a special token, and the text must show it
            params = msgspec.structs.replace(params, skip_special_tokens=False)
        return params


@dataclass(frozen=True)
class Select(Expr):
    """See `select`."""

    name: str | None
    choices: tuple[str, ...]
    method: SelectMethod


@dataclass(frozen=True)
class Join(Expr):
    """See `join`. Converting it to a text (`str`, f-strings) waits for the values."""

    slots: Sequence[Slot]
    keys: Sequence[Any]
    sep: str
    form: str
    skip_errors: bool
    read: Callable[[Join], str] = field(repr=False)

    def text(self) -> str:
        """The joined text, once every slot is done.

        Raises:
            CallError: one failed, and skip_errors is not set; ProgramError: one was cancelled.
        """
        texts = []
        for i, (slot, key) in enumerate(zip(self.slots, self.keys, strict=True)):
            if slot.error is not None and self.skip_errors:
                continue
            if slot.cancelled:
                raise ProgramError(f"branch {slot.branch}, {slot.label}: it was cancelled; see skip_errors")
            texts.append(self.form.format(value=slot.text, key=key, index=i))
        return self.sep.join(texts)

    def __str__(self) -> str:
        return self.read(self)

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class SubProgram(Expr):
    """Another function's body, run on the state that it is appended to. One that is never appended warns of it.

    Args:
        name: of the function.
    """

    def __init__(self, name: str, body: Callable[[Any], Any]) -> None:
        self._name = name
        self._body = body
        self._is_appended = False

    def run_on(self, state: Any) -> None:
        self._is_appended = True
        self._body(state)

    def __repr__(self) -> str:
        return f"<{self._name}(...), which has not run; {self._name}.run(...) runs it>"

    def __str__(self) -> str:
        self._refuse(" as a text")

    def __getitem__(self, name: object) -> NoReturn:
        self._refuse(f"[{name!r}]")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        self._refuse(f".{name}")

    def __del__(self) -> None:
        if not self._is_appended:
            warnings.warn(
                f"{self._name}(...) was never appended to a state, so it did not run; "
                f"{self._name}.run(...) runs it as a program of its own",
                RuntimeWarning,
                stacklevel=2,
            )

    def _refuse(self, what: str) -> NoReturn:
        self._is_appended = True  # the error tells already
        raise ProgramError(
            f"{place()}{self._name}(...){what} reads a program that has not run: {self._name}.run(...) runs it, and "
            f"inside of another program s += {self._name}(...) appends it to the state s"
        )


def as_expr(value: Any) -> Expr:
    """Convert a primitive or a text to a primitive.

    Raises:
        TypeError: the value is neither.
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return TextWord(value)
    raise TypeError(
        f"a state takes texts and primitives like rt.gen(...), not {shown(value)}; write str(...) around it"
    )


def items_of(expr: Expr) -> Sequence[Expr]:
    """The primitives of a sequence; one that is no sequence, alone."""
    return expr.items if isinstance(expr, Sequence_) else [expr]
