"""Pictures in prompts of `Engine`: answers equal transformers', and mistakes name the part."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import AutoTokenizer

from radixrt.engine.engine import Completion, Engine
from radixrt.errors import RequestError
from radixrt.models.model_config import load_model_spec
from tests.engine.helpers import start
from tests.equivalence.images import Part, Picture, greedy

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "min_tokens": 8}
QUESTION = "What is on the picture?"
PICTURE, OTHER = Picture(48, 64), Picture(32, 112, 1)


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("qwen3_vl")


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[Engine]:
    with start(folder) as engine:
        yield engine


def array(picture: Picture) -> np.ndarray:
    return picture.pixels.numpy()


def png(picture: Picture) -> bytes:
    file = io.BytesIO()
    Image.fromarray(array(picture)).save(file, "PNG")
    return file.getvalue()


def messages(*pictures: Any, role: str = "user") -> list[dict[str, Any]]:
    content = [*({"type": "image", "image": each} for each in pictures), {"type": "text", "text": QUESTION}]
    return [{"role": role, "content": content}]


def of_part(**part: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [part]}]


def expected(folder: Path, *pictures: Picture) -> list[int]:
    spec = load_model_spec(folder).vision
    assert spec is not None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = tokenizer.apply_chat_template(messages(*pictures), tokenize=False, add_generation_prompt=True)
    left = iter(pictures)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    parts: list[Part] = [next(left) if i == spec.image_token_id else i for i in ids]
    return list(greedy(folder, tuple(parts), 8))


def one(engine: Engine, prompt: Any, **options: Any) -> Completion:
    answer = engine.generate(prompt, GREEDY, **options)
    assert isinstance(answer, Completion)
    return answer


def test_a_picture_in_every_form(engine: Engine, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    path.write_bytes(png(PICTURE))
    turned = Image.fromarray(np.rot90(array(PICTURE)))  # its EXIF data say how to turn it back
    turned.getexif()[0x0112] = 6
    forms = [array(PICTURE), Image.fromarray(array(PICTURE)), turned, png(PICTURE), path, str(path)]
    for form in forms:
        answer = one(engine, messages(form))
        assert answer.token_ids == expected(folder, PICTURE)
        assert answer.prompt_token_ids.count(load_model_spec(folder).vision.image_token_id) == 12  # type: ignore[union-attr]
    assert answer.usage.cached_tokens == answer.usage.prompt_tokens - 1
    url = {"url": f"data:image/png;base64,{base64.b64encode(png(PICTURE)).decode()}"}
    content = [{"type": "image_url", "image_url": url}, {"type": "text", "text": QUESTION}]
    assert one(engine, [{"role": "user", "content": content}]).token_ids == expected(folder, PICTURE)


def test_many_conversations_and_streams(engine: Engine, folder: Path) -> None:
    text = engine.generate([messages(array(PICTURE), array(OTHER)), messages(array(OTHER)), QUESTION], GREEDY)
    assert isinstance(text, list)
    pair, single = expected(folder, PICTURE, OTHER), expected(folder, OTHER)
    assert [each.token_ids for each in text[:2]] == [pair, single]
    last = list(engine.stream(messages(array(OTHER)), GREEDY))[-1].completion
    assert last is not None
    assert last.token_ids == single

    async def both() -> tuple[Any, Any]:
        answer = await engine.async_generate(messages(array(PICTURE), array(OTHER)), GREEDY)
        return answer, [chunk async for chunk in engine.async_stream(messages(array(OTHER)), GREEDY)][-1].completion

    answer, streamed = asyncio.run(both())
    assert (answer.token_ids, streamed.token_ids) == (pair, single)


def test_pictures_beside_a_text(engine: Engine, folder: Path) -> None:
    answers = engine.generate([QUESTION, QUESTION], GREEDY, images=[array(PICTURE), png(OTHER)])
    assert isinstance(answers, list)
    assert [each.token_ids for each in answers] == [expected(folder, PICTURE, OTHER)] * 2
    last = list(engine.stream(QUESTION, GREEDY, images=[png(OTHER)]))[-1].completion
    assert last is not None
    assert last.token_ids == expected(folder, OTHER)


@pytest.mark.parametrize(
    ("prompt", "images", "param"),
    [
        (QUESTION, [png(PICTURE), b"no picture"], "images[1]"),
        (QUESTION, ["/nowhere/cat.png"], "images[0]"),
        (QUESTION, "cat.png", "images"),
        (QUESTION, [], "images"),
        (QUESTION, array(PICTURE), "images"),
        ([5, 6], [png(PICTURE)], "images"),
        (messages(), [png(PICTURE)], "images"),
    ],
)
def test_wrong_pictures_beside_a_text_are_named(engine: Engine, prompt: Any, images: Any, param: str) -> None:
    with pytest.raises(RequestError) as error:
        engine.generate(prompt, GREEDY, images=images)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ("/nowhere/cat.png", "there is no file '/nowhere/cat.png'"),
        ("https://example.com/cat.png", "URLs are not fetched here"),
        (b"no picture", "PNG, JPEG or WEBP"),
        (np.zeros((4, 4), np.uint8), r"must be uint8 \[height, width, 3\], not uint8 \[4, 4\]"),
        (np.zeros((4, 4, 3)), "not float64"),
        (Image.fromarray(np.zeros((4, 4), np.float32)), "floating point"),
        (5, "must be a path, the bytes of a file, a Pillow image"),
        (None, "must be a path, the bytes of a file, a Pillow image"),
    ],
)
def test_a_wrong_picture_is_named(engine: Engine, picture: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        engine.generate(messages(array(PICTURE), picture), GREEDY)
    assert error.value.param == "messages[0].content[1].image"
    assert "messages[0].content[1].image" in str(error.value)


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        (messages(array(PICTURE), role="system"), "messages[0].content[0].image"),
        (of_part(type="audio"), "messages[0].content[0]"),
        (of_part(type="image_url", image_url="cat.png"), "messages[0].content[0].image_url"),
        (of_part(type="image", image=b"", detail="most"), "messages[0].content[0].detail"),
        ([{"role": "user", "content": 5}], "messages[0].content"),
        ([{"content": "Hi"}], "messages[0]"),
        ([{"role": "user", "content": "Hi"}, "Hi"], "messages[1]"),
        ([{"role": "user", "content": "Hi", "name": object()}], "messages"),
    ],
)
def test_a_wrong_message_is_named(engine: Engine, prompt: Any, param: str) -> None:
    with pytest.raises(RequestError) as error:
        engine.generate(prompt, GREEDY)
    assert error.value.param == param
    assert param in str(error.value)


@pytest.mark.parametrize(("kind", "options"), [("qwen3", {}), ("qwen3_vl", {"text_only": True})])
def test_models_that_read_no_images(tiny_model: Callable[[str], Path], kind: str, options: dict[str, Any]) -> None:
    with start(tiny_model(kind), **options) as engine:
        with pytest.raises(RequestError, match="reads no images") as error:
            engine.generate(messages(array(PICTURE)), GREEDY)
        assert error.value.param == "messages[0].content[0].image"
        assert len(one(engine, [{"role": "user", "content": "Hi"}]).token_ids) == 8
