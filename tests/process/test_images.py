"""Pictures through real processes: answers over HTTP equal transformers', with ranks, and with a runner that dies."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import anthropic
import httpx
import openai
import pytest
import typesafe_sdk
from PIL import Image
from transformers import AutoTokenizer

from radixrt.models.model_config import load_model_spec
from tests.equivalence.images import Part, Picture, greedy
from tests.process.helpers import workers
from tests.server_process import ServerProcess, wait_for

TOKENS = 8
QUESTION = "What is on the picture?"


def png(picture: Picture) -> str:
    """A file of the picture's pixels, in base64."""
    file = io.BytesIO()
    Image.fromarray(picture.pixels.numpy()).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def prompt(folder: Path, pictures: list[Picture], question: str) -> tuple[Part, ...]:
    """The prompt as transformers' template writes it, with pictures in place of the tokens for images."""
    spec = load_model_spec(folder).vision
    assert spec is not None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    content = [*({"type": "image"} for _ in pictures), {"type": "text", "text": question}]
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": content}], tokenize=False, add_generation_prompt=True
    )
    left = iter(pictures)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    return tuple(next(left) if i == spec.image_token_id else i for i in ids)


def answer(
    client: openai.OpenAI, pictures: list[Picture], question: str = QUESTION
) -> openai.types.chat.ChatCompletion:
    content = [
        *({"type": "image_url", "image_url": {"url": f"data:image/png;base64,{png(each)}"}} for each in pictures),
        {"type": "text", "text": question},
    ]
    return client.chat.completions.create(
        model="qwen3_vl",
        messages=[{"role": "user", "content": content}],  # type: ignore[list-item, misc]
        temperature=0.0,
        max_tokens=TOKENS,
        logprobs=True,
        extra_body={"min_tokens": TOKENS, "return_token_ids": True},
    )


def tokens(reply: openai.types.chat.ChatCompletion) -> list[str]:
    logprobs = reply.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    return [each.token for each in logprobs.content]


def expected(folder: Path, pictures: list[Picture], question: str = QUESTION) -> list[str]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer.decode([i]) for i in greedy(folder, prompt(folder, pictures, question), TOKENS)]


@pytest.fixture(scope="module", params=[("qwen3_vl", "1"), ("qwen3_vl", "2")], ids=["one rank", "two ranks"])
def served(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Iterator[tuple[Path, ServerProcess]]:
    kind, ranks = request.param
    folder = tiny_model(kind)
    server = ServerProcess(
        "--model", str(folder), "--dtype", "float32", "--kv-cache-tokens", "4096", "--tp", ranks, "--check-invariants"
    ).wait_ready()
    yield folder, server
    assert server.stop() == 0, "".join(server.lines[-40:])


def test_answers_equal_transformers(served: tuple[Path, ServerProcess]) -> None:
    folder, server = served
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    first, second = Picture(48, 64), Picture(32, 112, 1)
    for pictures in ([first], [second], [first, second], [first]):
        reply = answer(client, pictures)
        assert tokens(reply) == expected(folder, pictures)
    assert reply.usage is not None
    assert reply.usage.prompt_tokens > 12
    assert reply.usage.prompt_tokens_details is not None
    assert reply.usage.prompt_tokens_details.cached_tokens == reply.usage.prompt_tokens - 1
    counted = 'radixrt_images_total{encoding="computed",model_name="qwen3_vl"} 2.0'
    assert wait_for(lambda: counted in httpx.get(f"{server.url}/metrics").text)


def test_anthropic(served: tuple[Path, ServerProcess]) -> None:
    folder, server = served
    client = anthropic.Anthropic(base_url=server.url, api_key="none")
    source = {"type": "base64", "media_type": "image/png", "data": png(Picture(48, 64, 5))}
    reply = client.messages.create(
        model="qwen3_vl",
        max_tokens=TOKENS,
        messages=[
            {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]}
        ],  # type: ignore[list-item, typeddict-item]
        extra_body={"min_tokens": TOKENS, "temperature": 0.0},
    )
    assert reply.usage.input_tokens > 12
    text = "".join(expected(folder, [Picture(48, 64, 5)]))
    assert "".join(block.text for block in reply.content if block.type == "text").strip() == text.strip()


def test_typesafe(served: tuple[Path, ServerProcess]) -> None:
    """The prompt of a question about a picture is the one of /v1/decisions, so answers are equal and the prefix is
    found."""
    _, server = served
    data = png(Picture(48, 64, 6))
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{data}"}
    body = {
        "input": [{"role": "user", "content": [part]}],
        "questions": [{"type": "predicate", "instructions": "A cat?"}],
    }
    (wanted,) = httpx.post(f"{server.url}/v1/decisions", json=body, timeout=120).json()["answers"]
    with typesafe_sdk.TypeSafeClient(
        base_url=server.url, api_key="none", model="qwen3_vl", compression=False
    ) as client:
        question = typesafe_sdk.Noul(instructions="A cat?")
        found = client.system_one(state=typesafe_sdk.Image.from_base64(data), questions={"q": question})
        other = client.system_one(
            state=typesafe_sdk.Image.from_base64(png(Picture(48, 64, 7))), questions={"q": question}
        )
    assert found.nouls["q"].noul == pytest.approx(wanted["probability"], abs=1e-5)
    assert found.usage.input_tokens == other.usage.input_tokens == wanted["usage"]["input_tokens"]
    assert other.nouls["q"].noul != pytest.approx(wanted["probability"], abs=1e-5)


def test_bad_pictures_harm_nobody(served: tuple[Path, ServerProcess]) -> None:
    folder, server = served
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")
    for url in ("data:image/png;base64,AAAA", "https://127.0.0.1/x.png", "data:image/png;base64,%%"):
        content = [{"type": "image_url", "image_url": {"url": url}}]
        with pytest.raises(openai.BadRequestError) as error:
            client.chat.completions.create(model="qwen3_vl", messages=[{"role": "user", "content": content}])  # type: ignore[list-item, misc]
        assert "messages[0].content[0]" in str(error.value)
    assert tokens(answer(client, [Picture(48, 64)])) == expected(folder, [Picture(48, 64)])


def test_a_runner_that_dies(served: tuple[Path, ServerProcess]) -> None:
    folder, server = served
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    runner = next(each for name, each in workers(server).items() if "runner" in name)
    runner.kill()
    picture = Picture(64, 48, 9)
    assert tokens(answer(client, [picture])) == expected(folder, [picture])
