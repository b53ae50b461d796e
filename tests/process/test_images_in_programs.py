"""Pictures in programs on a real server: by its own protocol, and as OpenAI's content parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from transformers import AutoTokenizer

import radixrt as rt
from tests.equivalence.images import Picture, greedy
from tests.process.test_images import QUESTION, prompt
from tests.server_process import ServerProcess, wait_for

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "min_tokens": 8}


@pytest.fixture(scope="module")
def served(tiny_model: Callable[[str], Path]) -> Iterator[tuple[Path, ServerProcess]]:
    folder = tiny_model("qwen3_vl")
    server = ServerProcess(
        "--model", str(folder), "--dtype", "float32", "--kv-cache-tokens", "4096", "--check-invariants"
    ).wait_ready()
    yield folder, server
    assert server.stop() == 0, "".join(server.lines[-40:])


@rt.function
def judge(s: rt.State, *pictures: Picture) -> None:
    with s.user():
        for picture in pictures:
            s += rt.image(picture.pixels.numpy())
        s += QUESTION
    for branch in s.fork(["colour", "shape"]):
        branch += rt.assistant(rt.gen("answer", **GREEDY))
        branch += rt.user("Is it good?") + rt.assistant(rt.select("good", ["yes", "no"]))


def expected(folder: Path, *pictures: Picture) -> list[int]:
    return list(greedy(folder, prompt(folder, list(pictures), QUESTION), 8))


def test_an_endpoint(served: tuple[Path, ServerProcess]) -> None:
    folder, server = served
    first, second = Picture(48, 64, 3), Picture(32, 112, 4)
    for pictures in ((first,), (second, first)):
        state = judge.run(*pictures, backend=rt.Endpoint(server.url))
        gens = [call for call in state.log.calls if call.kind == "gen"]
        selects = [call for call in state.log.calls if call.kind == "select"]
        assert [list(call.output_ids or ()) for call in gens] == [expected(folder, *pictures)] * 2
        assert [call.same_as is None for call in gens] == [True, False]
        known = gens[0].prompt_tokens + 8
        assert all(call.cached_tokens >= known - 1 for call in selects)
    counted = 'radixrt_images_total{encoding="computed",model_name="qwen3_vl"} 2.0'
    assert wait_for(lambda: counted in httpx.get(f"{server.url}/metrics").text)


def test_openai(served: tuple[Path, ServerProcess]) -> None:
    folder, server = served
    backend = rt.OpenAI(f"{server.url}/v1", "qwen3_vl", select="constrained", extensions=["min_tokens"])
    picture = Picture(48, 64, 5)
    state = judge.run(picture, backend=backend)
    text = AutoTokenizer.from_pretrained(folder).decode(expected(folder, picture), skip_special_tokens=True)
    assert [call.text for call in state.log.calls if call.kind == "gen"] == [text] * 2
    with pytest.raises(rt.Unsupported, match=r"rt\.user"), rt.State(backend) as s:
        s += "Look: " + rt.image(picture.pixels.numpy())


def test_a_server_that_reads_no_images(tiny_model: Callable[[str], Path]) -> None:
    server = ServerProcess(
        "--model", str(tiny_model("qwen3_vl")), "--text-only", "--dtype", "float32", "--kv-cache-tokens", "1024"
    ).wait_ready()
    with pytest.raises(rt.Unsupported, match=r"qwen3_vl reads no images; .* started without --text-only"):
        judge.run(Picture(48, 64), backend=rt.Endpoint(server.url))
    assert server.stop() == 0, "".join(server.lines[-40:])
