"""Pictures of chats: their keys in rows, their files, and errors that name them."""

from __future__ import annotations

import io
import json
import os
import select
import stat
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from radixrt.errors import RequestError
from radixrt.messages.client import ClientRequest, InputRow, PartsInput
from radixrt.messages.images import image_keys
from radixrt.messages.parts import ChatPrompt, Finish, ImageInput, TemplateText
from radixrt.messages.request import Envelope, Request
from radixrt.messages.scheduler import AbortReq
from radixrt.messages.wire import unpack_i32
from radixrt.models.vision_spec import VisionSpec
from radixrt.sampling_params import SamplingParams
from radixrt.tokenizer import image_reader
from radixrt.tokenizer.image_reader import ImageReader, picture_key
from radixrt.tokenizer.prompt_queue import PromptQueue
from radixrt.tokenizer.tokenizer import Tokenizer
from radixrt.vision.limits import ImageLimits
from radixrt.vision.processor import ImageProcessor
from tests.client_requests import generating, pooling, scoring, tokenizing
from tests.tiny_models import TILE_TOKENS, VISION_TEMPLATES, VISION_TOKENS, save_tokenizer
from tests.tokenizer.worker_bench import Bench
from tests.vision.pictures import encoded, picture, random_image

QWEN = {"size": {"shortest_edge": 1024, "longest_edge": 16_384}}
TILES = {"size": {"longest_edge": 128}, "max_image_size": {"longest_edge": 64}, "resample": 1}
SPEC = {"depth": 1, "hidden": 8, "intermediate": 8, "heads": 1, "out_size": 8, "table_side": 8}
SPECS = {
    "qwen_vl": VisionSpec("qwen_vl", 5, (3, 4, 6), patch=8, merge=2, **SPEC),
    "idefics3": VisionSpec("idefics3", 3, (), patch=8, merge=2, **SPEC),
    "llava": VisionSpec("llava", 3, (), patch=8, merge=1, **SPEC),
}
SETTINGS = {"qwen_vl": QWEN, "idefics3": TILES, "llava": {"size": {"shortest_edge": 64}, "crop_size": 64}}
OK = SamplingParams()


class ImageBench(Bench):
    """A worker of a model that reads images."""

    def __init__(self, folder: Path, kind: str = "qwen_vl", **options: Any) -> None:
        self.folder = folder
        qwen = kind == "qwen_vl"
        self.spec = SPECS[kind]
        template = options.pop("template", VISION_TEMPLATES["qwen" if qwen else "tiles"])
        save_tokenizer(folder, VISION_TOKENS if qwen else TILE_TOKENS, template)
        (folder / "preprocessor_config.json").write_text(json.dumps(SETTINGS[kind]))
        limits, keep = options.pop("limits", ImageLimits(4)), options.pop("keep_bytes", 10**6)
        most = options.pop("max_bytes", 10**9)
        self.reader = ImageReader(
            lambda: ImageProcessor.of(folder, kind, patch=8, merge=self.spec.merge, max_tokens=2048),
            folder / "images",
            limits,
            keep_bytes=keep,
            max_bytes=most,
        )
        tokenizer = Tokenizer.from_folder(folder)
        super().__init__(tokenizer, **{"context_length": 2000, "vision": self.spec, "images": self.reader, **options})

    def files(self) -> list[Path]:
        return sorted((self.folder / "images").iterdir())

    def row(self, message: ClientRequest) -> tuple[Request, np.ndarray]:
        self.handle(message)
        request = self.scheduler.recv()
        assert isinstance(request, Request), self.deltas()
        return request, request.tokens(0)


@pytest.fixture
def bench(tmp_path):
    made = ImageBench(tmp_path)
    yield made
    made.reader.close()


def chat(*contents: Any, detail: str = "auto", **options: Any) -> ChatPrompt:
    """Conversation of one message of the user; bytes are pictures."""
    parts = [{"type": "image"} if isinstance(each, bytes) else {"type": "text", "text": each} for each in contents]
    images = [
        ImageInput(each, detail, f"messages[0].content[{i}]")
        for i, each in enumerate(contents)
        if isinstance(each, bytes)
    ]
    return ChatPrompt(json.dumps([{"role": "user", "content": parts}]).encode(), images=images, **options)


