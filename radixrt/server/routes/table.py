"""`ROUTES`: path, handler, body and answers of each route, for the application and for its OpenAPI description."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse

from radixrt.server.answers import service
from radixrt.server.answers.chat import ChatChunk, ChatCompletion
from radixrt.server.answers.completions import Completion, CompletionChunk
from radixrt.server.answers.decisions import Decisions, ScoredChoices
from radixrt.server.answers.messages import CountedTokens, Message, MessageEvent
from radixrt.server.answers.native import Generation
from radixrt.server.answers.pooling import Classification, Embeddings, Ranking, Scores
from radixrt.server.answers.response_types import AnyResponseEvent, InputItems, Response, ResponseDeleted
from radixrt.server.answers.systemone import SystemOneResponse
from radixrt.server.protocol import fields
from radixrt.server.protocol.decisions import decision_decoder
from radixrt.server.protocol.messages_fields import count_tokens_decoder, messages_decoder
from radixrt.server.protocol.response_fields import responses_decoder
from radixrt.server.protocol.systemone import systemone_decoder
from radixrt.server.routes import documentation, management, probes, replicas, responses, tokens, ui
from radixrt.server.routes.chat import chat_completions
from radixrt.server.routes.classification import classification_decoder, classify
from radixrt.server.routes.completions import completions
from radixrt.server.routes.decisions import decisions
from radixrt.server.routes.embeddings import embedding_decoder, embeddings
from radixrt.server.routes.messages import count_tokens, messages
from radixrt.server.routes.native import generate
from radixrt.server.routes.similarity import rerank, rerank_decoder, score, score_decoder
from radixrt.server.routes.systemone import systemone
from radixrt.server.serving.service import Service


@dataclass(frozen=True)
class Route:
    """One route.

    Attributes:
        tag: group of routes that it belongs to.
        summary: its purpose, in a line.
        decoder: the decoder that parses its body; None where it has none.
        answer: type of the body of its answer, which may be a union; None where `media_type` is not JSON, or
            the JSON has any members.
        event: type of the data of each event of its stream; None where it does not stream.
        named: events have names, and none is `[DONE]`.
        query: its query parameters, with their schemas.
        example: a body.
        media_type: of the answer, or the types that it can have.
        unavailable: body of a 503 of its own form.
        aliases: other paths under which it is served.
        takes_forms: its body may be a form with the JSON in a part and files in others (`radixrt.server.http.forms`).
        for_clients: what a client of the engine gets, which accepts `radixrt.messages.http.CONTENT_TYPE`; None where
            the answer is the same.
    """

    method: str
    path: str
    handler: Callable[[Service, Request], Awaitable[HttpResponse]]
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
    aliases: tuple[str, ...] = ()
    takes_forms: bool = False
    for_clients: str | None = None

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths under which it is served."""
        return (self.path, *self.aliases)


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

