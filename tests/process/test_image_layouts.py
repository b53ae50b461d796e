"""Pictures where the engine has several stages, memory besides the KV pool, or replicas: greedy answers equal those of
transformers, and a prefix with pictures is found wherever a prefix of text would be."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import radixrt
from radixrt.engine.engine import Completion
from radixrt.parts.tiers.policy import Prices
from tests.equivalence.images import Picture, greedy
from tests.process.test_images import QUESTION, TOKENS, prompt
from tests.server_process import LIMIT_S, wait_for

OPTIONS: dict[str, Any] = {
    "dtype": "float32", "kv_cache_tokens": 4096, "num_threads": 1, "check_invariants": True, "show_progress": False,
}  # fmt: skip
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": TOKENS, "min_tokens": TOKENS}
LONG: dict[str, Any] = {"temperature": 0, "max_tokens": 600, "min_tokens": 600}
PICTURE, OTHER, WIDE = Picture(128, 128, 0), Picture(128, 128, 1), Picture(64, 112, 2)
"""Of Qwen3-VL's tiny model: 64, 64 and 28 tokens."""
SQUARES = Picture(64, 64, 0), Picture(64, 64, 1), Picture(64, 64, 2)
"""Of LLaVA's: 64 tokens each."""


def chat(*pictures: Picture, question: str = QUESTION) -> list[dict[str, Any]]:
    content = [*({"type": "image", "image": each.pixels.numpy()} for each in pictures)]
    return [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]


def check(engine: radixrt.Engine, folder: Path, *pictures: Picture, question: str = QUESTION) -> Completion:
    """Ask about pictures, and compare the answer with that of transformers."""
    answer = engine.generate(chat(*pictures, question=question), GREEDY)
    assert isinstance(answer, Completion)
    assert tuple(answer.token_ids) == greedy(folder, prompt(folder, list(pictures), question), TOKENS)
    return answer


def encoded(engine: radixrt.Engine, replica: int) -> int:
    """Number of images whose encoding a replica has begun."""
    found = engine.client.replica_stats.get(replica)
    if found is None or found.stats is None or found.stats.media is None:
        return 0
    return found.stats.media.encoded


@pytest.mark.parametrize(("kind", "pictures"), [("qwen3_vl", (PICTURE, OTHER, WIDE)), ("llava", SQUARES)])
def test_the_first_of_two_stages_has_the_tower(
    kind: str, pictures: tuple[Picture, Picture, Picture], tiny_model: Callable[[str], Path]
) -> None:
    folder = tiny_model(kind)
    first, second, third = pictures
    with radixrt.Engine(str(folder), pp=2, chunked_prefill_size=48, **OPTIONS) as engine:
        for shown in ((first,), (second, first), (third,), (first,)):
            answer = check(engine, folder, *shown)
        assert answer.usage.cached_tokens == answer.usage.prompt_tokens - 1
        os.kill(engine.pids["ModelRunner 0"], signal.SIGKILL)
        check(engine, folder, second, third)
        engine.check_invariants()