def test_keys_stand_where_the_template_writes_images(bench):
    data, other = picture(42, 70), picture(64, 32, seed=1)
    request, ids = bench.row(generating("r", OK, chat=chat("What is ", data, " and ", other, "?")))
    first, second = request.rows[0].images

    def encode(text):
        return bench.tokenizer.encode(text, add_special_tokens=False)

    before = encode("<|im_start|>user\nWhat is <|vision_start|>")
    between = encode("<|vision_end|> and <|vision_start|>")
    after = encode("<|vision_end|>?<|im_end|>\n<|im_start|>assistant\n")
    assert (first.rows, first.columns, first.count) == (3, 4, 12)  # 42 x 70 becomes 48 x 64 pixels
    assert (first.height, first.width) == (48, 64)
    assert (first.start, second.start) == (len(before), len(before) + 12 + len(between))
    assert ids.tolist() == [
        *before, *image_keys(first.digest, 12), *between, *image_keys(second.digest, second.count), *after,
    ]  # fmt: skip
    assert request.turn_len == len(ids) - len(encode("<|im_start|>assistant\n"))
    pixels = np.fromfile(first.pixels, np.uint8).reshape(48, 64, 3)
    (tile,) = ImageProcessor.of(bench.folder, "qwen_vl", patch=8, merge=2, max_tokens=2048).process(data)
    np.testing.assert_array_equal(pixels, tile.pixels)
    assert first.digest == tile.digest
    assert stat.S_IMODE(os.stat(first.pixels).st_mode) == 0o600


@pytest.mark.parametrize("size", [(100, 100), (64, 64), (128, 40), (30, 300)])
@pytest.mark.parametrize("detail", ["auto", "low"])
def test_tiles_are_written_as_by_the_processor_of_idefics3(tmp_path, size, detail):
    from transformers import Idefics3Processor, PreTrainedTokenizerFast
    from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

    bench = ImageBench(tmp_path, "idefics3")
    image = random_image(0, *size)
    request, ids = bench.row(generating("r", OK, chat=chat("Look: ", encoded(image), "\nWhat?", detail=detail)))
    template = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    settings = Idefics3ImageProcessorPil(**TILES, do_image_splitting=detail == "auto")
    oracle = Idefics3Processor(settings, template, image_seq_len=16)
    text = "<|im_start|>user\nLook: <image>\nWhat?<|im_end|>\n<|im_start|>assistant\n"
    expected = oracle(text=[text], images=[[image]])["input_ids"][0]
    assert np.where(ids < 0, 3, ids).tolist() == expected
    for tile in request.rows[0].images:
        assert ids[tile.start : tile.end].tolist() == image_keys(tile.digest, 16).tolist()
    assert [len(set(ids[tile.start : tile.end])) for tile in request.rows[0].images].count(16) >= 1


def test_llava(tmp_path):
    bench = ImageBench(tmp_path, "llava")
    request, ids = bench.row(generating("r", OK, chat=chat(picture(100, 80), "\nWhat?")))
    (image,) = request.rows[0].images
    assert (image.rows, image.columns) == (8, 8)
    assert (ids < 0).sum() == 64


@pytest.mark.parametrize("typed", ["<|image_pad|>", "<|vision_start|><|image_pad|><|vision_end|>", "<|image_pad"])
def test_typed_placeholders_stay_text(bench, typed):
    request, ids = bench.row(generating("r", OK, chat=chat(f"{typed} ", picture(40, 40), f"|>{typed}")))
    (image,) = request.rows[0].images
    assert 5 not in ids
    assert (ids < 0).sum() == image.count
    text = bench.tokenizer.decode(ids[ids >= 0].tolist(), skip_special_tokens=False)
    assert text.count(typed) >= 2


def test_a_placeholder_without_an_image_is_text(bench):
    _, ids = bench.row(generating("r", OK, chat=chat("<|image_pad|>")))
    assert 5 not in ids
    assert (ids >= 0).all()


def test_control_tokens_that_are_allowed_are_no_images(bench):
    error = bench.refused(generating("r", OK, chat=chat("<|image_pad|>", picture(40, 40), allow_control_tokens=True)))
    assert error.param == "messages[0].content[1]"
    assert "writes 2 images, and the messages have 1" in error.message


