"""An engine without a tokenizer: token ids in and out; everything else is refused with the reason."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixrt import Engine
from radixrt.errors import EngineError, ModelLoadError, RequestError
from radixrt.tokenizer.tokenizer import Tokenizer
from tests.engine.helpers import start
from tests.server_process import LIMIT_S, ServerProcess
from tests.tiny_models import make_tiny_model

PROMPT = [5, 6, 7, 8]
GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module", params=["llama", "qwen2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / request.param, request.param)


@pytest.fixture(scope="module")
def bare(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model without its tokenizer."""
    made = tmp_path_factory.mktemp("bare") / folder.name
    made.mkdir()
    for file in folder.iterdir():
        if not file.name.startswith("tokenizer"):
            (made / file.name).symlink_to(file)
    return made


@pytest.fixture(scope="module")
def engine(bare: Path) -> Iterator[Engine]:
    with start(bare, skip_tokenizer_init=True) as made:
        yield made


def test_ids_are_those_of_the_engine_with_a_tokenizer(engine: Engine, folder: Path) -> None:
    answer = engine.generate(PROMPT, {**GREEDY, "logprobs": 2})
    with start(folder) as other:
        expected = other.generate(PROMPT, {**GREEDY, "logprobs": 2})
    assert answer.token_ids == expected.token_ids
    assert (answer.text, answer.usage.completion_tokens) == ("", 8)
    assert [row.logprob for row in answer.logprobs] == [row.logprob for row in expected.logprobs]
    chunks = list(engine.stream(PROMPT, GREEDY))
    assert [token for chunk in chunks for token in chunk.token_ids] == expected.token_ids
    stopped = engine.generate(PROMPT, {**GREEDY, "stop_token_ids": [expected.token_ids[2]]})
    assert stopped.token_ids == expected.token_ids[:3]


@pytest.mark.parametrize(
    ("prompt", "fields", "param"),
    [
        ("text", {}, "prompt"),
        (PROMPT, {"stop": ["a"]}, "stop"),
        (PROMPT, {"regex": "a+"}, "regex"),
        (PROMPT, {"json_schema": {"type": "object"}}, "json_schema"),
        (PROMPT, {"choices": ["a", "b"]}, "choices"),
    ],
)
def test_what_needs_a_tokenizer_is_refused(engine: Engine, prompt: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError, match="skip_tokenizer_init") as caught:
        engine.generate(prompt, {**GREEDY, **fields})
    assert (caught.value.param, caught.value.status) == (param, 400)


def test_tokenizing_and_scoring_are_refused(engine: Engine) -> None:
    for ask, param in (
        (lambda: engine.tokenize("a"), "prompt"),
        (lambda: engine.detokenize([5]), "tokens"),
        (lambda: engine.score(PROMPT, ["a", "b"]), "choices"),
        (lambda: engine.tokenize([[5], "a"]), "input_parts[1]"),
    ):
        with pytest.raises(RequestError, match="skip_tokenizer_init") as caught:
            ask()
        assert caught.value.param == param
    assert engine.tokenize([[5], [6]]) == [5, 6]


def test_without_the_option_the_start_is_refused(bare: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"has no tokenizer .*--skip-tokenizer-init"):
        Tokenizer.from_folder(bare)
    with pytest.raises(EngineError, match=r"has no tokenizer .*--skip-tokenizer-init"):
        start(bare, executor="mp")


@pytest.mark.parametrize("folder", ["qwen2"], indirect=True)
def test_the_server_without_a_tokenizer(bare: Path) -> None:
    """It answers requests for ids, names the field of others, and starts no process for constraints."""
    server = ServerProcess("--model", str(bare), "--kv-cache-tokens", "2048", "--skip-tokenizer-init")
    try:
        url = server.wait_ready().url

        def post(path: str, **body: Any) -> httpx.Response:
            return httpx.post(url + path, json=body, timeout=LIMIT_S)

        answer = post("/generate", input_ids=PROMPT, sampling_params={"temperature": 0, "max_tokens": 8}).json()
        assert answer["text"] == ""
        assert answer["output_ids"]
        message = {"role": "user", "content": "hi"}
        for response, param in (
            (post("/v1/chat/completions", messages=[message]), "messages"),
            (post("/v1/completions", prompt="hi"), "prompt"),
            (post("/v1/completions", prompt=PROMPT, stop="a"), "stop"),
            (post("/generate", input_ids=PROMPT, sampling_params={"regex": "a"}), "sampling_params.regex"),
            (post("/tokenize", messages=[message]), "messages"),
        ):
            assert response.status_code == 400
            assert "skip_tokenizer_init" in response.json()["error"]["message"]
            assert response.json()["error"]["param"] == param
        assert post("/v1/completions", prompt=PROMPT, max_tokens=4).json()["usage"]["completion_tokens"] <= 4
    finally:
        assert server.stop() == 0
    assert "compile" not in "".join(server.lines)
