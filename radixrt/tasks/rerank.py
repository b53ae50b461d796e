"""Relevance of documents to queries, by one of three kinds of models (`RelevanceInfo.scorer`).

"cosine" embeds each query and each document once. "classifier" and "tokens" write each pair into a prompt, by a
template that renders a message with the role "query" and a message with the role "document", as sentence-transformers
and vLLM do. "classifier" reads the logit of the model's only label. "tokens" reads the log-odds of two tokens; the
sigmoid of the log-odds is the probability of the first token among the two. A text of a pair never writes a control
token of a template. If the template puts the query first, the prompts of a query have the query as their common prefix,
which the radix cache computes once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.client.validation import MAX_ROWS
from radixrt.errors import RequestError, shown
from radixrt.messages.client import (
    ClientRequest,
    EngineReady,
    Input,
    InputRow,
    PairInput,
    RelevanceInfo,
    RequestOutput,
    TextInput,
)
from radixrt.messages.parts import Usage
from radixrt.messages.request import Envelope
from radixrt.messages.wire import Float32Array
from radixrt.tasks.run import activate, check_types, pooled_requests, unit_vectors, usage_of, values_of

QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
"""Names of the prompts that sentence-transformers looks for to embed a query or a document, in this order."""


@dataclass(frozen=True)
class Relevance:
    """Scored pairs of a query and a document.

    Attributes:
        scores: float32 [pairs].
        usage: token counts of all pairs together.
    """

    scores: Float32Array
    usage: Usage


class Relate:
    """A call of the task; see `TaskCall`.

    Args:
        queries, documents: equally many texts, or a single text on one side, which is paired with each text of the
            other side.
        instruction: description of the task, for models whose template has an instruction; None for the model's own
            instruction.
        activation: apply the activation that the model's own files define; False for logits.
        retrieves: an embedding model writes its prompt for queries before queries and its prompt for documents before
            documents; otherwise its default prompt before both.

    Raises:
        RequestError: the model scores no pairs, or an argument is not valid; the error names the argument.
    """

    def __init__(
        self,
        info: EngineReady,
        queries: Sequence[TextInput],
        documents: Sequence[TextInput],
        envelope: Envelope,
        *,
        instruction: str | None = None,
        activation: bool = True,
        retrieves: bool = False,
    ) -> None:
        check_types({"instruction": instruction}, {"instruction": str})
        check_types({"activation": activation}, {"activation": bool}, optional=False)
        _check_numbers(queries, documents)
        self._scorer = info.relevance.scorer
        if self._scorer is None and info.tokenizer_info:
            raise RequestError(
                f"{info.model} scores no pairs of texts. Start the server with a model that does: a reranker (such as "
                "Qwen3-Reranker-0.6B with --score-template qwen3-reranker), an embedding model (such as "
                "Qwen3-Embedding-0.6B, with the modules.json of sentence-transformers) or a sequence classification "
                "model with one label. /v1/decisions scores answers of a generative model",
                param="model",
                code="not_a_scoring_model",
            )
        self._activation = info.relevance.activation if activation else "none"
        self._queries = len(queries)
        if self._scorer in ("classifier", "tokens"):
            request = _paired(info.relevance, queries, documents, envelope, instruction)
        else:  # without a tokenizer, which refuses the texts, too
            request = _separate(info, queries, documents, envelope, instruction, retrieves=retrieves)
        self.requests = [request]

    def answer(self, outputs: Sequence[RequestOutput]) -> Relevance:
        """Convert the values of each pair to a score."""
        values = values_of(self.requests, outputs)
        if self._scorer == "tokens":
            values = values[:, :1] - values[:, 1:]
        if self._scorer == "cosine":
            unit = unit_vectors(values)
            scores: Float32Array = (unit[: self._queries] * unit[self._queries :]).sum(1)
        else:
            scores = activate(values, self._activation)[:, 0]
        return Relevance(scores, usage_of(outputs))


def _paired(
    spec: RelevanceInfo,
    queries: Sequence[TextInput],
    documents: Sequence[TextInput],
    envelope: Envelope,
    instruction: str | None,
) -> ClientRequest:
    """Return the request with a row for each pair."""
    texts = [*queries, *documents]
    told = -1 if instruction is None else len(texts)
    if instruction is not None:
        texts.append(TextInput(instruction, "instruction"))
    count, first = max(len(queries), len(documents)), len(queries)
    pairs = [
        PairInput(0 if len(queries) == 1 else i, first + (0 if len(documents) == 1 else i), told) for i in range(count)
    ]
    if spec.scorer == "classifier":
        return pooled_requests(envelope, "rerank", pairs, "last", texts, MAX_ROWS)[0]
    rows = [InputRow(pair, targets=list(spec.tokens)) for pair in pairs]
    return ClientRequest(envelope, rows, texts=texts, task="rerank")


def _separate(
    info: EngineReady,
    queries: Sequence[TextInput],
    documents: Sequence[TextInput],
    envelope: Envelope,
    instruction: str | None,
    *,
    retrieves: bool,
) -> ClientRequest:
    """Return the request with a row for each text."""
    if instruction is not None:
        raise RequestError(
            "instruction is for templates that have one, and this is an embedding model, whose prompts are texts of "
            "its own",
            param="instruction",
        )
    spec = info.embedding
    default = "" if spec.default_prompt is None else spec.prompts[spec.default_prompt]
    before = [default, default]
    if retrieves:
        before = [
            next((spec.prompts[name] for name in names if name in spec.prompts), default)
            for names in (QUERY_PROMPTS, DOCUMENT_PROMPTS)
        ]
    inputs: list[Input] = []
    for side, given in enumerate((queries, documents)):
        inputs += [TextInput(each.text, each.param, side) for each in given]
    texts = [TextInput(text) for text in before]
    return pooled_requests(envelope, "rerank", inputs, spec.pooling, texts, MAX_ROWS)[0]


def _check_numbers(queries: Sequence[TextInput], documents: Sequence[TextInput]) -> None:
    for name, texts in (("queries", queries), ("documents", documents)):
        if not 1 <= len(texts) < MAX_ROWS:
            raise RequestError(f"{name} must hold 1 to {MAX_ROWS - 1} texts, not {len(texts)}", param=name)
    counts = len(queries), len(documents)
    if counts[0] != counts[1] and 1 not in counts:
        raise RequestError(
            f"documents holds {counts[1]} texts, and queries {counts[0]}: give equally many, or one in one of them",
            param="documents",
        )
    if sum(counts) > MAX_ROWS:
        raise RequestError(f"queries and documents may hold {MAX_ROWS} texts together", param="documents")


def texts_of(given: str | Sequence[str], name: str, *, one: bool = True) -> list[TextInput]:
    """Return a list of texts, or a single text if `one`, as inputs named after the argument.

    Raises:
        RequestError: the argument or a text has a wrong type; the error names the argument.
    """
    if isinstance(given, str) and not one:
        raise RequestError(f"{name} must be a list of texts, not one text", param=name)
    texts = [given] if isinstance(given, str) else given
    if not hasattr(texts, "__iter__"):
        raise RequestError(f"{name} must be a text or a list of texts, not {shown(given)}", param=name)
    inputs = [TextInput(text, f"{name}[{i}]") for i, text in enumerate(texts)]
    for each in inputs:
        if not isinstance(each.text, str):
            raise RequestError(f"{each.param} must be a str, not {shown(each.text)}", param=each.param)
    return inputs


@dataclass(frozen=True)
class RankedDocument:
    """A document of `Engine.rerank`. `index`: position among the documents of the call."""

    index: int
    score: float
    document: str


@dataclass(frozen=True)
class Reranking:
    """Documents in descending order of their relevance to a query.

    Attributes:
        results: documents, the best first; documents with equal scores in the order of the call.
        usage: token counts of all pairs together.
    """

    results: list[RankedDocument]
    usage: Usage


class Rerank:
    """A call of `Engine.rerank`: scores documents for a query, and returns the best `top_n` documents (None: all).

    All other arguments and errors are as for `Relate`.
    """

    def __init__(
        self,
        info: EngineReady,
        query: TextInput,
        documents: Sequence[TextInput],
        envelope: Envelope,
        top_n: int | None = None,
        *,
        instruction: str | None = None,
        activation: bool = True,
    ) -> None:
        if not isinstance(query.text, str):
            raise RequestError(f"query must be a text, not {shown(query.text)}", param="query")
        if top_n is not None and (type(top_n) is not int or top_n < 1):
            raise RequestError(f"top_n must be an integer of at least 1, not {shown(top_n)}", param="top_n")
        self._call = Relate(
            info, [query], documents, envelope, instruction=instruction, activation=activation, retrieves=True
        )
        self._documents = documents
        self._top_n = top_n
        self.requests = self._call.requests

    def answer(self, outputs: Sequence[RequestOutput]) -> Reranking:
        """Sort the documents by their scores."""
        found = self._call.answer(outputs)
        scores = found.scores.tolist()
        best = sorted(range(len(scores)), key=lambda i: -scores[i])[: self._top_n]
        return Reranking([RankedDocument(i, scores[i], self._documents[i].text) for i in best], found.usage)