def test_a_template_that_writes_no_images(tmp_path):
    bench = ImageBench(tmp_path, template="{% for message in messages %}{{ message['content'] }}{% endfor %}")
    error = bench.refused(generating("r", OK, chat=chat("Hi", picture(40, 40))))
    assert error.param == "messages[0].content[1]"
    assert "writes 0 images" in error.message


def test_the_client_sees_image_tokens(bench):
    _, ids = bench.row(generating("r", OK, chat=chat("Hi", picture(40, 40))))
    (output,) = bench.tokens("a", finish=Finish("stop"))
    assert output.prompt_token_ids == np.where(ids < 0, 5, ids).tolist()
    bench.handle(tokenizing("t", chat=chat("Hi", picture(40, 40))))
    (tokens,) = bench.deltas()
    assert tokens.prompt_token_ids == output.prompt_token_ids


def test_prompt_logprobs_are_of_image_tokens(bench):
    request, ids = bench.row(generating("r", SamplingParams(prompt_logprobs=1), chat=chat("Hi", picture(40, 40))))
    targets = unpack_i32(request.rows[0].logprobs.targets)
    assert targets.tolist() == np.where(ids < 0, 5, ids)[1:].tolist()


def test_choices_after_a_picture(bench):
    request, _ = bench.row(scoring("s", ["yes", "no"], chat=chat("Hi", picture(40, 40))))
    plain, _ = bench.row(generating("r", OK, chat=chat("Hi", picture(40, 40))))
    expected = unpack_i32(plain.rows[0].ids)
    (prefix,) = request.prefixes
    prefix = unpack_i32(prefix)
    assert prefix.tolist() == expected[: len(prefix)].tolist()
    assert all(row.images == plain.rows[0].images for row in request.rows)
    both, _ = bench.row(
        scoring("u", ["yes", "no"], "unconditional_likelihood_normalized", chat=chat("Hi", picture(40, 40)))
    )
    assert [bool(row.images) for row in both.rows] == [row.prefix == 0 for row in both.rows]
    assert (unpack_i32(both.prefixes[1]) >= 0).all()


def test_embedded_rows(bench):
    request, _ = bench.row(pooling("e", [chat("a", picture(40, 40)), chat("b"), chat(picture(30, 90, seed=2), "c")]))
    assert [len(row.images) for row in request.rows] == [1, 0, 1]
    assert (request.tokens(2) < 0).sum() == request.rows[2].images[0].count


# --- prompts in parts ---

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def in_parts(*parts: Any, pictures: list[bytes]) -> PartsInput:
    """Prompt in parts; texts in tuples are the template's."""
    texts = [TemplateText(each[0]) if isinstance(each, tuple) else each for each in parts]
    return PartsInput(texts, [ImageInput(each) for each in pictures])


def test_parts_have_the_keys_of_a_chat(bench):
    data, other = picture(42, 70), picture(64, 32, seed=1)
    chat_request, expected = bench.row(generating("c", OK, chat=chat("What is ", data, " and ", other, "?")))
    head, end = ("<|im_start|>user\n",), ("<|im_end|>\n<|im_start|>assistant\n",)
    prompt = in_parts(head, "What is ", (IMAGE,), " and ", (IMAGE,), "?", end, pictures=[data, other])
    request, ids = bench.row(generating("r", OK, chat=prompt))
    assert ids.tolist() == expected.tolist()
    assert request.rows[0].images == chat_request.rows[0].images
    (output,) = bench.tokens("a", finish=Finish("stop"))
    assert output.prompt_token_ids == ids.tolist()  # keys, so that a later prompt can begin with them
    bench.handle(tokenizing("t", chat=prompt))
    (tokens,) = bench.deltas()
    assert tokens.prompt_token_ids == ids.tolist()


