"""Relevance of documents to queries: one interface, `Scorer`, and an implementation for each kind of model.

`CosineScorer` embeds queries and documents, each once. `ClassifierScorer` and `TokenScorer` write each pair into one
prompt, by a template that renders a message with the role "query" and one with the role "document" (sentence-
transformers and vLLM have it so), and read the logit of the model's one label, or the log-odds of two tokens. A text of
a pair never writes a control token of a template. Where the template puts the query first, the prompts of one query
share it as their prefix, and the radix cache computes it once.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from radixrt.errors import ModelLoadError, RequestError
from radixrt.messages.client import RelevanceReq
from radixrt.messages.parts import ChatPrompt
from radixrt.messages.request import Envelope, LogprobRead, Request, Row
from radixrt.messages.wire import Float32Array, pack_f32, pack_i32
from radixrt.models.embedding_spec import EmbeddingSpec
from radixrt.models.relevance_spec import RelevanceSpec
from radixrt.tokenizer.chat_template import ChatTemplate
from radixrt.tokenizer.pooled_state import (
    MAX_PROMPTS,
    PooledState,
    activate,
    check_finite,
    pooled_request,
    unit_vectors,
)
from radixrt.tokenizer.prompt_encoder import PromptEncoder
from radixrt.tokenizer.tokenizer import Tokenizer

PAIR_ROLES = (re.compile("""['"]query['"]"""), re.compile("""['"]document['"]"""))
"""Names of the roles of a pair, as the source of a template has them."""

QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the prompts that sentence-transformers looks for to embed a query or a document, in this order."""


class Scorer(ABC):
    """Scores pairs of texts by one kind of model."""

    @abstractmethod
    def tokenize(self, req: RelevanceReq) -> Request:
        """Encode the texts of a request; raises RequestError naming the text."""

    @abstractmethod
    def scores(self, req: RelevanceReq, values: Float32Array) -> Float32Array:
        """Convert what the model computed for `tokenize`'s request to a score for each pair."""


class CosineScorer(Scorer):
    """Cosine of the vectors of an embedding model."""

    def __init__(self, prompts: PromptEncoder, spec: EmbeddingSpec) -> None:
        self._prompts = prompts
        self._spec = spec

    def tokenize(self, req: RelevanceReq) -> Request:
        if req.instruction is not None:
            raise _no_instruction("an embedding model, whose prompts are texts of its own")
        before_query, before_document = self._before(req)
        encoded = [
            *self._prompts.texts(req.queries, "queries", before_query),
            *self._prompts.texts(req.documents, "documents", before_document),
        ]
        return pooled_request(req, encoded, self._spec.pooling)

    def scores(self, req: RelevanceReq, values: Float32Array) -> Float32Array:
        queries = len(req.queries)
        unit = unit_vectors(values.reshape(queries + len(req.documents), -1))
        cosines: Float32Array = (unit[:queries] * unit[queries:]).sum(1)
        return cosines

    def _before(self, req: RelevanceReq) -> tuple[str, str]:
        """Return the prompts before queries and before documents."""
        prompts = self._spec.prompts
        default = "" if prompts.default is None else prompts.by_name[prompts.default]
        if not req.retrieves:
            return default, default
        before = [
            next((prompts.by_name[name] for name in names if name in prompts.by_name), default)
            for names in (QUERY_PROMPTS, DOCUMENT_PROMPTS)
        ]
        return before[0], before[1]


class PairEncoder:
    """Writes each pair of a request into one prompt.

    Args:
        template: None for the tokenizer's own encoding of a pair.
    """

    def __init__(self, prompts: PromptEncoder, spec: RelevanceSpec, template: ChatTemplate | None) -> None:
        self._prompts = prompts
        self._spec = spec
        self._template = template

    def encode(self, req: RelevanceReq) -> list[bytes]:
        """Encode a request's pairs as int32 columns; raises RequestError naming the text."""
        named = [
            [(text, f"{field}[{i}]") for i, text in enumerate(texts)] * (count if len(texts) == 1 else 1)
            for field, texts, count in (
                ("queries", req.queries, len(req.documents)),
                ("documents", req.documents, len(req.queries)),
            )
        ]
        return [self._pair(req, *query, *document) for query, document in zip(*named, strict=True)]

    def _pair(self, req: RelevanceReq, query: str, query_name: str, document: str, name: str) -> bytes:
        if self._template is None:
            if req.instruction is not None:
                raise _no_instruction("a classifier without a template of pairs (--score-template)")
            return self._prompts.pair(query, query_name, document, name)
        instruction = self._spec.instruction if req.instruction is None else req.instruction
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        if instruction is not None:
            messages.insert(0, {"role": "system", "content": instruction})
        chat = ChatPrompt(
            msgspec.json.encode(messages),
            add_generation_prompt=self._spec.add_generation_prompt,
            template_kwargs=msgspec.json.encode({"instruction": instruction}),
        )
        return self._prompts.rendered(chat, self._template, name)


