"""`DryRun`: a backend that answers every call with a placeholder, and counts prompts as the real one would.

There are two different placeholders for each constraint, both valid: a short one, with empty lists and the first of all
choices, and a longer one, with something in each list and other values where possible. A program that makes the same
calls with both probably does not depend on its values.
"""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from radixrt.constrained.lark_input.syntax import NotTranslated
from radixrt.constrained.productions import EmptyLanguage, Productions, Special, Term
from radixrt.constrained.recognizer import Recognizer, State
from radixrt.constrained.regex import RegexError, parse_regex
from radixrt.constrained.schema import normalize
from radixrt.constraint import Constraint
from radixrt.errors import RequestError
from radixrt.lang.backends.base import Backend, Call, EmbedCall, Prompt, RerankCall
from radixrt.lang.pictures import Picture
from radixrt.messages.client import RequestOutput
from radixrt.messages.images import MAX_KEY, image_keys
from radixrt.messages.parts import Finish, ProgramHint, SelectMethod, TemplateText, Timings, Usage
from radixrt.messages.wire import pack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.tasks.embed import Embedding
from radixrt.tasks.prompts import Part
from radixrt.tasks.rerank import RankedDocument, Reranking
from radixrt.tasks.score import Decision

Variant = Literal[0, 1]

PLAIN = "some text"
LISTED = "1. a first point\n2. a second point\n3. a third point"
OTHER = "another text"
PLACEHOLDER_SIZE = 8
"""Numbers of a vector, since the backend is not asked for their number."""

MAX_STEPS = 200
MAX_CHANGES = 64
MAX_NESTED = 2
"""Maximum depth of filled lists; recursive types have no end."""

_OPENINGS = '{["0123456789-tfn'
"""First characters of JSON values."""

IMAGE = "\ufffc"
"""Character for a picture (OBJECT REPLACEMENT CHARACTER) in the template below."""

ROLES = {
    "templates": {"default": "{% for m in messages %}{{ m.role }}: {% if m.content is string %}{{ m.content }}"
                             "{% else %}{% for part in m.content %}{{ part.text if part.type == 'text' else '\ufffc' }}"
                             "{% endfor %}{% endif %}\n{% endfor %}"
                             "{% if add_generation_prompt %}assistant: {% endif %}"},
    "special_tokens": {},
}  # fmt: skip
"""Chat template for backends that do not report theirs."""


MAX_CALLS = 5_000
MAX_CALLS_OF_A_BRANCH = 200


class TooManyCalls(Exception):
    """The program made more than MAX_CALLS calls, or MAX_CALLS_OF_A_BRANCH in one branch."""


class DryRun(Backend):
    """See the module's docstring.

    Args:
        inner: backend of a real run; provides the template and the tokenizer, never answers.
        variant: index of the placeholder.

    Attributes:
        unit: unit of prompt lengths: "tokens", or "characters" if the backend does not work on tokens.
    """

    tokens = True
    dry_run = True

    def __init__(self, inner: Backend, variant: Variant) -> None:
        self.name = f"dry run {uuid.uuid4().hex}"
        self.unit = "tokens" if inner.tokens else "characters"
        self._inner = inner
        self._variant = variant
        self._calls: Counter[str] = Counter()

    async def generate(self, call: Call) -> AsyncGenerator[RequestOutput, None]:
        self._count(call.hint)
        text = placeholder(call.sampling, self._variant)
        prompt_ids = await self.tokenize(call.prompt.parts, call.prompt.pictures)
        token_ids = await self.tokenize([TemplateText(text)])
        usage = Usage(len(prompt_ids), len(token_ids))
        yield RequestOutput(
            "", text, pack_i32(token_ids), Finish("stop"), usage, prompt_ids=pack_i32(prompt_ids), kept=len(token_ids)
        )

    async def select(
        self, prompt: Prompt, choices: Sequence[str], method: SelectMethod, hint: ProgramHint | None
    ) -> Decision:
        self._count(hint)
        chosen = -self._variant % len(choices)
        prompt_ids = await self.tokenize(prompt.parts, prompt.pictures)
        token_ids = [await self.tokenize([TemplateText(choice)]) for choice in choices]
        even = [1 / len(choices)] * len(choices)
        usage = Usage(len(prompt_ids), sum(map(len, token_ids)))
        kept = len(prompt_ids)
        return Decision(chosen, choices[chosen], even, even, even, token_ids, kept, prompt_ids, usage, Timings())

    async def embed(self, call: EmbedCall) -> Embedding:
        self._count(call.hint)
        vector = np.zeros(call.dimensions or PLACEHOLDER_SIZE, np.float32)
        vector[-self._variant] = 1.0
        tokens = [len(await self.tokenize([text])) for text in call.texts]
        return Embedding(np.tile(vector, (len(call.texts), 1)), Usage(sum(tokens)))

    async def rerank(self, call: RerankCall) -> Reranking:
        """Rank the documents as they are, or in the opposite order; count each text once, without a template."""
        self._count(call.hint)
        tokens = [len(await self.tokenize([text])) for text in (call.query, *call.documents)]
        order = range(len(call.documents))[:: -1 if self._variant else 1]
        scores = np.linspace(1.0, 0.0, len(order)).tolist()
        ranked = [RankedDocument(i, score, call.documents[i]) for i, score in zip(order, scores, strict=True)]
        return Reranking(ranked[: call.top_n], Usage(sum(tokens)))

    async def chat_template(self) -> Mapping[str, Any] | None:
        return await self._inner.chat_template() if self._inner.tokens else ROLES

    async def image_token(self) -> str:
        return await self._inner.image_token() or IMAGE

    async def tokenize(self, parts: Sequence[Part], pictures: Sequence[Picture] = ()) -> list[int]:
        """Token ids; where the real backend has none, code points, and a key for each picture."""
        if self._inner.tokens:
            return await self._inner.tokenize(parts, pictures)
        ids: list[int] = []
        for part in parts:
            text = part.template if isinstance(part, TemplateText) else part
            ids += [ord(char) for char in text] if isinstance(text, str) else text
        keys = [int(image_keys(bytes.fromhex(picture.digest), 1)[0]) for picture in pictures]
        placed = sum(i <= MAX_KEY for i in ids)  # in the ids of an earlier call
        rest = iter(keys[placed:])
        return [next(rest, i) if i == ord(IMAGE) else i for i in ids]

    async def release(self, program: str, branch: str | None = None) -> None:
        """Do nothing: nothing was kept."""

    async def aclose(self) -> None:
        """Do nothing: the owner closes the inner backend."""

    def _count(self, hint: ProgramHint | None) -> None:
        branch = "" if hint is None else hint.branch
        self._calls[branch] += 1
        if self._calls[branch] > MAX_CALLS_OF_A_BRANCH or self._calls.total() > MAX_CALLS:
            raise TooManyCalls