@pytest.mark.parametrize("kind", ["qwen_vl", "idefics3"])
def test_token_ids_with_keys_begin_a_later_prompt(tmp_path, kind):
    bench = ImageBench(tmp_path, kind)
    image = IMAGE if kind == "qwen_vl" else "<image>"
    data, other = picture(100, 70), picture(64, 32, seed=1)
    whole, expected = bench.row(
        generating("w", OK, chat=in_parts("A ", (image,), " b ", (image,), " c", pictures=[data, other]))
    )
    first, known = bench.row(generating("f", OK, chat=in_parts("A ", (image,), pictures=[data])))
    prompt = in_parts(known.tolist(), " b ", (image,), " c", pictures=[data, other])
    request, ids = bench.row(generating("r", OK, chat=prompt))
    assert first.rows[0].images == whole.rows[0].images[: len(first.rows[0].images)]
    assert request.rows[0].images == whole.rows[0].images
    assert np.where(ids < 0, 0, ids).tolist() == np.where(expected < 0, 0, expected).tolist()
    scored, _ = bench.row(scoring("s", ["yes", "no"], chat=prompt))
    (prefix,) = (unpack_i32(each) for each in scored.prefixes)
    assert prefix.tolist() == ids[: len(prefix)].tolist()
    assert all(row.images == request.rows[0].images for row in scored.rows)


@pytest.mark.parametrize("wrong", ["other picture", "no picture", "part of a picture", "image token", "order"])
def test_token_ids_with_keys_of_other_pictures(bench, wrong):
    data, other = picture(42, 70), picture(64, 32, seed=1)
    _, known = bench.row(generating("f", OK, chat=in_parts("A ", (IMAGE,), (IMAGE,), pictures=[data, other])))
    bench.tokens("a", rid="f", finish=Finish("stop"))
    ids, pictures = known.tolist(), [data, other]
    if wrong == "other picture":
        pictures = [data, picture(64, 32, seed=2)]
    elif wrong == "no picture":
        pictures = [data]
    elif wrong == "part of a picture":
        ids = [token for i, token in enumerate(ids) if i != np.flatnonzero(known < 0)[3]]
    elif wrong == "image token":
        ids = [*ids, 5]
    else:
        pictures = [other, data]
    error = bench.refused(generating("r", OK, chat=in_parts(ids, "?", pictures=pictures)))
    assert error.param == "input_parts[0]"
    assert "send token ids as the engine has reported them, with the same pictures" in error.message


def test_keys_without_pictures_are_no_token_ids(bench):
    error = bench.refused(generating("r", OK, chat=in_parts([7, -5], pictures=[])))
    assert "holds -5 at position 1; token ids are below" in error.message


def test_parts_with_another_number_of_pictures(bench):
    error = bench.refused(generating("r", OK, chat=in_parts("A ", (IMAGE,), (IMAGE,), pictures=[picture(40, 40)])))
    assert "writes 2 images, and the messages have 1" in error.message
    _, ids = bench.row(generating("t", OK, chat=in_parts("<|image_pad|> ", (IMAGE,), pictures=[picture(40, 40)])))
    assert 5 not in ids  # typed text stays text


# --- files ---


def test_files_are_shared_counted_and_removed(tmp_path):
    bench = ImageBench(tmp_path, keep_bytes=0)
    data = picture(40, 40)
    one, _ = bench.row(generating("a", OK, chat=chat("Hi", data, data)))
    two, _ = bench.row(
        generating("b", OK, chat=chat("Hi", encoded(Image.open(io.BytesIO(data)), "WEBP", lossless=True)))
    )
    assert len({image.pixels for request in (one, two) for image in request.rows[0].images}) == 1
    assert len(bench.files()) == 1
    bench.tokens("a", rid="a", finish=Finish("stop"))
    assert len(bench.files()) == 1
    bench.tokens("a", rid="b", finish=Finish("stop"))
    assert bench.files() == []
    assert len(bench.reader.files) == 0


def test_a_known_picture_is_not_decoded_again(bench, monkeypatch):
    data = picture(40, 40)
    one, _ = bench.row(generating("a", OK, chat=chat("Hi", data)))
    bench.tokens("a", rid="a", finish=Finish("stop"))
    monkeypatch.setattr(bench.reader._processor, "process", None)
    two, _ = bench.row(generating("b", OK, chat=chat("Hi", data)))
    assert two.rows[0].images == one.rows[0].images
    assert Path(two.rows[0].images[0].pixels).exists()


