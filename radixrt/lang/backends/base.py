"""`Backend`: target of a program's calls: an engine in this process, a radixrt server or an OpenAI-compatible server.

A backend that works on tokens gets a prompt as parts and reports the token ids of prompt and output, so that later
prompts are token ids; a backend that works on messages gets messages. All methods are asynchronous and belong to the
event loop that runs the program; cancelling a call aborts it and frees its resources.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radixrt.errors import RadixRTError
from radixrt.lang.pictures import Picture
from radixrt.messages.client import RequestOutput
from radixrt.messages.parts import ProgramHint, SelectMethod
from radixrt.sampling_params import SamplingParams
from radixrt.tasks.embed import Embedding
from radixrt.tasks.prompts import Part
from radixrt.tasks.rerank import Reranking
from radixrt.tasks.score import Decision


@dataclass(frozen=True)
class Prompt:
    """Prompt of a call. Token-level backends read `parts`, message-level ones `messages`.

    Attributes:
        parts: parts of the prompt. Adjacent texts of a kind are joined, so that the text between two generated texts is
            tokenized as a whole.
        messages: {"role", "content"} objects; the last may be an open assistant message, which the output continues.
        open_message: the last message is open.
        pictures: pictures of the prompt, in order. `parts` have the model's image token for each picture in a text of
            the template, and its keys in token ids (`radixrt.messages.client.PartsInput`).
    """

    parts: Sequence[Part]
    messages: Sequence[Mapping[str, Any]] | None = None
    open_message: bool = False
    pictures: Sequence[Picture] = ()


@dataclass(frozen=True)
class Call:
    """One generation.

    Attributes:
        sampling: parameters with the constraint, if any; n is 1 (the runtime makes n calls).
        schema: type or schema of the constraint's JSON; None for text.
        stream: yield increments as they arrive; otherwise yield a single output.
        timeout_s: seconds after which the call ends with an error; None for no limit.
        tools: definitions as in the OpenAI API, which the model may call. For a backend that works on tokens the
            prompt describes them already, and the constraint in `sampling` makes their calls valid.
        tool_choice: "auto", "required", or the name of the tool that must be called.
    """

    prompt: Prompt
    sampling: SamplingParams
    schema: Any = None
    stream: bool = False
    hint: ProgramHint | None = None
    timeout_s: float | None = None
    tools: Sequence[Mapping[str, Any]] = ()
    tool_choice: str = "auto"


@dataclass(frozen=True)
class EmbedCall:
    """Texts to embed, at least one; other attributes: see `radixrt.Engine.embed`."""

    texts: Sequence[str]
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    prompt: str | None = None
    hint: ProgramHint | None = None


@dataclass(frozen=True)
class RerankCall:
    """Documents to rank, at least one; other attributes: see `radixrt.Engine.rerank`."""

    query: str
    documents: Sequence[str]
    top_n: int | None = None
    instruction: str | None = None
    activation: bool = True
    hint: ProgramHint | None = None


class ChatOutput(RequestOutput, frozen=True, kw_only=True):
    """Output of a server that works on messages: without token ids, with tool calls as in the OpenAI API."""

    tool_calls: Sequence[dict[str, Any]] = ()


class Unsupported(RadixRTError):
    """A backend lacks a feature that a program uses; the message names the feature and the backends that have it."""


class Backend(ABC):
    """See the module's docstring.

    Attributes:
        name: name for reports and errors.
        tokens: whether the backend works on token ids.
        dry_run: answers are placeholders, which observers of real runs ignore.
    """

    name: str
    tokens: bool
    dry_run: bool = False

    @abstractmethod
    def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        """Send the call when first awaited, and yield the increments of its output; closing it early aborts the call.

        A backend that works on tokens sets `prompt_ids`, and `kept` and `tail` on the last increment.

        Raises:
            RequestError: the call was refused or failed; EngineError: the engine is dead; Unsupported.
        """

    @abstractmethod
    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: ProgramHint | None
    ) -> Decision:
        """Score each choice exactly, on one shared prefix. Raises as `generate` does.

        A backend that works on messages gives empty lists of scores and of token ids.
        """

    @abstractmethod
    async def embed(self, call: EmbedCall) -> Embedding:
        """Return the vectors of texts, in their order. Raises as `generate` does."""

    @abstractmethod
    async def rerank(self, call: RerankCall) -> Reranking:
        """Return documents by their relevance to a query, the best first. Raises as `generate` does."""

    @abstractmethod
    async def chat_template(self) -> Mapping[str, Any] | None:
        """{"templates": {name: Jinja source}, "special_tokens": {name: text}}; None if there is no template."""

    async def image_token(self) -> str:
        """Text that the chat template writes for a picture; "" for a backend that works on messages.

        Raises:
            Unsupported: the model reads no pictures; the error names the model and the fix.
        """
        raise Unsupported(f"rt.image: {self.name} takes no pictures")

    @abstractmethod
    async def tokenize(self, parts: Sequence[Part], pictures: Sequence[Picture] = ()) -> list[int]:
        """Token ids of a prompt, with the keys of its pictures. Raises Unsupported if the backend does not work on
        tokens."""

    @abstractmethod
    async def release(self, program: str, branch: str | None = None) -> None:
        """Report that a program, or a branch of a program, makes no more calls, so that the cache may evict its
        entries."""

    @abstractmethod
    async def aclose(self) -> None:
        """Close the resources that the backend itself opened."""
