"""rerank: ranked documents as values of programs, on an engine and on a server, and the call's place in plans, files,
traces and replays."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn

import radixrt as rt
from radixrt.cli import main
from radixrt.config import ServerConfig
from radixrt.errors import RequestError
from radixrt.lang.backends.base import RerankCall
from radixrt.lang.backends.token_backend import Endpoint
from radixrt.server import create_app
from radixrt.server.http import receive
from radixrt.server.routes.similarity import RerankRequest
from radixrt.tasks.rerank import Reranking
from tests.equivalence.test_relevance import QUERY, as_reranker
from tests.lang.conftest import start
from tests.tiny_models import make_tiny_model

DOCUMENTS = ["a small engine", "The capital of France is Paris", "Numbers 0 1 2"]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rt.Engine]:
    folder = as_reranker(make_tiny_model(tmp_path_factory.mktemp("reranker") / "m", "qwen3"))
    with start(folder) as engine:
        yield engine


@pytest.fixture(scope="module")
def url(reranker: rt.Engine) -> Iterator[str]:
    app = create_app(reranker.client, ServerConfig(), "tiny")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()


@rt.function(temperature=0, max_tokens=3)
def search(s: rt.State) -> str:
    s += "One " + rt.rerank("all", QUERY, DOCUMENTS) + rt.gen("answer")
    s += rt.rerank("best", QUERY, DOCUMENTS, top_n=1, instruction="Find a city.", activation=False)
    return str(s["best"][0].document)


@pytest.mark.parametrize("serves", [False, True], ids=["engine", "endpoint"])
def test_ranked_documents_are_values(reranker: rt.Engine, url: str, serves: bool) -> None:
    state = search.run(backend=url if serves else reranker)
    for name, expected in (
        ("all", reranker.rerank(QUERY, DOCUMENTS)),
        ("best", reranker.rerank(QUERY, DOCUMENTS, top_n=1, instruction="Find a city.", activation=False)),
    ):
        found = state[name]
        assert [(each.index, each.document) for each in found] == [(e.index, e.document) for e in expected.results]
        assert [each.score for each in found] == pytest.approx([each.score for each in expected.results], abs=1e-5)
        assert state.meta[name].usage.prompt_tokens == expected.usage.prompt_tokens > 0
    assert state.returned == state["best"][0].document
    assert state.text() == "One " + state["answer"]
    calls = [(call.kind, call.name, call.type, call.finish) for call in state.log.calls]
    ranking = ("ranking", "ranking")
    assert calls == [("rerank", "all", *ranking), ("gen", "answer", "str", "length"), ("rerank", "best", *ranking)]
    assert state.log.calls[0].texts == (QUERY, *DOCUMENTS)
    assert state.log.calls[2].text.startswith(f"1 of {len(DOCUMENTS)} documents, first {state['best'][0].index} (")
    assert f"1 of {len(DOCUMENTS)} documents" in state.report()


def test_an_engine_hears_of_the_program(reranker: rt.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    send = reranker.client.astream

    def astream(request: Any) -> Any:
        asked.append(request)
        return send(request)

    monkeypatch.setattr(reranker.client, "astream", astream)
    state = search.run(backend=reranker)
    assert {request.envelope.program.program for request in asked} == {state.log.program}


def test_a_plan(reranker: rt.Engine) -> None:
    plan = search.explain(backend=reranker)
    assert [(call.kind, call.shared, call.outputs) for call in plan.calls if call.kind != "gen"] == [
        ("rerank", 0, ())
    ] * 2
    texts = (QUERY, *DOCUMENTS)
    assert plan.calls[0].length == sum(len(reranker.tokenize(text)) for text in texts)


@pytest.mark.parametrize("serves", [False, True], ids=["engine", "endpoint"])
def test_more_documents_than_a_request_holds(
    reranker: rt.Engine, url: str, serves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixrt.lang.backends.token_backend.DOCUMENTS_AT_ONCE", 2)
    documents = [*DOCUMENTS, "Paris", "a small engine"]

    @rt.function
    def program(s: rt.State) -> None:
        s += rt.rerank("all", QUERY, documents) + rt.rerank("best", QUERY, documents, top_n=3)

    state = program.run(backend=url if serves else reranker)
    expected = reranker.rerank(QUERY, documents).results
    assert [each.score for each in state["all"]] == pytest.approx([each.score for each in expected], abs=1e-5)
    # The order of equal documents, the first and the last, is that of their rounding in batches of another size.
    assert sorted(each.index for each in state["all"]) == list(range(5))
    for each in (*state["all"], *state["best"]):
        assert documents[each.index] == each.document
    assert [each.score for each in state["best"]] == pytest.approx([each.score for each in expected[:3]], abs=1e-5)
    assert state.meta["all"].usage.prompt_tokens == reranker.rerank(QUERY, documents).usage.prompt_tokens


def test_files_traces_and_replays(
    reranker: rt.Engine, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rt.trace(tmp_path / "t.jsonl"):
        (item,) = search.batch([{}], backend=reranker, output=tmp_path / "o.jsonl")
    (resumed,) = search.batch([{}], backend=reranker, output=tmp_path / "o.jsonl", resume=True)
    assert resumed.resumed
    assert resumed.values == item.values
    assert resumed["best"][0].document == item["best"][0].document
    values = json.loads((tmp_path / "o.jsonl").read_text())["values"]
    assert values["best"][0].keys() == {"index", "score", "document"}
    (log,) = rt.read_trace(tmp_path / "t.jsonl")
    assert log.calls[0].texts == (QUERY, *DOCUMENTS)

    asked: list[tuple[int, str | None, bool]] = []
    decode, rerank = receive.decode, Endpoint.rerank

    def record_body(data: bytes, decoder: Any) -> Any:
        body = decode(data, decoder)
        if isinstance(body, RerankRequest):
            asked.append((body.top_n or 0, body.instruction, body.use_activation is not False))
        return body

    async def record(endpoint: Endpoint, call: RerankCall) -> Reranking:
        asked.append((call.top_n or 0, call.instruction, call.activation))
        return await rerank(endpoint, call)

    monkeypatch.setattr(receive, "decode", record_body)
    monkeypatch.setattr(Endpoint, "rerank", record)
    for options in ((), ("--plain",)):
        asked.clear()
        assert main(["replay", str(tmp_path / "t.jsonl"), "--base-url", url, "--speed", "inf", *options]) == 0
        assert sorted(asked) == [(0, None, True), (1, "Find a city.", False)]


def test_errors(reranker: rt.Engine, engine: rt.Engine, url: str) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += rt.rerank("r", "a", ["b"])

    with pytest.raises(rt.CallError, match=r'rerank "r": .*reranker') as raised:
        program.run(backend=engine)
    assert isinstance(raised.value.__cause__, RequestError)
    with pytest.raises(rt.CallError, match=r"rt\.OpenAI does not rerank"):
        program.run(backend=rt.OpenAI(f"{url}/v1", "tiny"))

    @rt.function
    def joined(s: rt.State) -> None:
        branches = s.fork(1)
        for branch in branches:
            branch += rt.rerank("r", "a", ["b"])
        s += rt.join(branches, "r")

    with pytest.raises(rt.CallError, match="ranked documents, which have no text to join"):
        joined.run(backend=reranker)


@pytest.mark.parametrize(
    ("arguments", "options", "param"),
    [
        (("", "q", ["a"]), {}, "name"),
        (("r", "", ["a"]), {}, "query"),
        (("r", 5, ["a"]), {}, "query"),
        (("r", "q", "a"), {}, "documents"),
        (("r", "q", []), {}, "documents"),
        (("r", "q", ["a", ""]), {}, "documents"),
        (("r", "q", 5), {}, "documents"),
        (("r", "q", ["a"]), {"top_n": 0}, "top_n"),
        (("r", "q", ["a"]), {"top_n": True}, "top_n"),
        (("r", "q", ["a"]), {"instruction": 5}, "instruction"),
        (("r", "q", ["a"]), {"activation": 1}, "activation"),
    ],
)
def test_mistakes_are_raised_on_their_line(arguments: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        rt.rerank(*arguments, **options)
    assert raised.value.param == param