def test_a_picture_of_another_namespace_is_decoded_again(bench, monkeypatch):
    """The time of an answer would tell which pictures another tenant has sent."""
    data, decoded, written = picture(40, 40), [], []
    process, fdopen = ImageProcessor.process, os.fdopen

    def counted(self, *args):
        decoded.append(args)
        return process(self, *args)

    def opened(descriptor, *args):
        written.append(descriptor)
        return fdopen(descriptor, *args)

    monkeypatch.setattr(ImageProcessor, "process", counted)
    monkeypatch.setattr(os, "fdopen", opened)
    for number, (namespace, times) in enumerate([("k1:a", 1), ("k1:b", 2), ("k1:a", 2), ("k1:b", 2), ("", 3)]):
        bench.row(generating(f"r{number}", OK, chat=chat("Hi", data), cache_salt=namespace))
        bench.tokens("a", rid=f"r{number}", finish=Finish("stop"))
        assert len(decoded) == len(written) == times
    assert len(bench.files()) == 1, "files are shared, since equal pixels are equal files"


def test_the_oldest_unused_file_goes_first(tmp_path):
    bench = ImageBench(tmp_path, keep_bytes=2 * 32 * 32 * 3)
    paths = []
    for i in range(3):
        request, _ = bench.row(generating(f"{i}", OK, chat=chat("Hi", picture(40, 40, seed=i))))
        paths.append(Path(request.rows[0].images[0].pixels))
        bench.tokens("a", rid=f"{i}", finish=Finish("stop"))
    assert [path.exists() for path in paths] == [False, True, True]


@pytest.mark.parametrize("end", ["refused", "answered", "aborted"])
def test_files_of_requests_that_never_reach_the_scheduler(tmp_path, end):
    bench = ImageBench(tmp_path, keep_bytes=0)
    prompt = chat("Hi", picture(40, 40))
    if end == "refused":
        bench.refused(generating("r", OK, chat=prompt, keep_last=5))
    elif end == "answered":
        bench.handle(tokenizing("r", chat=prompt))
        assert len(bench.deltas()) == 1
    else:
        bench.row(generating("r", OK, chat=prompt))
        bench.handle(AbortReq("r"))
        bench.tokens("", rid="r", finish=Finish("abort"))
    assert bench.files() == []
    assert bench.worker._jobs == {}


def test_files_of_another_process_are_removed(tmp_path):
    bench = ImageBench(tmp_path)
    bench.row(generating("r", OK, chat=chat("Hi", picture(40, 40))))
    assert len(bench.files()) == 1
    again = ImageBench(tmp_path)
    assert again.files() == []


def test_a_picture_that_killed_its_process_is_refused(tmp_path):
    data = picture(40, 40)
    began, going = threading.Event(), threading.Event()
    first = ImageBench(tmp_path)
    first.reader._loaded("x")
    process = first.reader._processor.process

    def stop(*args):
        began.set()
        assert going.wait(60)
        return process(*args)

    first.reader._processor.process = stop
    job = first.reader.begin([ImageInput(data, "auto", "image")], "", "", 1000)
    assert began.wait(60)
    (trace,) = first.files()  # all that is left if the process dies now
    left = trace.name
    going.set()
    job._futures[0].result(60)
    assert trace not in first.files()
    (tmp_path / "images" / left).touch()
    for again in (ImageBench(tmp_path), ImageBench(tmp_path)):
        error = again.refused(generating("r", OK, chat=chat("Hi", data)))
        assert error.param == "messages[0].content[1]"
        assert "a process has failed while it decoded this image" in error.message
        again.row(generating("s", OK, chat=chat("Hi", picture(40, 40, seed=1))))


def test_a_decoder_that_hangs_stops_the_heartbeat(bench, monkeypatch):
    going, began = threading.Event(), threading.Event()
    bench.reader._loaded("x")
    process = bench.reader._processor.process

    def slow(*args):
        began.set()
        assert going.wait(60)
        return process(*args)

    monkeypatch.setattr(bench.reader._processor, "process", slow)
    job = bench.reader.begin([ImageInput(picture(40, 40))], "", "", 1000)
    assert began.wait(60)
    assert not bench.worker.is_overdue()
    monkeypatch.setattr(image_reader, "MAX_DECODE_S", -1.0)
    assert bench.worker.is_overdue()
    going.set()
    job._futures[0].result(60)
    assert not bench.worker.is_overdue()
    job.release()


