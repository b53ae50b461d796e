"""Pictures in programs: answers equal transformers', forks share them, and mistakes name the argument."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer

import radixrt as rt
from radixrt.engine.engine import Engine
from radixrt.errors import RequestError
from radixrt.lang.backends.base import Unsupported
from radixrt.lang.core.chat_format import ChatFormat
from radixrt.lang.core.expr import ImageWord
from radixrt.lang.core.prompt import Composer
from radixrt.lang.core.transcript import Begin, End, append
from radixrt.lang.core.transcript import Image as ImageEntry
from radixrt.lang.errors import ProgramError
from radixrt.lang.observe.replay_target import Question, RadixrtTarget
from radixrt.lang.observe.run_log import CallRecord, PictureRecord
from radixrt.messages.client import ClientRequest, PartsInput
from radixrt.models.model_config import load_model_spec
from radixrt.vision.processor import ImageProcessor
from tests.engine.helpers import assert_at_rest, start
from tests.equivalence.images import Part, Picture, greedy

TOKENS = 8
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "min_tokens": TOKENS}
QUESTION = "What is on the picture?"
KINDS = {"qwen3_vl": "<|vision_start|><|image_pad|><|vision_end|>", "smolvlm": "<image>"}
TILE = "<fake_token_around_image><global-img><image><fake_token_around_image>"
"""Text of a picture of SmolVLM that is not divided."""


BOTH = pytest.mark.parametrize("kind", KINDS, indirect=True, scope="module")


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(getattr(request, "param", "qwen3_vl"))


@pytest.fixture(scope="module")
def folder(kind: str, tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model(kind)


@pytest.fixture(scope="module")
def shared(folder: Path) -> Iterator[Engine]:
    with start(folder, kv_cache_tokens=4096) as engine:
        yield engine


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    """The module's engine; afterwards nothing of the test's may be left in it."""
    yield shared
    assert_at_rest(shared)


@pytest.fixture
def pictures(kind: str) -> tuple[Picture, Picture, Picture]:
    """Three pictures of a size that the model's processor does not change."""
    if kind == "smolvlm":
        return Picture(64, 64, 7), Picture(64, 64, 8), Picture(64, 64, 9)
    return Picture(48, 64, 7), Picture(32, 112, 8), Picture(48, 64, 9)


def shown(picture: Picture) -> Any:
    """The primitive; SmolVLM does not divide it."""
    return rt.image(picture.pixels.numpy(), detail="low")


def png(picture: Picture) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture.pixels.numpy()).save(file, "PNG")
    return file.getvalue()


@dataclass(frozen=True)
class Tile:
    """A picture of SmolVLM as its tower reads it."""

    data: bytes
    height: int
    width: int

    @property
    def pixels(self) -> torch.Tensor:
        """uint8 [height, width, 3]."""
        return torch.frombuffer(bytearray(self.data), dtype=torch.uint8).reshape(self.height, self.width, 3)


def tile(folder: Path, picture: Picture) -> Picture:
    spec = load_model_spec(folder).vision
    assert spec is not None
    processor = ImageProcessor.of(folder, spec.kind, patch=spec.patch, merge=spec.merge, max_tokens=2048)
    (made,) = processor.process(png(picture), "low")
    return Tile(made.pixels.tobytes(), *made.pixels.shape[:2])  # type: ignore[return-value]


def expected(kind: str, folder: Path, *contents: str | Picture, plain: bool = False) -> list[int]:
    """Transformers' answer to a message of the user, or to a text."""
    spec = load_model_spec(folder).vision
    assert spec is not None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "".join(each if isinstance(each, str) else KINDS[kind] for each in contents)
    if not plain:
        text = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    if kind == "smolvlm":
        text = text.replace("<image>", TILE)
    left = iter([tile(folder, each) for each in contents if isinstance(each, Picture)])
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    parts: list[Part] = [next(left) if i == spec.image_token_id else i for i in ids]
    return list(greedy(folder, tuple(parts), TOKENS))


@rt.function
def ask(s: rt.State, *contents: Any) -> None:
    with s.user():
        for each in contents:
            s += each
    s += rt.assistant(rt.gen("answer", **GREEDY))