# --- placeholders ---


def placeholder(sampling: SamplingParams, variant: Variant) -> str:
    """Return a text that satisfies the constraint. Without a constraint the text contains no stop string."""
    constraint = sampling.constraint
    if constraint is None or constraint.kind == "structural_tag":
        for text in (LISTED, OTHER) if variant else (PLAIN,):
            if not any(stop in text for stop in sampling.stop):
                return text
        return PLAIN
    if constraint.kind == "choices":
        choices = json.loads(constraint.source)
        return str(choices[-variant])
    try:
        sentences = _Sentences(_productions(constraint))
    except NotTranslated:  # a grammar that only its library can read
        return PLAIN
    if not variant:
        return sentences.shortest()
    return sentences.other() if constraint.kind == "json_schema" else sentences.full()


def _productions(constraint: Constraint) -> Productions:
    """Return the productions of a constraint, as the engine reads the constraint. A constraint that the engine refuses
    is refused by the request's own checks or by the engine itself."""
    try:
        if constraint.kind == "json_schema":
            options = constraint.options
            normal = normalize(
                json.loads(constraint.source),
                on_unsupported=options.on_unsupported,
                closed=bool(options.closed),
                formats=options.formats,
                bounded=options.bounded,
                key_order=options.key_order,
                max_digits=options.max_digits,
            )
            return normal.productions(whitespace=0).prune()
        if constraint.kind == "regex":
            return Productions({"start": Term(parse_regex(constraint.source, search=False))}).prune()
        from radixrt.constrained.user_grammar import read_grammar

        return read_grammar(constraint.source).prune()
    except EmptyLanguage as error:
        raise RequestError(error.message, param=constraint.kind) from None
    except RegexError as error:
        raise RequestError(f"regex: {error}", param="regex") from None


class _Sentences:
    """Sentences of productions without control tokens."""

    def __init__(self, productions: Productions) -> None:
        self._recognizer = Recognizer(productions)

    def shortest(self) -> str:
        return self._closing(self._recognizer.start())

    def full(self) -> str:
        """The shortest text with a value in each list."""
        text, state = "", self._recognizer.start()
        for _ in range(MAX_STEPS):
            rest = self._closing(state)
            at = rest.find("[]") + 1
            if not at:
                return text + rest
            after = self._recognizer.advance(state, rest[:at])
            written = text + rest[:at]
            nested = written.count("[") - written.count("]") > MAX_NESTED
            opened = None if after is None or nested else self._opened(after)
            if after is None or opened is None:
                at += 1
                after = self._recognizer.advance(state, rest[:at])
                if after is None:
                    return text + rest
                text, state = text + rest[:at], after
            else:
                text, state = written + opened[0], opened[1]
        return text + self._closing(state)

    def other(self) -> str:
        """`full`, with every value changed that can be changed alone."""
        text = self.full()
        for _ in range(MAX_CHANGES):
            changed = next((other for other in _changes(json.loads(text)) if self._accepts(other)), None)
            if changed is None:
                break
            text = changed
        return text

    def _opened(self, state: State) -> tuple[str, State] | None:
        for char in _OPENINGS:
            after = self._recognizer.advance(state, char)
            if after is not None:
                return char, after
        return None

    def _accepts(self, text: str) -> bool:
        state = self._recognizer.advance(self._recognizer.start(), text)
        return state is not None and self._recognizer.is_complete(state)

    def _closing(self, state: State) -> str:
        pieces = self._recognizer.closing(state).pieces
        return "".join(piece.text if isinstance(piece, Special) else piece for piece in pieces)


def _changes(value: Any) -> Iterator[str]:
    """JSON texts of the value with one leaf changed; a changed leaf is not changed again."""
    for changed in _changed(value):
        yield json.dumps(changed, ensure_ascii=False, separators=(",", ":"))


def _changed(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for name, inner in value.items():
            for other in _changed(inner):
                yield {**value, name: other}
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            for other in _changed(inner):
                yield [*value[:i], other, *value[i + 1 :]]
    elif value is True:
        yield False
    elif isinstance(value, str) and value == "":
        yield OTHER
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and value < 2:
        yield from (7, 3, 2)