def test_only_the_decoder_that_hangs_is_blamed(tmp_path):
    first = ImageBench(tmp_path)
    hangs, innocent = (picture(40, 40, seed=seed) for seed in range(2))
    hung, other = (picture_key(data, "auto") for data in (hangs, innocent))
    began, going = threading.Event(), threading.Event()

    def decode():
        with first.reader._suspected(other):
            began.set()
            assert going.wait(60)

    thread = threading.Thread(target=decode)
    thread.start()
    assert began.wait(60)
    with first.reader._suspected(hung):
        first.reader._began[threading.get_ident()] = (time.monotonic() - 31, hung)
        assert first.reader.is_overdue()
        assert first.reader.is_overdue()
        left = [path.name for path in first.files()]
    assert left == [f"decoding-{other.hex()}", f"hung-{hung.hex()}"]
    assert not first.reader.is_overdue()
    going.set()
    thread.join(60)
    assert first.files() == []  # both have ended after all
    for name in left:
        (tmp_path / "images" / name).touch()
    for again in (ImageBench(tmp_path), ImageBench(tmp_path)):
        assert "has failed" in again.refused(generating("r", OK, chat=chat("Hi", hangs))).message
        again.row(generating("s", OK, chat=chat("Hi", innocent)))


# --- room ---


def test_the_files_of_requests_are_bounded(tmp_path):
    size = 48 * 48 * 3
    bench = ImageBench(tmp_path, keep_bytes=10 * size, max_bytes=2 * size)
    for rid in ("a", "b", "shared"):
        bench.row(generating(rid, OK, chat=chat("Hi", picture(48, 48, seed=rid == "a"))))
    bench.handle(generating("c", OK, chat=chat("Hi", picture(48, 48, seed=2))))
    (output,) = bench.deltas()
    error = output.finish.error
    assert (error.status, error.code, error.param) == (503, "busy", "messages[0].content[1]")
    assert f"take {2 * size} bytes, and may take {2 * size}" in error.message
    with pytest.raises(RequestError, match=r"may take"):
        bench.reader.files.store(b"new", np.zeros((48, 48, 3), np.uint8), "image")
    bench.tokens("a", rid="a", finish=Finish("stop"))
    bench.row(generating("d", OK, chat=chat("Hi", picture(48, 48, seed=2))))
    for rid in ("b", "shared", "d"):
        bench.tokens("a", rid=rid, finish=Finish("stop"))
    assert bench.reader.files._used_bytes == 0


def test_a_full_disk(bench):
    class Full:
        nbytes = 1

        def tobytes(self):
            raise OSError(28, "No space left on device")

    with pytest.raises(RequestError, match="image: the pixels of the image cannot be stored: No space left") as caught:
        bench.reader.files.store(b"new", Full(), "image")
    assert caught.value.status == 503
    assert bench.files() == []
    assert bench.reader.files._used_bytes == 0


def test_a_large_picture_is_not_passed_by_small_ones():
    room, order, threads = image_reader._Room(10), [], []

    def decode(pixels):
        with room.taken(pixels):
            order.append(pixels)

    with room.taken(5):
        for waiting, pixels in enumerate((8, 3, 2), 1):
            threads.append(threading.Thread(target=decode, args=(pixels,)))
            threads[-1].start()
            while len(room._waiting) < waiting:
                threads[-1].join(0.001)
                assert threads[-1].is_alive()  # it waits behind the picture of 8
    for thread in threads:
        thread.join(60)
    assert order[0] == 8
    assert sorted(order) == [2, 3, 8]


# --- turns ---


def test_a_client_waits_for_its_pictures_and_others_do_not(tmp_path, monkeypatch):
    bench = ImageBench(tmp_path, queue=PromptQueue(threaded=True))
    going = threading.Event()
    bench.reader._loaded("x")
    process = bench.reader._processor.process

    def slow(*args):
        assert going.wait(60)
        return process(*args)

    monkeypatch.setattr(bench.reader._processor, "process", slow)
    bench.handle(generating("a1", OK, chat=chat("Hi", picture(40, 40)), client="a"))
    bench.handle(generating("a2", OK, prompt="Hi", client="a"))
    bench.handle(generating("a3", OK, chat=chat("Hi", picture(40, 40)), client="a"))
    for i in range(3):
        bench.handle(generating(f"b{i}", OK, prompt="Hi", client="b"))
    assert [message.rid for message in received(bench, 3)] == ["b0", "b1", "b2"]
    bench.handle(AbortReq("a3"))
    going.set()
    assert [message.rid for message in received(bench, 2)] == ["a1", "a2"]
    bench.handle(generating("a4", OK, prompt="Hi", client="a"))
    assert [message.rid for message in received(bench, 1)] == ["a4"]
    bench.worker.queue.close()


