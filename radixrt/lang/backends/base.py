"""`Backend`: where a program's calls go. An engine in this process, a radixrt server, an OpenAI-compatible endpoint.

A program's state is a transcript. A backend that works on tokens is given it as prompt parts and answers with the ids
that they came to, so that the state is token ids from then on; one that works on messages is given messages. Everything
is asynchronous and belongs to the event loop that runs the program; cancelling a call aborts it and frees what it held.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from radixrt.messages.client import TokenLogprob
from radixrt.messages.parts import ConstraintInfo, TemplateText, Timings, Usage
from radixrt.sampling_params import SamplingParams

__all__ = [
    "Backend",
    "Call",
    "Decision",
    "Delta",
    "Hint",
    "Part",
    "Prompt",
    "Result",
    "SelectMethod",
    "TemplateText",
    "Unsupported",
]

Part = str | Sequence[int] | TemplateText
"""Of a prompt: a user's text, never read as control tokens; token ids; or a template's text. Neighbouring texts are
tokenized as one."""


@dataclass(frozen=True)
class Prompt:
    """What a call goes on from. Token-level backends read `parts`, message-level ones `messages`.

    Attributes:
        parts: adjacent texts of one kind are joined, so that the text between two generated pieces is tokenized as one.
        messages: {"role", "content"} objects; the last may be an open assistant message, which is then to be continued.
        open_message: the last message is open.
    """

    parts: Sequence[Part]
    messages: Sequence[Mapping[str, Any]] | None = None
    open_message: bool = False


@dataclass(frozen=True)
class Hint:
    """What the engine may know about a call's place in its program. Harmless when absent or wrong.

    Attributes:
        program: id of one run of a program.
        branch: id of the branch within it, e.g. "0/2/1".
        fork_len: tokens at the start of the prompt that sibling branches start with too; 0 for none or not known.
        siblings: branches of that fork that are still to send calls, this one included.
        will_continue: another call is likely to go on from this one's output.
    """

    program: str
    branch: str = ""
    fork_len: int = 0
    siblings: int = 1
    will_continue: bool = False


@dataclass(frozen=True)
class Call:
    """One generation.

    Attributes:
        sampling: with the constraint, if any; n is 1 (the runtime makes n calls).
        schema: what the constraint's JSON is read as (a type or a schema); None for text.
        stream: deltas are wanted as they come; otherwise one delta carries everything.
        timeout_s: the call ends with an error after this long; None for no limit.
        tools: definitions as in the OpenAI API, which the model may call. For a backend that works on tokens they are
            in the prompt already, and the constraint in `sampling` holds the calls to them.
        tool_choice: "auto", "required", or the name of the tool that must be called.
    """

    prompt: Prompt
    sampling: SamplingParams
    schema: Any = None
    stream: bool = False
    hint: Hint | None = None
    timeout_s: float | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"


@dataclass(frozen=True)
class Result:
    """The end of a call.

    Attributes:
        text, token_ids: the whole output; token_ids is None where the backend knows none.
        prompt_ids: the prompt's ids; None where the backend knows none.
        finish_reason: "stop", "length" or "abort".
        kept, tail: `text` is what the first `kept` of `token_ids` say, and then `tail`: a stop string or an end token
            is in the ids but not in the text, and may begin inside a token. None: the backend cannot tell, so that the
            text would have to be tokenized again after a stop string.
    """

    text: str
    token_ids: list[int] | None
    prompt_ids: Sequence[int] | None
    finish_reason: str
    usage: Usage
    timings: Timings = field(default_factory=Timings)
    matched_stop: int | str | None = None
    logprobs: list[TokenLogprob] | None = None
    forced_close: bool = False
    constraint: ConstraintInfo | None = None
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    kept: int | None = None
    tail: str = ""


@dataclass(frozen=True)
class Delta:
    """New text of a call; the last one has its result."""

    text: str
    token_ids: list[int] = field(default_factory=list)
    result: Result | None = None


SelectMethod = Literal["token_length_normalized", "greedy", "unconditional_likelihood_normalized"]


@dataclass(frozen=True)
class Decision:
    """Scored choices.

    Attributes:
        choice: index of the one that the method takes.
        logprobs: of each choice: natural logarithm of the probability of its whole text after the prompt.
        scores: what the method compared, higher is better.
        probabilities: softmax of `scores`; sums to 1.
        token_ids: of each choice, as scored: what follows the prompt's first `kept` tokens.
        kept: prompt tokens before the choices; fewer than the prompt's where a boundary token had to be healed.
        prompt_ids: the prompt's ids; None where the backend knows none.
    """

    choice: int
    logprobs: list[float]
    scores: list[float]
    probabilities: list[float]
    token_ids: list[list[int]]
    kept: int
    prompt_ids: list[int] | None
    usage: Usage


class Unsupported(Exception):
    """A backend cannot do what a program asks for; the message names it and what can."""


class Backend(ABC):
    """See the module's docstring.

    Attributes:
        name: for reports and errors.
        tokens: whether it works on token ids.
        dry_run: its answers are placeholders, which observers of real runs pass over.
    """

    name: str
    tokens: bool
    dry_run: bool = False

    @abstractmethod
    def generate(self, call: Call) -> AsyncGenerator[Delta, None]:
        """Sends the call when first awaited. The last delta has `result`; closing early aborts.

        Raises:
            RequestError: the call was refused or failed; EngineError: the engine is gone; Unsupported.
        """

    @abstractmethod
    async def select(self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: Hint | None) -> Decision:
        """Scores each choice exactly, on one shared prefix. Raises as `generate` does."""

    @abstractmethod
    async def chat_template(self) -> Mapping[str, Any] | None:
        """{"templates": {name: Jinja source}, "special_tokens": {name: text}}; None if none is known."""

    @abstractmethod
    async def tokenize(self, parts: Sequence[Part]) -> list[int]:
        """The ids of a prompt. Raises Unsupported where the backend knows none."""

    @abstractmethod
    async def release(self, program: str, branch: str | None = None) -> None:
        """The program, or a branch of it, is done; what it kept may go."""

    @abstractmethod
    async def aclose(self) -> None:
        """Closes what the backend itself opened."""