@pytest.mark.parametrize("kind", ["qwen3_vl", "qwen3_5_vl"])
def test_prefixes_with_pictures_from_host_memory(
    kind: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pool holds two of the prompts; the same text with other pixels is another prefix."""
    monkeypatch.setattr(Prices, "pays", lambda *_: True)
    folder = tiny_model(kind)
    options = {**OPTIONS, "kv_cache_tokens": 384, "kv_host_gib": 0.02, "max_running_requests": 4}
    with radixrt.Engine(str(folder), executor="uni", **options) as engine:
        orders = (PICTURE, OTHER), (OTHER, PICTURE), (WIDE, PICTURE), (OTHER, OTHER)
        answers = [check(engine, folder, *shown) for _ in range(3) for shown in orders]
        assert sum(answer.usage.fetched_tokens.get("host", 0) for answer in answers) >= 64
        engine.check_invariants()


def test_prefixes_with_pictures_of_an_earlier_engine_from_disk(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Prices, "pays", lambda *_: True)
    folder = tiny_model("qwen3_vl")
    options = {**OPTIONS, "kv_host_gib": 0.02, "kv_disk": str(tmp_path / "kv"), "kv_disk_gib": 0.1}
    with radixrt.Engine(str(folder), executor="uni", **options) as engine:
        first = check(engine, folder, PICTURE, OTHER)
        assert first.usage.cached_tokens == 0
    with radixrt.Engine(str(folder), executor="uni", **options) as engine:
        again = check(engine, folder, PICTURE, OTHER)
        assert again.usage.fetched_tokens["disk"] == first.usage.prompt_tokens // 64 * 64 == 128
        assert engine.stats is not None
        other = check(engine, folder, OTHER, PICTURE)
        assert other.usage.cached_tokens < 10, "the text before the first picture"
        # Within the fetched prefix no image is encoded; the last of its tokens need the second image.
        assert check(engine, folder, PICTURE, WIDE).usage.cached_tokens >= 64
        engine.check_invariants()


def test_a_picture_goes_to_the_replica_that_has_it(tiny_model: Callable[[str], Path]) -> None:
    """Chunks cut the picture, so that the router learns of it piece by piece."""
    folder = tiny_model("qwen3_vl")
    with radixrt.Engine(str(folder), replicas=2, chunked_prefill_size=24, **OPTIONS) as engine:
        assert wait_for(lambda: len(engine.client.replica_stats) == 2)
        check(engine, folder, PICTURE)
        assert wait_for(lambda: encoded(engine, 0) + encoded(engine, 1) == 1)
        first = 0 if encoded(engine, 0) else 1
        # The replica with the picture is busy, so that another picture goes to the other replica.
        stream = engine.stream(chat(PICTURE), LONG)
        next(stream)
        check(engine, folder, OTHER)
        assert wait_for(lambda: encoded(engine, 1 - first) == 1)
        stream.close()  # type: ignore[attr-defined]
        assert wait_for(lambda: engine.client.open_requests == 0)
        for question in ("Which colors?", "How many?", "Where is it?"):
            for picture in (OTHER, PICTURE):
                assert check(engine, folder, picture, question=question).usage.cached_tokens >= 64
        assert encoded(engine, 0) + encoded(engine, 1) == 2
        engine.check_invariants()
        # Another replica takes over in the middle of an answer, and needs the picture too.
        expected = engine.generate(chat(PICTURE), LONG)
        stream = engine.stream(chat(PICTURE), LONG)
        found = next(stream).token_ids
        os.kill(engine.pids[f"replica {first} scheduler"], signal.SIGKILL)
        found = [*found, *(token for chunk in stream for token in chunk.token_ids)]
        assert isinstance(expected, Completion)
        assert found == expected.token_ids


def ask_all(engine: radixrt.Engine, pictures: list[Picture], errors: list[Exception]) -> None:
    try:
        engine.generate([chat(each) for each in pictures], LONG)
    except radixrt.EngineError as error:
        errors.append(error)


def test_a_tokenizer_that_dies_beside_requests_with_pictures(tiny_model: Callable[[str], Path]) -> None:
    """Its successor removes the files of pixels. Replicas keep their processes and caches, and fail no step."""
    folder = tiny_model("qwen3_vl")
    with radixrt.Engine(str(folder), replicas=2, chunked_prefill_size=16, **OPTIONS) as engine:
        check(engine, folder, PICTURE)
        before = engine.pids
        for number in range(2):
            shown = [Picture(128, 128, 10 * number + i) for i in range(8)]
            errors: list[Exception] = []
            thread = threading.Thread(target=ask_all, args=(engine, shown, errors))
            thread.start()
            assert wait_for(lambda: engine.client.open_requests == 8)
            # The first time pictures are being decoded, the second time they are being encoded.
            assert not number or wait_for(lambda: encoded(engine, 0) + encoded(engine, 1) > 2)
            pid = engine.pids["tokenizer"]
            os.kill(pid, signal.SIGKILL)
            thread.join(LIMIT_S)
            assert [type(error) for error in errors] == [radixrt.EngineError]
            assert wait_for(lambda pid=pid: engine.pids.get("tokenizer", pid) != pid)
            assert check(engine, folder, PICTURE).usage.cached_tokens >= 64
        # The pictures that were being decoded are refused from now on; others are not.
        check(engine, folder, Picture(128, 128, 99))
        kept = {name: pid for name, pid in engine.pids.items() if name.startswith("replica")}
        assert kept == {name: pid for name, pid in before.items() if name.startswith("replica")}
        resets = [each.stats.cache_resets for each in engine.client.replica_stats.values() if each.stats is not None]
        assert all("step_failed" not in found for found in resets)
        engine.check_invariants()