def test_token_ids_with_pictures_do_not_stop_the_worker(tmp_path, monkeypatch):
    """Such prompts wait for their pictures in the thread of prompts, beside the outputs of other requests."""
    bench = ImageBench(tmp_path, queue=PromptQueue(threaded=True))
    data = picture(40, 40)
    bench.handle(generating("known", OK, chat=in_parts("A ", (IMAGE,), pictures=[data])))
    (known,) = received(bench, 1)
    going, process = threading.Event(), bench.reader._processor.process

    def slow(*args):
        assert going.wait(5), "the worker waits for the picture"
        return process(*args)

    monkeypatch.setattr(bench.reader._processor, "process", slow)
    prompt = in_parts(known.tokens(0).tolist(), pictures=[data])
    # In another namespace the picture is not known, so it is decoded.
    bench.handle(generating("r", OK, chat=prompt, cache_salt="other"))
    (output,) = bench.tokens("a", rid="known", finish=Finish("stop"))
    assert output.rid == "known"
    going.set()
    (request,) = received(bench, 1)
    assert request.rid == "r"
    assert request.tokens(0).tolist() == known.tokens(0).tolist()
    bench.worker.queue.close()


def received(bench: ImageBench, count: int) -> list[Any]:
    found: list[Any] = []
    poller = select.poll()
    poller.register(bench.worker.queue.fileno())
    while True:
        # `handle` may have taken the last results, behind which the descriptor is not readable.
        while (message := bench.scheduler.recv()) is not None:
            found.append(message)
        if len(found) >= count:
            return found
        assert poller.poll(60_000)
        bench.worker.poll()


# --- errors ---


def test_errors_name_the_part(bench):
    for contents, at, message in (
        (["Hi", b"GIF89a"], 1, "is a GIF; send PNG, JPEG or WEBP"),
        ([picture(40, 40), b""], 1, "the image is empty"),
        ([picture(40, 40)] * 5, 4, "this request has 5 images, and may have 4 (--max-images)"),
        ([picture(40, 40, format="JPEG")[:-200]], 0, "damaged"),
        ([picture(1, 201)], 0, "200 times"),
    ):
        error = bench.refused(generating("r", OK, chat=chat(*contents)))
        assert error.param == f"messages[0].content[{at}]"
        assert error.message.startswith(f"{error.param}: ")
        assert message in error.message
        assert error.status == 400
    assert bench.worker._jobs == {}


def test_a_model_that_reads_no_images(tmp_path):
    bench = ImageBench(tmp_path, vision=None, images=None)
    error = bench.refused(generating("r", OK, chat=chat("Hi", picture(40, 40))))
    assert error.message == "messages[0].content[1]: test reads no images; send text alone"
    assert (error.param, error.status) == ("messages[0].content[1]", 400)


def test_too_many_tokens_are_refused_before_decoding(tmp_path, monkeypatch):
    bench = ImageBench(tmp_path, context_length=60)
    bench.reader._loaded("x")
    monkeypatch.setattr(bench.reader._processor, "process", None)
    error = bench.refused(generating("r", OK, chat=chat("Hi", picture(128, 128))))
    assert (error.param, error.code) == ("messages[0].content[1]", "context_length_exceeded")
    monkeypatch.undo()
    error = bench.refused(generating("r", OK, chat=chat("Hi " * 40, picture(96, 96))))
    assert error.code == "context_length_exceeded"
    assert "resulted in" in error.message


def test_a_folder_without_sizes(tmp_path):
    bench = ImageBench(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    error = bench.refused(generating("r", OK, chat=chat("Hi", picture(40, 40))))
    assert error.status == 501
    assert "has no preprocessor_config.json" in error.message
    bench.row(generating("t", OK, prompt="text alone is served"))


def test_two_rows_of_a_request_may_have_the_same_picture(bench):
    data = picture(40, 40)
    request = ClientRequest(
        Envelope("r"), [InputRow(chat("a", data), targets=[7]), InputRow(chat("b", data), targets=[8])]
    )
    sent, _ = bench.row(request)
    assert sent.rows[0].images[0].digest == sent.rows[1].images[0].digest
