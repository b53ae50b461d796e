"""Primitives of a program: text, roles, gen, select and image, which are appended to a state, alone or joined with `+`.

A primitive is a description. `State.append` converts primitives to steps, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from radixrt.constrained.well_formed import check_well_formed
from radixrt.errors import RequestError, shown
from radixrt.lang.core.answer_type import AnswerType, answer_type
from radixrt.lang.core.expr import Expr, Gen, ImageWord, RoleBegin, RoleEnd, Select, Sequence_, as_expr, items_of
from radixrt.lang.pictures import read_picture
from radixrt.messages.parts import SelectMethod
from radixrt.tasks.generate import as_sampling_params

if TYPE_CHECKING:
    from radixrt.lang.core.tools import Offer

ToolGiven = Mapping[str, Any] | Callable[..., Any]

SELECT_METHODS: tuple[SelectMethod, ...] = get_args(SelectMethod)

MAX_RETRIES = 16

# --- roles ---


def role(name: str, content: Expr | str) -> Expr:
    """A message of any role that the model's chat template knows, e.g. "tool"."""
    return Sequence_([RoleBegin(name), *items_of(as_expr(content)), RoleEnd(name)])


def system(content: Expr | str) -> Expr:
    """A system message."""
    return role("system", content)


def user(content: Expr | str) -> Expr:
    """A user's message."""
    return role("user", content)


def assistant(content: Expr | str) -> Expr:
    """A message of the assistant, written by the program, by the model (`gen` in it), or by both in turn."""
    return role("assistant", content)


def role_begin(name: str) -> Expr:
    return RoleBegin(name)


def role_end(name: str = "") -> Expr:
    return RoleEnd(name)


def system_begin() -> Expr:
    return RoleBegin("system")


def system_end() -> Expr:
    return RoleEnd("system")


def user_begin() -> Expr:
    return RoleBegin("user")


def user_end() -> Expr:
    return RoleEnd("user")


def assistant_begin() -> Expr:
    return RoleBegin("assistant")


def assistant_end() -> Expr:
    return RoleEnd("assistant")


# --- calls ---


def gen(
    name: str | None = None,
    T: Any = str,
    *,
    n: int = 1,
    json_schema: Any = None,
    regex: str | None = None,
    ebnf: str | None = None,
    choices: Iterable[str] | None = None,
    structural_tag: Any = None,
    tools: Sequence[ToolGiven] = (),
    tool_choice: str = "auto",
    retries: int = 0,
    check: Callable[[Any], object] | None = None,
    timeout_s: float | None = None,
    **sampling: Any,
) -> Expr:
    """Text that the model writes; read as `state[name]`, of type T.

    Args:
        T: str, int, float, bool, a Literal, an Enum, a pydantic model, a dataclass, a TypedDict, a list of these, or
            any other type that `SamplingParams.json_schema` takes.
        n: number of independent samples. If there are several, the value is a list, and the state continues with the
            first.
        json_schema, regex, ebnf, choices, structural_tag: constraint of the text, in place of T.
        tools: Python functions whose parameters have types, or definitions as in the OpenAI API. The value is the text
            beside the calls, which are `state.meta[name].tool_calls`; `state.run_tools(name)` runs them. From here on
            the conversation's prompt describes these tools.
        tool_choice: "auto", "required", or the name of the tool that must be called.
        retries: number of further attempts after an answer that breaks a rule of its type beyond the schema (a pydantic
            validator), or that `check` refuses. The model gets the error as a message; refused answers leave the
            conversation. In a program without roles the model gets no error, and samples again with a temperature.
        check: function of the value (with tools, of the text beside the calls) that raises ValueError to refuse the
            value.
        timeout_s: seconds after which an attempt fails.
        sampling: any field of `SamplingParams`: max_tokens, temperature, stop, seed, logprobs, ... The default of
            max_tokens is 256 for a text; for a value, as many tokens as the type needs, at most 1024.

    Raises:
        RequestError: a parameter is unknown or out of bounds, a constraint is malformed, or the type has no JSON form;
            the error names the parameter.
    """
    constraint = {"json_schema": json_schema, "regex": regex, "ebnf": ebnf, "structural_tag": structural_tag}
    constraint["choices"] = None if choices is None else tuple(choices)
    for reserved in ("n", "stream"):
        if reserved in sampling:
            raise RequestError(f"{reserved} is no sampling parameter of gen", param=reserved)
    kind = answer_type(T, constraint)
    _check_retries(retries, n, tools)
    offer = _offer(kind, tools, tool_choice, sampling)
    one = Gen(_checked(name), kind, dict(sampling), n, timeout_s, offer, retries, check)
    params = as_sampling_params({**msgspec.structs.asdict(one.params({})), "n": n})  # so that errors are raised here
    if params.constraint is not None:
        check_well_formed(params.constraint)
    return one