ROUTES: tuple[Route, ...] = (
    Route(
        "POST", "/v1/chat/completions", chat_completions, CHAT, "OpenAI's chat completions", fields.chat_decoder,
        ChatCompletion, ChatChunk, example={"messages": HELLO, "max_tokens": 32},
    ),
    Route(
        "POST", "/v1/responses", responses.create_response, CHAT, "OpenAI's Responses API: create a response",
        responses_decoder, Response, AnyResponseEvent, named=True, example={"input": "Hello!", "max_output_tokens": 32},
    ),
    Route("GET", "/v1/responses/{response_id}", responses.get_response, CHAT, "A stored response", answer=Response),
    Route(
        "DELETE", "/v1/responses/{response_id}", responses.delete_response, CHAT,
        "Delete a stored response, and abort it if it is being generated", answer=ResponseDeleted,
    ),
    Route(
        "POST", "/v1/responses/{response_id}/cancel", responses.cancel_response, CHAT,
        "Cancel a response that is being generated", answer=Response,
    ),
    Route(
        "GET", "/v1/responses/{response_id}/input_items", responses.list_input_items, CHAT,
        "Items of a stored response's input", answer=InputItems, query=_PAGE,
    ),
    Route(
        "POST", "/v1/messages", messages, CHAT, "Anthropic's Messages API", messages_decoder, Message, MessageEvent,
        named=True, example={"messages": HELLO, "max_tokens": 32},
    ),
    Route(
        "POST", "/v1/messages/count_tokens", count_tokens, CHAT, "Count the tokens of a message's prompt",
        count_tokens_decoder, CountedTokens, example={"messages": HELLO},
    ),
    Route(
        "POST", "/v1/completions", completions, GENERATION, "OpenAI's text completions", fields.completion_decoder,
        Completion, CompletionChunk, example={"prompt": "The capital of France is", "max_tokens": 8},
    ),
    Route(
        "POST", "/generate", generate, GENERATION,
        "radixrt's own route for generation: an object for one completion, else a list", fields.native_decoder,
        Generation | list[Generation], Generation,
        example={"text": "The capital of France is", "sampling_params": {"max_new_tokens": 8}},
        for_clients="For rt.Endpoint, whose body is another: the engine's outputs, in frames.",
    ),
    Route(
        "POST", "/v1/decisions", decisions, GENERATION,
        "Probabilities of given answers to questions, or of texts that may follow a prompt", decision_decoder,
        Decisions | ScoredChoices, example={"text": "The capital of France is", "choices": [" Paris", " London"]},
    ),
    Route(
        "POST", "/v1/systemone", systemone, GENERATION,
        "TypeSafe's System One API: probabilities of the answers to typed questions about a state", systemone_decoder,
        SystemOneResponse,
        example={
            "state": "I was charged twice.",
            "questions": {"billing": {"type": "noul", "instructions": "Is this about billing?"}},
        },
        takes_forms=True,
    ),
    Route(
        "POST", "/v1/embeddings", embeddings, POOLING, "Vectors of texts", embedding_decoder, Embeddings,
        example={"input": ["a text", "another"]},
    ),
    Route(
        "POST", "/v1/rerank", rerank, POOLING, "Documents in the order of their relevance to a query", rerank_decoder,
        Ranking, example={"query": "capital of France", "documents": ["Paris", "London"]},
        aliases=("/rerank", "/v2/rerank"),
    ),
    Route(
        "POST", "/v1/score", score, POOLING, "Relevance of documents to queries", score_decoder, Scores,
        example={"text_1": "capital of France", "text_2": ["Paris", "London"]}, aliases=("/score",),
    ),
    Route(
        "POST", "/classify", classify, POOLING, "Scores of the labels of a classification model",
        classification_decoder, Classification, example={"input": "The food was cold."}, aliases=("/v1/classify",),
    ),
    Route(
        "POST", "/tokenize", tokens.tokenize, TOKENS, "Token ids of a prompt or a conversation",
        tokens.tokenize_decoder, service.Tokens, example={"prompt": "Hello!"},
    ),
    Route(
        "POST", "/detokenize", tokens.detokenize, TOKENS, "Text of token ids", tokens.detokenize_decoder,
        service.Detokenized, example={"tokens": [1, 2, 3]},
    ),
    Route(
        "GET", "/tokenizer_info", tokens.get_tokenizer_info, TOKENS,
        "The tokenizer's configuration, with the chat template in use",
    ),
    Route(
        "GET", "/chat_template", tokens.chat_template, TOKENS, "The chat templates; null without one",
        answer=service.ChatTemplates | None,
    ),
    Route(
        "GET", "/v1/models", management.list_models, MANAGEMENT, "The models that are served", answer=service.ModelList,
        for_clients="For rt.Endpoint: properties of the engine and its model.",
    ),
    Route("GET", "/v1/models/{model:path}", management.get_model, MANAGEMENT, "One model", answer=service.ModelCard),
    Route(
        "GET", "/health", probes.health, MANAGEMENT, "Whether the server is alive", answer=service.Health, query=_DEEP,
        unavailable=service.Unavailable,
    ),
    Route(
        "GET", "/ready", probes.ready, MANAGEMENT, "Whether a request sent now is served at once",
        answer=service.Health, unavailable=service.Unavailable,
    ),
    Route("GET", "/metrics", management.metrics, MANAGEMENT, "Metrics for Prometheus", media_type="text/plain"),
    Route("GET", "/version", management.get_version, MANAGEMENT, "Version of radixrt", answer=service.Version),
    Route(
        "GET", "/server_info", management.server_info, MANAGEMENT, "The model, its weights and the sizes of its pools",
        answer=service.ServerInfo, aliases=("/get_server_info",),
    ),
    Route(
        "POST", "/abort", management.abort, MANAGEMENT, "Abort a request by its id, or all requests",
        fields.abort_decoder, service.Aborted, example={"rid": "my-request"},
    ),
    Route(
        "POST", "/release", management.release, MANAGEMENT, "A program, or one branch of it, makes no more calls",
        fields.release_decoder, service.Released, example={"program": "my-program"},
    ),
    Route(
        "POST", "/flush_cache", management.flush_cache, MANAGEMENT,
        "Empty the prefix cache, except for running requests", answer=service.Flushed,
    ),
    Route(
        "POST", "/forget", management.forget, MANAGEMENT,
        "Drop the cached prompts of an API key, a group of keys or a salt from all memory and from disk",
        fields.forget_decoder, service.Forgotten, example={"key": "alice"},
    ),
    Route(
        "GET", "/replicas", replicas.list_replicas, MANAGEMENT, "The engine's replicas and their load",
        answer=service.Replicas,
    ),
    Route(
        "POST", "/replicas/add", replicas.add_replica, MANAGEMENT, "Start another replica",
        answer=service.ReplicaChanged,
    ),
    Route(
        "POST", "/replicas/drain", replicas.drain_replica, MANAGEMENT, "Give a replica no new requests, or some again",
        replicas.drain_decoder, service.ReplicaChanged, example={"replica": 1},
    ),
    Route(
        "POST", "/replicas/remove", replicas.remove_replica, MANAGEMENT, "Drain a replica, then stop it",
        replicas.remove_decoder, service.ReplicaChanged, example={"replica": 1},
    ),
    Route("GET", "/openapi.json", documentation.openapi, MANAGEMENT, "This description"),
    Route("GET", "/docs", documentation.docs, MANAGEMENT, "This description as a page", media_type="text/html"),
    Route(
        "GET", "/docs/{file}", documentation.docs_file, MANAGEMENT, "Script and style of the page",
        media_type=("text/javascript", "text/css"),
    ),
    Route("GET", "/ui", ui.ui_page, MANAGEMENT, "The live page of operators", media_type="text/html"),
    Route(
        "GET", "/ui/events", ui.ui_events, MANAGEMENT, "Feed of that page: a JSON object a line, without an end",
        media_type="application/x-ndjson", query={"replica": {"type": "integer"}},
    ),
    Route(
        "GET", "/ui/text", ui.ui_text, MANAGEMENT, "Text of a cached prefix's node", answer=service.NodeText,
        query={"node": {"type": "integer"}, "replica": {"type": "integer"}},
    ),
    Route(
        "GET", "/ui/node", ui.ui_node, MANAGEMENT, "Tokens of a node's prefix in host memory and files",
        answer=service.NodeTiers, query={"node": {"type": "integer"}, "replica": {"type": "integer"}},
    ),
    Route(
        "GET", "/ui/{file}", ui.ui_file, MANAGEMENT, "Scripts and style of that page",
        media_type=("text/javascript", "text/css"),
    ),
)  # fmt: skip
