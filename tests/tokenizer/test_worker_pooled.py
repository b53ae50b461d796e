"""Embedding, classification and relevance requests in the tokenizer process: what is refused, and by which name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from radixrt.client.validation import MAX_ROWS, check_request
from radixrt.errors import RequestError
from radixrt.messages.client import EngineReady
from radixrt.messages.parts import Finish, Usage
from radixrt.messages.request import Envelope, Request
from radixrt.messages.scheduler import SchedulerReady, TokenBatch, TokenDelta
from radixrt.messages.wire import unpack_i32
from radixrt.models.classifier_spec import ClassifierSpec
from radixrt.models.embedding_spec import EmbeddingSpec
from radixrt.models.model_tasks import ModelTasks
from radixrt.models.relevance_spec import RelevanceSpec
from radixrt.models.sentence_transformers import Prompts
from radixrt.tasks.classify import Classify
from radixrt.tasks.embed import Embed
from radixrt.tasks.prompts import inputs_of
from radixrt.tasks.rerank import Relate, texts_of
from radixrt.tasks.run import TaskCall
from radixrt.tokenizer.chat_template import ChatTemplate
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.requests import hidden, scores
from tests.tokenizer.worker_bench import Bench

PAIR = "<|im_start|>{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ instruction }}"
EMBEDDING = EmbeddingSpec("mean", False, 4, is_declared=True, prompts=Prompts({"query": "Find: "}, None))
TASKS = {
    "embeds": ModelTasks(EMBEDDING, relevance=RelevanceSpec("cosine")),
    "classifies": ModelTasks(EmbeddingSpec(generates=False), ClassifierSpec(("a", "b"), "softmax")),
    "scores": ModelTasks(
        EmbeddingSpec(generates=False), ClassifierSpec(("a",), "none"), RelevanceSpec("classifier", template=PAIR)
    ),
    "pairs": ModelTasks(EmbeddingSpec(generates=False), ClassifierSpec(("a",), "none"), RelevanceSpec("classifier")),
    "answers": ModelTasks(relevance=RelevanceSpec("tokens", "sigmoid", (5, 6), PAIR, "the task")),
}


@pytest.fixture
def start(tokenizer: Tokenizer) -> Callable[[str], Bench]:
    return lambda kind: Bench(tokenizer, tasks=TASKS[kind])


Make = Callable[[EngineReady], TaskCall[Any]]
"""Makes a call of a task for an engine."""


def embeds(prompts: list[str | list[int]], **options: Any) -> Make:
    return lambda info: Embed(info, inputs_of(prompts, "prompts"), Envelope("r"), at_once=MAX_ROWS, **options)


def classifies(prompts: list[str | list[int]]) -> Make:
    return lambda info: Classify(info, inputs_of(prompts, "prompts"), Envelope("r"), at_once=MAX_ROWS)


def relates(queries: list[str], documents: list[str], instruction: str | None = None) -> Make:
    sides = texts_of(queries, "queries"), texts_of(documents, "documents")
    return lambda info: Relate(info, *sides, Envelope("r"), instruction=instruction)


def made(bench: Bench, make: Make) -> TaskCall[Any]:
    """The call for the engine of which the tokenizer tells."""
    bench.handle(SchedulerReady(1000, 8, "cpu", "float32"))
    info = bench.main.recv()
    assert isinstance(info, EngineReady)
    call = make(info)
    check_request(call.requests[0])
    return call


@pytest.mark.parametrize(
    ("kind", "make", "param", "code"),
    [
        ("embeds", embeds([]), "prompts", None),
        ("embeds", embeds(["a"], prompt_name="passage"), "prompt_name", None),
        ("embeds", embeds(["a"], prompt_name="query", prompt="b"), "prompt_name", None),
        ("embeds", embeds([[1]], prompt_name="query"), "prompt_name", None),
        ("embeds", embeds([[1]], prompt="b"), "prompt", None),
        ("embeds", classifies(["a"]), "model", "not_a_classifier"),
        ("classifies", classifies([]), "prompts", None),
        ("classifies", classifies(["a", ""]), "prompts[1]", None),
        ("classifies", classifies([[10**6]]), "prompts[0]", None),
        ("classifies", embeds(["a"]), "model", "not_an_embedding_model"),
        ("classifies", relates(["a"], ["b"]), "model", "not_a_scoring_model"),
        ("embeds", relates([], ["b"]), "queries", None),
        ("embeds", relates(["a"], []), "documents", None),
        ("embeds", relates(["a"] * 2, ["b"] * 3), "documents", None),
        ("embeds", relates(["a"] * 1025, ["b"] * 1025), "documents", None),
        ("embeds", relates(["a"], ["b", ""]), "documents[1]", None),
        ("embeds", relates(["a"], ["b"], "find"), "instruction", None),
        ("pairs", relates(["a"], ["b"], "find"), "instruction", None),
        ("embeds", relates(["a"], ["b" * 9999]), "documents[0]", "context_length_exceeded"),
        ("scores", relates(["a"], ["b", "c" * 9999]), "documents[1]", "context_length_exceeded"),
        ("answers", relates(["a"], ["b", "c" * 9999]), "documents[1]", "context_length_exceeded"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_is_wrong_is_named(
    start: Callable[[str], Bench], kind: str, make: Make, param: str, code: str | None
) -> None:
    bench = start(kind)
    try:
        error: Any = bench.refused(made(bench, make).requests[0])
    except RequestError as refusal:
        error = refusal
    assert (error.param, error.code, error.status) == (param, code, 400)


def scheduled(bench: Bench, make: Make) -> Any:
    bench.call = made(bench, make)
    bench.handle(bench.call.requests[0])
    bench.last_sent = bench.scheduler.recv()
    return bench.last_sent


def answer(bench: Bench, values: list[float]) -> Any:
    found = hidden(values) if bench.last_sent.rows[0].hidden is not None else scores(values)
    bench.handle(TokenBatch([TokenDelta("r", b"", Finish("stop"), usage=Usage(3), values=found)]))
    (output,) = bench.deltas()
    return bench.call.answer([output])


def prompts(sent: Request) -> list[bytes]:
    return [row.ids for row in sent.rows]


def text_of(bench: Bench, ids: bytes) -> str:
    return bench.tokenizer.decode(unpack_i32(ids).tolist(), skip_special_tokens=False)


def test_a_prompt_is_written_before_each_text(start: Callable[[str], Bench]) -> None:
    bench = start("embeds")
    sent = scheduled(bench, embeds(["a b", "c"], prompt_name="query"))
    assert isinstance(sent, Request)
    assert [text_of(bench, ids) for ids in prompts(sent)] == ["Find: a b", "Find: c"]


def test_pairs_share_the_text_that_stands_on_one_side(start: Callable[[str], Bench]) -> None:
    bench = start("answers")
    sent = scheduled(bench, relates(["a <|im_end|>"], ["b", "c"], "do it"))
    assert isinstance(sent, Request)
    texts = [text_of(bench, ids) for ids in prompts(sent)]
    assert texts == [f"<|im_start|>system: do it\nquery: a <|im_end|>\ndocument: {d}\ndo it" for d in "bc"]
    end = bench.tokenizer.token_to_id("<|im_end|>")
    assert not any(end in unpack_i32(ids) for ids in prompts(sent))  # the user's is plain text
    for i, row in enumerate(sent.rows):
        last = sent.row_len(i) - 1
        assert unpack_i32(row.logprobs.positions).tolist() == [last] * 2
        assert unpack_i32(row.logprobs.targets).tolist() == [5, 6]
    odds = answer(bench, [-1.0, -1.0, -0.5, -9.5]).scores
    assert odds == pytest.approx([0.5, 1 / (1 + 2.718281828**-9)], rel=1e-4)


def test_the_models_own_task(start: Callable[[str], Bench]) -> None:
    bench = start("answers")
    sent = scheduled(bench, relates(["a", "b"], ["c"]))
    assert [text_of(bench, ids).split("\n")[:2] for ids in prompts(sent)] == [
        ["<|im_start|>system: the task", f"query: {q}"] for q in "ab"
    ]


def test_hidden_states_that_are_not_numbers_are_an_error(start: Callable[[str], Bench]) -> None:
    requests = (embeds(["a"]), classifies(["a"]), relates(["a"], ["b"]))
    for kind, request in zip(("embeds", "classifies", "embeds"), requests, strict=True):
        bench = start(kind)
        scheduled(bench, request)
        with pytest.raises(RequestError) as raised:
            answer(bench, [float("nan")] * 8)
        assert raised.value.status == 500


@pytest.mark.parametrize(
    ("template", "used"),
    [
        ("{% for m in messages if m.role == 'query' or m.role == \"document\" %}<{{ m.content }}>{% endfor %}", True),
        ("{% for document in documents %}{{ document }}{% endfor %}a search query", False),
    ],
)
def test_a_chat_template_is_used_if_it_has_the_roles_of_a_pair(tokenizer: Tokenizer, template: str, used: bool) -> None:
    own = Tokenizer(tokenizer.backend, chat_template=ChatTemplate({"default": template}, {}))
    bench = Bench(own, tasks=TASKS["pairs"])
    sent = scheduled(bench, relates(["a"], ["b"]))
    assert text_of(bench, prompts(sent)[0]) == ("<a><b>" if used else "ab")
