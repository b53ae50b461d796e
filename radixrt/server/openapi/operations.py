"""`OPERATIONS`: the purpose, body and answers of each route, for the OpenAPI description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from radixrt.server.openapi import answer_types as answers
from radixrt.server.openapi import chat_types as chats
from radixrt.server.openapi import event_types as events
from radixrt.server.openapi import pooling_types as pooling
from radixrt.server.openapi import service_types as service
from radixrt.server.protocol.decisions import decision_decoder
from radixrt.server.protocol.fields import (
    abort_decoder,
    chat_decoder,
    completion_decoder,
    native_decoder,
    release_decoder,
)
from radixrt.server.protocol.messages_fields import count_tokens_decoder, messages_decoder
from radixrt.server.protocol.response_fields import responses_decoder
from radixrt.server.routes.classification import classification_decoder
from radixrt.server.routes.embeddings import embedding_decoder
from radixrt.server.routes.replicas import drain_decoder, remove_decoder
from radixrt.server.routes.similarity import rerank_decoder, score_decoder
from radixrt.server.routes.tokens import detokenize_decoder, tokenize_decoder


@dataclass(frozen=True)
class Operation:
    """Description of one route.

    Attributes:
        tag: group of routes that it belongs to.
        summary: its purpose, in a line.
        decoder: the decoder that parses its body; None where it has none.
        answer: type of the body of its answer, or several of which it is one; None where `media_type` is not JSON, or
            the JSON has any members.
        event: type of the data of each event of its stream; None where it does not stream.
        named: events have names, and none is `[DONE]`.
        query: its query parameters, with their schemas.
        example: a body.
        media_type: of the answer, or the types that it can have.
        unavailable: body of a 503 of its own form.
    """

    tag: str
    summary: str
    decoder: msgspec.json.Decoder[Any] | None = None
    answer: Any = None
    event: Any = None
    named: bool = False
    query: Mapping[str, dict[str, Any]] = field(default_factory=dict)
    example: dict[str, Any] | None = None
    media_type: str | tuple[str, ...] = "application/json"
    unavailable: Any = None


CHAT, GENERATION, POOLING, TOKENS, MANAGEMENT = "Chat", "Generation", "Embeddings and scores", "Tokens", "Management"
TAGS = (CHAT, GENERATION, POOLING, TOKENS, MANAGEMENT)

HELLO = [{"role": "user", "content": "Hello!"}]
_DEEP: dict[str, dict[str, Any]] = {
    "deep": {"type": "string", "description": "1: take a token from the model before answering"}
}
_PAGE: dict[str, dict[str, Any]] = {
    "after": {"type": "string", "description": "id of the item after which the page begins"},
    "limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20},
    "order": {"enum": ["asc", "desc"], "default": "desc"},
}

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        CHAT, "OpenAI's chat completions", chat_decoder, chats.ChatCompletion, chats.ChatChunk,
        example={"messages": HELLO, "max_tokens": 32},
    ),
    ("POST", "/v1/responses"): Operation(
        CHAT, "OpenAI's Responses API: create a response", responses_decoder, chats.Response, events.ResponseEvent,
        named=True, example={"input": "Hello!", "max_output_tokens": 32},
    ),
    ("GET", "/v1/responses/{response_id}"): Operation(CHAT, "A stored response", answer=chats.Response),
    ("DELETE", "/v1/responses/{response_id}"): Operation(
        CHAT, "Delete a stored response, and abort it if it is being generated", answer=chats.ResponseDeleted
    ),
    ("POST", "/v1/responses/{response_id}/cancel"): Operation(
        CHAT, "Cancel a response that is being generated", answer=chats.Response
    ),
    ("GET", "/v1/responses/{response_id}/input_items"): Operation(
        CHAT, "Items of a stored response's input", answer=chats.InputItems, query=_PAGE
    ),
    ("POST", "/v1/messages"): Operation(
        CHAT, "Anthropic's Messages API", messages_decoder, chats.Message, events.MessageEvent, named=True,
        example={"messages": HELLO, "max_tokens": 32},
    ),
    ("POST", "/v1/messages/count_tokens"): Operation(
        CHAT, "Count the tokens of a message's prompt", count_tokens_decoder, chats.CountedTokens,
        example={"messages": HELLO},
    ),
    ("POST", "/v1/completions"): Operation(
        GENERATION, "OpenAI's text completions", completion_decoder, answers.Completion, answers.Completion,
        example={"prompt": "The capital of France is", "max_tokens": 8},
    ),
    ("POST", "/generate"): Operation(
        GENERATION, "radixrt's own route for generation: an object for one completion, else a list", native_decoder,
        answers.Generation | list[answers.Generation], answers.Generation,
        example={"text": "The capital of France is", "sampling_params": {"max_new_tokens": 8}},
    ),
    ("POST", "/v1/decisions"): Operation(
        GENERATION, "Probabilities of given answers to questions, or of texts that may follow a prompt",
        decision_decoder, (answers.Decisions, answers.ScoredChoices),
        example={"text": "The capital of France is", "choices": [" Paris", " London"]},
    ),
    ("POST", "/v1/embeddings"): Operation(
        POOLING, "Vectors of texts", embedding_decoder, pooling.Embeddings, example={"input": ["a text", "another"]}
    ),
    ("POST", "/v1/rerank"): Operation(
        POOLING, "Documents in the order of their relevance to a query", rerank_decoder, pooling.Ranking,
        example={"query": "capital of France", "documents": ["Paris", "London"]},
    ),
    ("POST", "/v1/score"): Operation(
        POOLING, "Relevance of documents to queries", score_decoder, pooling.Scores,
        example={"text_1": "capital of France", "text_2": ["Paris", "London"]},
    ),
    ("POST", "/classify"): Operation(
        POOLING, "Scores of the labels of a classification model", classification_decoder, pooling.Classification,
        example={"input": "The food was cold."},
    ),
    ("POST", "/tokenize"): Operation(
        TOKENS, "Token ids of a prompt or a conversation", tokenize_decoder, service.Tokens,
        example={"prompt": "Hello!"},
    ),
    ("POST", "/detokenize"): Operation(
        TOKENS, "Text of token ids", detokenize_decoder, service.Detokenized, example={"tokens": [1, 2, 3]}
    ),
    ("GET", "/tokenizer_info"): Operation(TOKENS, "The tokenizer's configuration, with the chat template in use"),
    ("GET", "/chat_template"): Operation(
        TOKENS, "The chat templates; null without one", answer=service.ChatTemplates | None
    ),
    ("GET", "/v1/models"): Operation(MANAGEMENT, "The models that are served", answer=service.ModelList),
    ("GET", "/v1/models/{model:path}"): Operation(MANAGEMENT, "One model", answer=service.ModelCard),
    ("GET", "/health"): Operation(
        MANAGEMENT, "Whether the server is alive", answer=service.Health, query=_DEEP, unavailable=service.Unavailable
    ),
    ("GET", "/ready"): Operation(
        MANAGEMENT, "Whether a request sent now is served at once", answer=service.Health,
        unavailable=service.Unavailable,
    ),
    ("GET", "/metrics"): Operation(MANAGEMENT, "Metrics for Prometheus", media_type="text/plain"),
    ("GET", "/version"): Operation(MANAGEMENT, "Version of radixrt", answer=service.Version),
    ("POST", "/abort"): Operation(
        MANAGEMENT, "Abort a request by its id, or all requests", abort_decoder, service.Aborted,
        example={"rid": "my-request"},
    ),
    ("POST", "/release"): Operation(
        MANAGEMENT, "A program, or one branch of it, makes no more calls", release_decoder, service.Released,
        example={"program": "my-program"},
    ),
    ("POST", "/flush_cache"): Operation(
        MANAGEMENT, "Empty the prefix cache, except for running requests", answer=service.Flushed
    ),
    ("GET", "/replicas"): Operation(MANAGEMENT, "The engine's replicas and their load", answer=service.Replicas),
    ("POST", "/replicas/add"): Operation(MANAGEMENT, "Start another replica", answer=service.ReplicaChanged),
    ("POST", "/replicas/drain"): Operation(
        MANAGEMENT, "Give a replica no new requests, or some again", drain_decoder, service.ReplicaChanged,
        example={"replica": 1},
    ),
    ("POST", "/replicas/remove"): Operation(
        MANAGEMENT, "Drain a replica, then stop it", remove_decoder, service.ReplicaChanged, example={"replica": 1}
    ),
    ("GET", "/openapi.json"): Operation(MANAGEMENT, "This description"),
    ("GET", "/docs"): Operation(MANAGEMENT, "This description as a page", media_type="text/html"),
    ("GET", "/docs/{file}"): Operation(
        MANAGEMENT, "Script and style of the page", media_type=("text/javascript", "text/css")
    ),
    ("GET", "/ui"): Operation(MANAGEMENT, "The live page of operators", media_type="text/html"),
    ("GET", "/ui/events"): Operation(
        MANAGEMENT, "Feed of that page: a JSON object a line, without an end", media_type="application/x-ndjson",
        query={"replica": {"type": "integer"}},
    ),
    ("GET", "/ui/text"): Operation(
        MANAGEMENT, "Text of a cached prefix's node", answer=service.NodeText,
        query={"node": {"type": "integer"}, "replica": {"type": "integer"}},
    ),
    ("GET", "/ui/{file}"): Operation(
        MANAGEMENT, "Scripts and style of that page", media_type=("text/javascript", "text/css")
    ),
}  # fmt: skip

ALIASES = {
    "/rerank": "/v1/rerank",
    "/v2/rerank": "/v1/rerank",
    "/score": "/v1/score",
    "/v1/classify": "/classify",
}
"""Paths that are served as another one is."""

OPERATIONS |= {("POST", alias): OPERATIONS["POST", path] for alias, path in ALIASES.items()}