def _check_retries(retries: int, n: int, tools: Sequence[ToolGiven]) -> None:
    if isinstance(retries, bool) or not isinstance(retries, int) or not 0 <= retries <= MAX_RETRIES:
        raise RequestError(f"retries must be a whole number from 0 to {MAX_RETRIES}, not {shown(retries)}",
                           param="retries")  # fmt: skip
    if retries and (n > 1 or tools):
        other = (
            "tools, whose calls are valid as they are" if tools else "n > 1: several samples have no one conversation"
        )
        raise RequestError(f"retries cannot be used with {other}", param="retries")


def _offer(kind: AnswerType, tools: Sequence[ToolGiven], choice: str, sampling: Mapping[str, Any]) -> Offer | None:
    if not tools:
        return None
    if kind.constraint or sampling.get("stop"):
        raise RequestError("a gen with tools is a text without stop strings; ask for the value in a gen of its own",
                           param="tools")  # fmt: skip
    from radixrt.lang.core.tools import offer

    return offer(tools, choice)


def select(
    name: str | None = None, choices: Iterable[str] = (), *, method: SelectMethod = "token_length_normalized"
) -> Expr:
    """The most probable choice of several texts. Read the choice as `state[name]` and the probabilities as
    `state.meta[name].probabilities`.

    Args:
        choices: at least one text, none empty; each is scored as a whole.
        method: "token_length_normalized" compares the mean log-probability of a choice's tokens; "greedy" the
            log-probabilities token by token, as greedy decoding among the choices would;
            "unconditional_likelihood_normalized" subtracts the log-probability of the choice's tokens without the
            prompt.

    Raises:
        RequestError: an argument is not valid; the error names the argument.
    """
    texts = tuple(choices)
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise RequestError("choices must be texts that are not empty, at least one", param="choices")
    if len(set(texts)) < len(texts):
        raise RequestError("choices holds the same text twice", param="choices")
    if method not in SELECT_METHODS:
        raise RequestError(f"method must be one of {', '.join(SELECT_METHODS)}, not {shown(method)}", param="method")
    return Select(_checked(name), texts, method)


def image(picture: object, *, detail: str = "auto") -> Expr:
    """A picture, in a message of the user or, where the model's template shows how, in text without roles.

    The picture is read and checked here, once. Appending it to several states, or forking a state that has it, shares
    the file, and the engine decodes it once.

    Args:
        picture: path of a PNG, JPEG or WEBP file, bytes of such a file, a data: URL, a Pillow image (turned upright as
            its EXIF data say), or a uint8 array [height, width, 3] of RGB.
        detail: "low" for few tokens; "auto" and "high" for as many as the model's files say.

    Raises:
        RequestError: the picture cannot be read, is animated or exceeds a limit; the error names the argument.
    """
    return ImageWord(read_picture(picture, detail))


def _checked(name: Any) -> str | None:
    if name is not None and (not isinstance(name, str) or not name):
        raise RequestError(f"the name of a gen or select must be a text, not {shown(name)}", param="name")
    return name
