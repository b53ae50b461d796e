"""embed: vectors as values of programs, and the call's place in logs, plans, files and traces."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import radixrt as rt
from radixrt.errors import RequestError
from radixrt.lang.observe.run_log import TextOptions

TEXTS = ["The capital of France", "a small engine"]


@rt.function(temperature=0, max_tokens=4)
def search(s: rt.State, question: str) -> int:
    s += rt.user(question) + rt.embed("question", question)
    s += rt.embed("documents", TEXTS, dimensions=16) + rt.assistant(rt.gen("answer"))
    s += rt.embed("short", s["answer"] + ".", dimensions=16, normalize=False)
    return int((s["documents"] @ s["short"]).argmax())


def test_vectors_are_values_and_change_nothing_else(engine: rt.Engine) -> None:
    state = search.run("What is it?", backend=engine)
    assert state["question"].shape == (64,)
    np.testing.assert_allclose(state["question"], engine.embed("What is it?").vectors[0], atol=1e-5)
    np.testing.assert_allclose(state["documents"], engine.embed(TEXTS, dimensions=16).vectors, atol=1e-5)
    short = engine.embed(state["answer"] + ".", dimensions=16, normalize=False).vectors[0]
    np.testing.assert_allclose(state["short"], short, atol=1e-5)
    assert state.returned == int((state["documents"] @ state["short"]).argmax())
    assert [message["role"] for message in state.messages()] == ["user", "assistant"]
    calls = [(call.kind, call.name, call.type, call.finish, call.texts) for call in state.log.calls]
    assert calls == [
        ("embed", "question", "vector", "vectors", ("What is it?",)),
        ("embed", "documents", "vectors", "vectors", tuple(TEXTS)),
        ("gen", "answer", "str", "length", ()),
        ("embed", "short", "vector", "vectors", (state["answer"] + ".",)),
    ]
    assert state.log.calls[1].text == "2 x 16 numbers"
    meta = state.meta["documents"]
    assert (meta.finish_reason, meta.usage.prompt_tokens) == ("stop", state.log.calls[1].prompt_tokens)
    assert "2 x 16 numbers" in state.report()
    assert state.usage.calls == 4


def test_branches_embed_at_once_and_async(engine: rt.Engine) -> None:
    @rt.function
    async def program(s: rt.State) -> list[Any]:
        branches = s.fork(TEXTS)
        for branch, text in branches.items():
            branch += rt.embed("vector", text)
        return [await branch.get("vector") for branch in branches]

    found = asyncio.run(program.async_run(backend=engine)).returned
    np.testing.assert_allclose(np.stack(found), engine.embed(TEXTS).vectors, atol=1e-5)


def test_a_plan_counts_their_tokens(engine: rt.Engine) -> None:
    plan = search.explain("What is it?", backend=engine)
    kinds = [(call.kind, call.name, call.shared, call.outputs) for call in plan.calls]
    assert [kind for kind, *_ in kinds] == ["embed", "embed", "gen", "embed"]
    assert all(not shared and not outputs for kind, _, shared, outputs in kinds if kind == "embed")
    assert plan.calls[1].length == sum(len(engine.tokenize(text)) for text in TEXTS)
    assert "documents" in str(plan)


def test_files_and_traces(engine: rt.Engine, tmp_path: Path) -> None:
    with rt.trace(tmp_path / "t.jsonl"):
        (item,) = search.batch(["What is it?"], backend=engine, output=tmp_path / "o.jsonl")
    values = json.loads((tmp_path / "o.jsonl").read_text())["values"]
    np.testing.assert_allclose(values["documents"], engine.embed(TEXTS, dimensions=16).vectors, atol=1e-5)
    (resumed,) = search.batch(["What is it?"], backend=engine, output=tmp_path / "o.jsonl", resume=True)
    assert resumed.resumed
    for name in ("question", "documents"):
        assert resumed[name].dtype == np.float32
        np.testing.assert_array_equal(resumed[name], item[name])
    (log,) = rt.read_trace(tmp_path / "t.jsonl")
    assert [(call.kind, call.texts) for call in log.calls][1] == ("embed", tuple(TEXTS))
    assert log.calls[1].options == TextOptions(dimensions=16)
    assert item.error is None


def test_errors(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State, **options: Any) -> Any:
        s += rt.embed("v", "a", **options)
        return s["v"]

    for options, named in (({"dimensions": 65}, "dimensions"), ({"prompt_name": "query"}, "prompt_name")):
        with pytest.raises(rt.CallError, match=rf'embed "v": .*{named}') as raised:
            program.run(backend=engine, **options)
        assert isinstance(raised.value.__cause__, RequestError)
        assert raised.value.state.log.calls[0].finish == "error"  # type: ignore[union-attr]

    @rt.function
    def joined(s: rt.State) -> None:
        branches = s.fork(2)
        for branch in branches:
            branch += rt.embed("v", "a")
        s += rt.join(branches, "v")

    with pytest.raises(rt.CallError, match="vectors, which have no text to join"):
        joined.run(backend=engine)


@pytest.mark.parametrize(
    ("arguments", "options", "param"),
    [
        (("", "a"), {}, "name"),
        ((None, "a"), {}, "name"),
        (("v", ""), {}, "texts"),
        (("v", []), {}, "texts"),
        (("v", ["a", 5]), {}, "texts"),
        (("v", 5), {}, "texts"),
        (("v", "a"), {"dimensions": 0}, "dimensions"),
        (("v", "a"), {"dimensions": True}, "dimensions"),
        (("v", "a"), {"normalize": 1}, "normalize"),
        (("v", "a"), {"prompt": 5}, "prompt"),
        (("v", "a"), {"prompt": "b", "prompt_name": "c"}, "prompt_name"),
    ],
)
def test_mistakes_are_raised_on_their_line(arguments: Any, options: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as raised:
        rt.embed(*arguments, **options)
    assert raised.value.param == param