@BOTH
def test_answers_equal_transformers(engine: Engine, kind: str, folder: Path, pictures: tuple[Picture, ...]) -> None:
    first, second, third = pictures
    for contents in (
        (first, QUESTION),
        ("Look: ", second, QUESTION),
        (first, " and ", second, QUESTION),
        (third, third, QUESTION),
    ):
        given = [shown(each) if isinstance(each, Picture) else each for each in contents]
        assert ask.run(*given, backend=engine).meta["answer"].token_ids == expected(kind, folder, *contents)


def test_streams_async_runs_and_batches(engine: Engine, kind: str, folder: Path, pictures: tuple[Picture, ...]) -> None:
    first, second, _ = pictures
    pair = [expected(kind, folder, each, QUESTION) for each in (first, second)]
    with ask.stream(shown(first), QUESTION, backend=engine) as stream:
        assert "".join(event.text for event in stream) == stream.result()["answer"]
    assert stream.result().meta["answer"].token_ids == pair[0]
    state = asyncio.run(ask.async_run(shown(second), QUESTION, backend=engine))
    assert state.meta["answer"].token_ids == pair[1]
    items = [(shown(first), QUESTION), (shown(second), QUESTION)]
    results = ask.batch(items, backend=engine, progress=False)
    assert [item.state.meta["answer"].token_ids for item in results if item.state is not None] == pair

    @rt.function
    async def awaited(s: rt.State, picture: Any) -> Any:
        s += rt.user(picture + QUESTION) + rt.assistant(rt.gen("answer", **GREEDY))
        return await s.get("answer")

    assert asyncio.run(awaited.async_run(shown(first), backend=engine)).meta["answer"].token_ids == pair[0]