class ClassifierScorer(Scorer):
    """Score of a pair by a sequence classification model with one label."""

    def __init__(self, pairs: PairEncoder, spec: RelevanceSpec) -> None:
        self._pairs = pairs
        self._activation = spec.activation

    def tokenize(self, req: RelevanceReq) -> Request:
        return pooled_request(req, self._pairs.encode(req), "last")

    def scores(self, req: RelevanceReq, values: Float32Array) -> Float32Array:
        return activate(values.reshape(-1, 1), self._activation if req.activation else "none")[:, 0]


class TokenScorer(Scorer):
    """Log-odds of two tokens after a pair, by a causal model; the sigmoid of it is the probability of the first token
    among the two.

    Args:
        tokens: ids of the tokens that stand for relevant and irrelevant.
    """

    def __init__(self, pairs: PairEncoder, spec: RelevanceSpec, tokens: tuple[int, int]) -> None:
        self._pairs = pairs
        self._activation = spec.activation
        self._tokens = tokens

    def tokenize(self, req: RelevanceReq) -> Request:
        encoded = self._pairs.encode(req)
        targets = pack_i32(self._tokens)
        rows = [Row(ids, logprobs=LogprobRead(pack_i32([len(ids) // 4 - 1] * 2), targets)) for ids in encoded]
        return Request(Envelope(req.rid, req.priority, req.cache_salt, req.timeout_s, req.program), rows)

    def scores(self, req: RelevanceReq, values: Float32Array) -> Float32Array:
        relevant, irrelevant = values.reshape(-1, 2).T
        odds = (relevant - irrelevant)[:, None]
        return activate(odds, self._activation if req.activation else "none")[:, 0]


def _no_instruction(kind: str) -> RequestError:
    return RequestError(f"instruction is for templates that have one, and this is {kind}", param="instruction")


def make_scorer(
    spec: RelevanceSpec, embedding: EmbeddingSpec, tokenizer: Tokenizer, prompts: PromptEncoder
) -> Scorer | None:
    """Create the scorer of a model; None for a model that scores no pairs.

    Raises:
        ModelLoadError: a causal reranker lacks a template, or the tokens of its answers.
    """
    if spec.scorer is None or tokenizer.is_none:
        return None
    if spec.scorer == "cosine":
        return CosineScorer(prompts, embedding)
    template = _pair_template(spec, tokenizer)
    pairs = PairEncoder(prompts, spec, template)
    if spec.scorer == "classifier":
        return ClassifierScorer(pairs, spec)
    if template is None:
        raise ModelLoadError(
            "this reranker has no chat template with the roles query and document; name one with score_template "
            "(--score-template), e.g. qwen3-reranker"
        )
    tokens = spec.tokens or (_token(tokenizer, "yes"), _token(tokenizer, "no"))
    return TokenScorer(pairs, spec, tokens)


def _pair_template(spec: RelevanceSpec, tokenizer: Tokenizer) -> ChatTemplate | None:
    """Return the template of the option, or the model's own if it renders the roles of a pair."""
    if spec.template is not None:
        return ChatTemplate({"default": spec.template}, tokenizer.special_tokens)
    own = tokenizer.chat_template
    source = "" if own is None else own.sources.get("default", "")
    return own if all(role.search(source) for role in PAIR_ROLES) else None


def _token(tokenizer: Tokenizer, word: str) -> int:
    ids = tokenizer.encode(word, add_special_tokens=False)
    if len(ids) != 1:
        raise ModelLoadError(f"score_template is for models that answer yes or no, and {word!r} is not one token here")
    return ids[0]


class RelevanceState(PooledState):
    """Converts what the model computed for the pairs of a request to their scores."""

    def __init__(self, req: RelevanceReq, scorer: Scorer) -> None:
        super().__init__(req.rid)
        self._req = req
        self._scorer = scorer
        self._tokenized = scorer.tokenize(req)

    def request(self) -> Request:
        return self._tokenized

    def read(self, values: Float32Array) -> Mapping[str, Any]:
        return {"pooled_scores": pack_f32(np.asarray(self._scorer.scores(self._req, check_finite(values))))}


def check_pairs(req: RelevanceReq) -> None:
    """Check the numbers of queries and documents; raises RequestError naming the field."""
    for name, texts in (("queries", req.queries), ("documents", req.documents)):
        _check_number(texts, name)
    counts = len(req.queries), len(req.documents)
    if counts[0] != counts[1] and 1 not in counts:
        raise RequestError(
            f"documents holds {counts[1]} texts, and queries {counts[0]}: give equally many, or one in one of them",
            param="documents",
        )
    if sum(counts) > MAX_PROMPTS:
        raise RequestError(f"queries and documents may hold {MAX_PROMPTS} texts together", param="documents")


def _check_number(texts: Sequence[str], name: str) -> None:
    if not 1 <= len(texts) < MAX_PROMPTS:
        raise RequestError(f"{name} must hold 1 to {MAX_PROMPTS - 1} texts, not {len(texts)}", param=name)