def test_a_fork_sends_the_file_and_computes_the_prefix_once(
    engine: Engine, pictures: tuple[Picture, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    picture = shown(Picture(pictures[0].height, pictures[0].width, 41))
    sent: list[ClientRequest] = []
    stream = engine.client.astream
    monkeypatch.setattr(engine.client, "astream", lambda request: (sent.append(request), stream(request))[1])

    @rt.function(**GREEDY)
    def judge(s: rt.State) -> None:
        s += rt.user("Judge this picture with care: " + picture)
        for view, topic in s.fork(["colour", "shape", "size"]).items():
            view += rt.user(f"Its {topic}?") + rt.assistant(rt.gen("note"))
            view += rt.user("Is it good?") + rt.assistant(rt.select("good", ["yes", "no"]))

    state = judge.run(backend=engine)
    prompts = [row.input for request in sent for row in request.rows if isinstance(row.input, PartsInput)]
    assert len(prompts) == 7  # the fork's prefix, three gens, three selects
    assert len({id(image.data) for prompt in prompts for image in prompt.images}) == 1
    notes = [call for call in state.log.calls if call.kind == "gen"]
    shared = min(call.fork_len for call in notes)
    assert shared > 12
    assert sorted(call.cached_tokens >= shared for call in notes) == [False, True, True]
    selects = [call for call in state.log.calls if call.kind == "select"]
    assert all(call.cached_tokens >= shared for call in selects)
    assert not any(call.rerendered for call in state.log.calls)


def test_equal_texts_with_other_pictures_share_nothing_behind_the_picture(
    engine: Engine, kind: str, folder: Path, pictures: tuple[Picture, ...]
) -> None:
    first, _, third = pictures  # of one size

    @rt.function(**GREEDY)
    def both(s: rt.State) -> None:
        branches = s.fork([first, third])
        for branch, picture in branches.items():
            branch += rt.user(shown(picture) + QUESTION) + rt.assistant(rt.gen("answer"))

    state = both.run(backend=engine)
    one, other = state.log.calls
    assert (one.same_as, other.same_as) == (None, None)
    assert one.prompt_text != other.prompt_text
    assert one.prompt_ids is not None
    assert other.prompt_ids is not None
    assert [i < 0 for i in one.prompt_ids] == [i < 0 for i in other.prompt_ids]
    assert one.prompt_ids != other.prompt_ids
    answers = [expected(kind, folder, each, QUESTION) for each in (first, third)]
    assert [list(call.output_ids or ()) for call in (one, other)] == answers


def test_known_tokens_go_on_and_equal_calls_are_sent_once(engine: Engine, pictures: tuple[Picture, ...]) -> None:
    first, second, _ = pictures

    @rt.function(**GREEDY)
    def talk(s: rt.State) -> None:
        s += rt.user(shown(first) + QUESTION) + rt.assistant(rt.gen("a"))
        s += rt.user("And here? " + shown(second)) + rt.assistant(rt.gen("b"))
        twice = s.fork(2)
        for each in twice:
            each += rt.user("Why?") + rt.assistant(rt.gen("c"))

    state = talk.run(backend=engine)
    a, b, *last = state.log.calls
    assert a.prompt_ids is not None
    assert b.prompt_ids is not None
    assert a.output_ids is not None
    known = a.prompt_ids + a.output_ids
    assert b.prompt_ids[: len(known)] == known
    assert b.cached_tokens >= len(known) - 1
    assert [call.same_as is None for call in last] == [True, False]
    assert [len(call.pictures) for call in (a, b, *last)] == [1, 2, 2, 2]


def test_types_and_choices(engine: Engine, pictures: tuple[Picture, ...]) -> None:
    @rt.function(temperature=0)
    def read(s: rt.State) -> None:
        s += rt.user(shown(pictures[0]) + QUESTION)
        s += rt.assistant(rt.gen("count", int) + " " + rt.select("kind", ["cat", "dog"]))
        s += rt.user("Again") + rt.assistant(rt.gen("colour", choices=["red", "blue"], retries=1))

    state = read.run(backend=engine)
    assert isinstance(state["count"], int)
    assert state["kind"] in ("cat", "dog")
    assert sum(state.meta["kind"].probabilities) == pytest.approx(1.0)
    assert state["colour"] in ("red", "blue")


def test_a_refused_answer_is_corrected_beside_the_picture(engine: Engine, pictures: tuple[Picture, ...]) -> None:
    refused: list[str] = []

    def check(text: str) -> None:
        if not refused:
            refused.append(text)
            raise ValueError("look again")

    @rt.function(**GREEDY)
    def read(s: rt.State) -> None:
        s += rt.user(shown(pictures[0]) + QUESTION) + rt.assistant(rt.gen("answer", retries=1, check=check))
        s += rt.user("Sure?") + rt.assistant(rt.gen("sure"))

    calls = read.run(backend=engine).log.calls
    assert [len(call.pictures) for call in calls] == [1, 1, 1]
    assert "look again" in calls[1].prompt_text
    assert "look again" not in calls[2].prompt_text


@BOTH
def test_text_without_roles(engine: Engine, kind: str, folder: Path, pictures: tuple[Picture, ...]) -> None:
    first, second, _ = pictures

    @rt.function
    def plain(s: rt.State, *contents: Any) -> None:
        for each in contents:
            s += shown(each) if isinstance(each, Picture) else each
        s += rt.gen("answer", **GREEDY)

    for contents in ((first, " shows"), ("A ", first, " and ", second, " show")):
        found = plain.run(*contents, backend=engine).meta["answer"].token_ids
        assert found == expected(kind, folder, *contents, plain=True)


def test_templates_that_have_no_place_for_a_picture(pictures: tuple[Picture, ...]) -> None:
    picture = shown(pictures[0]).picture
    before_texts = (
        "{% for m in messages %}{% for part in m.content %}{% if part.type == 'image' %}IMAGE{% endif %}{% endfor %}"
        "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
    )
    for template in (before_texts, before_texts.replace("IMAGE", ""), "{{ raise_exception('no lists') }}"):
        composer = Composer(ChatFormat({"default": template}, {}), tokens=True, image_token="IMAGE")
        with pytest.raises(Unsupported, match=r"no place for a picture in text without roles; put .* rt\.user"):
            composer.check_picture(in_message=False)
    whole = append(append(append(None, Begin("user")), ImageEntry(picture)), End())
    with pytest.raises(RequestError, match="the chat template writes 0 images, and the conversation has 1"):
        Composer(ChatFormat({"default": "Hi"}, {}), tokens=True, image_token="IMAGE").compose(whole)


def test_texts_show_a_label_and_messages_the_file(engine: Engine, pictures: tuple[Picture, ...]) -> None:
    picture = pictures[0]
    state = ask.run(shown(picture), QUESTION, backend=engine)
    label = f"[image {picture.width} x {picture.height} "
    assert state.text().count(label) == 1
    assert state.log.calls[0].prompt_text.count(label) == 1
    content = state.messages()[0]["content"]
    assert content[1] == {"type": "text", "text": QUESTION}
    assert content[0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert "base64" not in state.report()
    plan = str(ask.explain(shown(picture), QUESTION, backend=engine))
    tokens = 4 if picture.height == 64 else 12
    assert f"with 1 image ({picture.width} x {picture.height}, {tokens} tokens)" in plan
    assert "base64" not in plan


def test_explain_tells_pictures_apart(engine: Engine, pictures: tuple[Picture, ...]) -> None:
    first, _, third = pictures

    @rt.function(**GREEDY)
    def views(s: rt.State, *given: Picture) -> None:
        for branch, picture in s.fork(given).items():
            branch += rt.user(shown(picture) + "word " * 40) + rt.assistant(rt.gen("answer"))

    alike, different = views.explain(first, first, backend=engine), views.explain(first, third, backend=engine)
    assert alike.length == different.length
    assert alike.shared > 40
    assert different.shared < 16


def test_explain_without_tokens(pictures: tuple[Picture, ...]) -> None:
    first, _, third = pictures
    backend = rt.OpenAI("http://127.0.0.1:9/v1", "a-model")

    @rt.function(**GREEDY)
    def views(s: rt.State, *given: Picture) -> None:
        for branch, picture in s.fork(given).items():
            branch += rt.user(shown(picture) + "word " * 40) + rt.assistant(rt.gen("answer"))
            branch += rt.user(shown(first) + "Sure?") + rt.assistant(rt.gen("sure"))

    alike, different = views.explain(first, first, backend=backend), views.explain(first, third, backend=backend)
    assert alike.shared > different.shared
    assert different.unit == "characters"
    assert f"with 2 images ({third.width} x {third.height}, {first.width} x {first.height})" in str(different)


def test_a_fork_inside_of_a_message(engine: Engine, pictures: tuple[Picture, ...]) -> None:
    @rt.function(**GREEDY)
    def ask_twice(s: rt.State) -> None:
        s += rt.user_begin() + "Look at this: " + shown(pictures[1])
        for branch, question in s.fork([" What?", " Where?"]).items():
            branch += question + rt.user_end() + rt.assistant(rt.gen("answer"))

    calls = ask_twice.run(backend=engine).log.calls
    assert all(call.fork_len > 12 for call in calls)
    assert len({call.text for call in calls}) == 2


def test_a_replay_refuses_pictures() -> None:
    call = CallRecord(0, "0", "x", "gen", "str", 0.0, pictures=(PictureRecord(48, 64, "00"),))
    target = RadixrtTarget(rt.Endpoint("http://127.0.0.1:9"), "a-model", ids=True)
    answer = asyncio.run(target.ask(Question(call, [], "Hi", None)))
    assert answer.error == "the call has pictures, which a trace does not keep"


def test_a_batch_goes_on_after_pictures(engine: Engine, pictures: tuple[Picture, ...], tmp_path: Path) -> None:
    first, second, _ = pictures
    path = tmp_path / "picture.png"
    path.write_bytes(png(second))
    image = Image.fromarray(first.pixels.numpy())

    @rt.function(**GREEDY)
    def read(s: rt.State, picture: Any) -> None:
        given = picture if isinstance(picture, ImageWord) else rt.image(picture, detail="low")
        s += rt.user(given + QUESTION) + rt.assistant(rt.gen("answer"))

    def items(other: Picture) -> list[Any]:
        return [image.copy(), png(first), first.pixels.numpy(), path, shown(other)]

    output = tmp_path / "answers.jsonl"
    before = read.batch(items(second), backend=engine, output=output, progress=False)
    assert [item.error for item in before] == [None] * 5
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert all(len(json.dumps(line["input"])) < 200 for line in lines)
    again = read.batch(items(second), backend=engine, output=output, resume=True, progress=False)
    assert [item.resumed for item in again] == [True] * 5
    other = read.batch(items(first), backend=engine, output=output, resume=True, progress=False)
    assert [item.resumed for item in other] == [True] * 4 + [False]


def test_pictures_stand_in_messages_of_the_user(engine: Engine, pictures: tuple[Picture, ...]) -> None:
    with rt.State(engine) as s:
        for role in ("system", "assistant"):
            s += rt.role_begin(role)
            with pytest.raises(ProgramError, match=rf"a picture in the {role} message; .* rt\.user"):
                s += shown(pictures[0])
            s += rt.role_end()
        with pytest.raises(ProgramError, match=r"a picture outside of a message; put it into rt\.user"):
            s += shown(pictures[0])


def test_a_picture_is_no_text(pictures: tuple[Picture, ...]) -> None:
    with pytest.raises(ProgramError, match=r"rt\.image\(\.\.\.\) is put into a text; append it"):
        f"{shown(pictures[0])}"


# --- mistakes ---


def gif(frames: int = 1, form: str = "GIF", **options: Any) -> bytes:
    """A file of grey pictures."""
    file = io.BytesIO()
    first, *rest = (Image.new("RGB", (8, 8), (40 * i, 0, 0)) for i in range(frames))
    first.save(file, form, **({"save_all": True, "append_images": rest} if rest else {}), **options)
    return file.getvalue()


@pytest.mark.parametrize(
    ("picture", "message"),
    [
        ("/nowhere/cat.png", "image: there is no file '/nowhere/cat.png'"),
        (str(Path(__file__).parent), "image: '.*core' is a folder, not a file"),
        ("https://example.com/cat.png", "image: URLs are not fetched here"),
        (b"", "image: .*PNG, JPEG or WEBP"),
        (b"no picture", "image: .*PNG, JPEG or WEBP"),
        (gif(), "image: .*GIF"),
        (gif(2, "WEBP"), "image: .*animated"),
        (gif(2, "PNG"), "image: .*animated"),
        (gif(form="PNG")[:20], "image: "),
        (b"\x89PNG\r\n\x1a\n" + bytes(11 * 1024 * 1024), "image: the image has 11534344 bytes, and may have 10485760"),
        (Image.new("L", (2010, 10)), "image: .*200 times"),
        (Image.new("RGB", (16_400, 100)), "image: .*a side may have 16384"),
        (np.zeros((0, 4, 3), np.uint8), r"image: an array must be uint8 \[height, width, 3\], not uint8 \[0, 4, 3\]"),
        (np.zeros((4, 4), np.uint8), r"image: an array must be uint8 \[height, width, 3\], not uint8 \[4, 4\]"),
        (np.zeros((4, 4, 3)), r"image: an array must be uint8 .* not float64"),
        (Image.fromarray(np.zeros((4, 4), np.float32)), "image: .*floating point"),
        (5, "image must be a path, the bytes of a file, a Pillow image"),
        (None, "image must be a path, the bytes of a file, a Pillow image"),
    ],
)
def test_a_wrong_picture_is_refused_where_it_stands(picture: Any, message: str) -> None:
    with pytest.raises(RequestError, match=message) as error:
        rt.image(picture)
    assert error.value.param == "image"


def test_a_wrong_detail() -> None:
    with pytest.raises(RequestError, match="detail must be auto, low, high, not 'most'") as error:
        rt.image(gif(form="PNG"), detail="most")
    assert error.value.param == "detail"


def test_a_model_that_reads_no_images(tiny_model: Callable[[str], Path], pictures: tuple[Picture, ...]) -> None:
    picture, refusal = shown(pictures[0]), r"rt\.image: llama reads no images; use a model of text and vision"

    @rt.function(**GREEDY)
    async def awaited(s: rt.State) -> Any:
        s += rt.user(picture + QUESTION) + rt.assistant(rt.gen("answer"))
        return await s.get("answer")

    with start(tiny_model("llama")) as engine:
        with pytest.raises(rt.CallError, match=refusal):  # an async program waits for nothing before its call
            asyncio.run(awaited.async_run(backend=engine))
        with rt.State(engine) as s, s.user():
            with pytest.raises(Unsupported, match=refusal):
                s += "Look: " + picture
            s += QUESTION
        assert s.messages() == [{"role": "user", "content": f"Look: {QUESTION}"}]
