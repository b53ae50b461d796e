"""Makes the table "Images" of docs/benchmarks.md: prompts with images on one device, with dummy weights.

    python -m benchmarks.offline.images --shape qwen3-vl-8b [--images 64] [--size 1024x1024] [--output 128]
    python -m benchmarks.offline.images --shape smolvlm-256m --size 512x512 --workloads first conversation

Scheduler and ModelRunner run in this process, and get processed pixels: decoding pictures is the tokenizer's work. The
workloads:

- text: as many prompts of text, as long as those with an image.
- images: each prompt has an image of its own and 64 tokens of text.
- questions: all prompts have the same image and 64 tokens of their own.
- gaps: 32 requests decode while eight images of 2048 x 2048 pixels arrive; the gaps between two tokens of a decoding
  request, without and beside these images.
- first: the time to the first token of a prompt of one image, of 17 (the tiles of a divided picture), and of the latter
  again, with another question. CPU seconds are those of all threads.
- conversation: ten turns about one image. Each turn's prompt is all earlier turns with their answers, and a question.

The floor of a workload is the time of the tower's and the prompts' products at the peak rate (`--peak`, TFLOP/s of
bfloat16; attention to text is left out), and of reading all weights once for each output token at `--bandwidth` (GB/s).
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import shape_folder
from benchmarks.common.tables import table
from benchmarks.common.vision_shapes import VISION_CONFIGS
from benchmarks.offline.__main__ import machine_facts
from radixrt.channel import LocalChannel
from radixrt.config import make_config
from radixrt.engine import assembly
from radixrt.engine.settings import resolve_settings
from radixrt.executor.uniproc_executor import UniProcExecutor
from radixrt.messages.images import RowImage, image_keys
from radixrt.messages.parts import Usage
from radixrt.messages.request import Envelope, Request
from radixrt.messages.scheduler import TokenBatch
from radixrt.messages.wire import Int32Array, pack_i32, unpack_i32
from radixrt.models.model_config import load_model_spec
from radixrt.parts.media.scheduler import Media
from radixrt.sampling_params import SamplingParams

TEXT_TOKENS = 64
HEAD_TOKENS = 8
"""Tokens before an image."""
TILES = 17
TURNS = 10
LARGE = 2048
"""Side of an image of the workload `gaps`, in pixels."""


class Bench:
    """Scheduler and runner of a model in this process."""

    def __init__(self, shape: str, files: Path, options: dict[str, Any]) -> None:
        folder = shape_folder(shape)
        config = make_config(model=str(folder), executor="uni", load_format="dummy", **options)
        config, settings = resolve_settings(config, show_progress=False)
        answers: LocalChannel[Any] = LocalChannel()
        self._inbox: LocalChannel[Any] = LocalChannel()
        self._outbox: LocalChannel[Any] = LocalChannel()
        self.executor = UniProcExecutor(assembly.make_runner_worker(config, settings, answers), answers)
        self.loop = assembly.make_scheduler_loop(config, settings, self.executor, self._inbox, self._outbox)
        spec = load_model_spec(folder)
        assert spec.vision is not None
        assert spec.decoder is not None
        self._head = spec.vocab_size * spec.decoder.hidden_size
        self.spec, self._files, self._random = spec.vision, files, np.random.default_rng(0)
        self.times: dict[str, list[float]] = {}
        self.answers: dict[str, list[int]] = {}
        self.usages: dict[str, Usage] = {}
        self.open: set[str] = set()

    def image(self, size: tuple[int, int], start: int) -> RowImage:
        """Return an image of random pixels at a position of a row."""
        data = self._random.integers(0, 256, (*size, 3), np.uint8).tobytes()
        digest = hashlib.sha256(data).digest()
        path = self._files / digest.hex()
        path.write_bytes(data)
        rows, columns = self.spec.grid(*size)
        return RowImage(start, rows * columns, rows, columns, *size, digest, str(path))

    def send(self, rid: str, image: RowImage | None, text: int, output: int) -> None:
        """Send a request of an image and tokens of text behind it."""
        ids = self.text(text)
        if image is not None:
            ids = np.concatenate([ids[: image.start], image_keys(image.digest, image.count), ids[image.start :]])
        self.send_row(rid, ids, [] if image is None else [image], output)

    def send_row(self, rid: str, ids: Int32Array, images: list[RowImage], output: int) -> None:
        """Send a request of token ids and keys of images."""
        sampling = SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=output)
        made = Request.continue_prompt(Envelope(rid), pack_i32(ids), sampling)
        row = msgspec.structs.replace(made.rows[0], images=images)
        self._inbox.send(msgspec.structs.replace(made, rows=[row]))
        self.times[rid], self.answers[rid] = [], []
        self.open.add(rid)

    def text(self, length: int) -> Int32Array:
        """Return random token ids."""
        return self._random.integers(10, 10_000, length).astype(np.int32)

    def turn(self) -> None:
        """One turn of the loop; the times of tokens are noted."""
        self.loop.run_once(wait=False)
        while (message := self._outbox.recv()) is not None:
            if not isinstance(message, TokenBatch):
                continue
            now = time.perf_counter()
            for rid, token in zip(message.rids, unpack_i32(message.token_ids).tolist(), strict=True):
                self.times[rid].append(now)
                self.answers[rid].append(token)
            for delta in message.deltas:
                tokens = unpack_i32(delta.token_ids).tolist()
                self.times[delta.rid] += [now] * len(tokens)
                self.answers[delta.rid] += tokens
                if delta.usage is not None:
                    self.usages[delta.rid] = delta.usage
                if delta.finish is not None:
                    if delta.finish.error is not None:
                        raise RuntimeError(delta.finish.error.message)
                    self.open.discard(delta.rid)

    def serve(self) -> float:
        """Serve all open requests; return the seconds."""
        started = time.perf_counter()
        while self.open:
            self.turn()
        return time.perf_counter() - started

    def floor(
        self, encoded: int, size: tuple[int, int], tokens: int, output: int, peak: float, bandwidth: float
    ) -> float:
        """Return the least seconds for some encoded images, computed prompt tokens and decode steps."""
        model = self.executor._worker._runner._model  # type: ignore[attr-defined]
        weights = sum(each.numel() for each in model.layers.parameters())
        head = self._head
        operations = encoded * self.spec.flops(*size) + 2 * weights * tokens
        return float(operations / peak / 1e12 + output * 2 * (weights + head) / bandwidth / 1e9)

    @property
    def encoded(self) -> int:
        """Number of images that were encoded."""
        return self.loop._core.part(Media).encoded_images

    def forget(self) -> None:
        """Empty the cache and the encoder pool."""
        self.loop._core.flush_cache()


def workload(bench: Bench, name: str, count: int, size: tuple[int, int], output: int, run: int) -> tuple[float, float]:
    """Serve a workload from an empty cache; return its seconds, and those until half of the requests have a token."""
    bench.forget()
    shared = bench.image(size, 8)
    for i in range(count):
        image = {"text": None, "questions": shared}.get(name) if name != "images" else bench.image(size, 8)
        text = TEXT_TOKENS + (shared.count if name == "text" else 0)
        bench.send(f"{name}{run}-{i}", image, text, output)
    started = time.perf_counter()
    seconds = bench.serve()
    first = sorted(bench.times[f"{name}{run}-{i}"][0] - started for i in range(count))
    return seconds, first[count // 2]


def gaps(bench: Bench, output: int, images: int) -> list[float]:
    """Return the longest gap, the 99th percentile and the median of gaps between tokens of decoding requests, in ms:
    without images, and beside them."""
    bench.forget()
    begun: list[float] = []
    for round_ in range(2):
        rids, large = ([f"{name}{round_}-{i}" for i in range(n)] for name, n in (("gap", 32), ("large", images)))
        shown = [bench.image((LARGE, LARGE), 8) for _ in large]
        for rid in rids:
            bench.send(rid, None, 512, output)
        while min(len(bench.times[rid]) for rid in rids) < output // 3:
            bench.turn()
        begun.append(time.perf_counter())
        for rid, image in zip(large, shown, strict=True):
            bench.send(rid, image, TEXT_TOKENS, 1)
        bench.serve()
    ended = max(bench.times[rid][0] for rid in large)
    quiet, beside = [], []
    for rid in rids:
        for last, now in zip(bench.times[rid], bench.times[rid][1:], strict=False):
            if now < begun[-1] and last > max(bench.times[each][0] for each in rids):
                quiet.append(now - last)
            elif now > begun[-1] and last < ended:
                beside.append(now - last)
    return [1e3 * float(np.quantile(each, q)) for each in (quiet, beside) for q in (0.5, 0.99, 1.0)]


def first_tokens(bench: Bench, size: tuple[int, int], runs: int) -> list[list[str]]:
    """Return a row of the table for each prompt of the workload `first`: prompt tokens, images that are encoded, and
    medians of the seconds to the first token and of CPU seconds."""
    found: dict[str, list[tuple[int, int, float, float]]] = {}
    for run in range(runs + 1):
        bench.forget()
        made = [bench.image(size, 0) for _ in range(TILES + 1)]
        for name, images in (("1 image", made[:1]), (f"{TILES} images", made[1:]), (f"{TILES} images again", made[1:])):
            parts = [bench.text(HEAD_TOKENS) if name == "1 image" else np.arange(HEAD_TOKENS, dtype=np.int32)]
            placed = []
            for image in images:
                placed.append(msgspec.structs.replace(image, start=sum(map(len, parts))))
                parts.append(image_keys(image.digest, image.count))
            ids = np.concatenate([*parts, bench.text(TEXT_TOKENS)])
            encoded, cpu = bench.encoded, time.process_time()
            bench.send_row(f"{name} {run}", ids, placed, 1)
            seconds = bench.serve()
            result = len(ids), bench.encoded - encoded, seconds, time.process_time() - cpu
            found.setdefault(name, []).append(result)
    rows = []
    for name, results in found.items():
        tokens, encoded, *_ = results[-1]
        wall, cpu = (float(np.median([each[i] for each in results[1:]])) for i in (2, 3))
        rows.append([name, str(tokens), str(encoded), f"{wall:.2f}", f"{cpu:.2f}"])
    return rows


def conversation(bench: Bench, size: tuple[int, int], output: int) -> list[list[str]]:
    """Return a row of the table for each turn of a conversation about one image: prompt tokens, those that the cache
    had, images encoded so far, and the seconds to the first token."""
    bench.forget()
    image, before, rows = bench.image(size, HEAD_TOKENS), bench.encoded, []
    ids = np.concatenate([bench.text(HEAD_TOKENS), image_keys(image.digest, image.count)])
    for turn in range(TURNS):
        ids = np.concatenate([ids, bench.text(TEXT_TOKENS)])
        rid, started = f"turn {turn} {image.digest.hex()}", time.perf_counter()
        bench.send_row(rid, ids, [image], output)
        bench.serve()
        counts = len(ids), bench.usages[rid].cached_tokens, bench.encoded - before
        rows.append([str(turn + 1), *map(str, counts), f"{bench.times[rid][0] - started:.3f}"])
        ids = np.concatenate([ids, np.array(bench.answers[rid], np.int32)])
    return rows


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="qwen3-vl-8b", choices=sorted(VISION_CONFIGS))
    parser.add_argument("--images", type=int, default=64)
    parser.add_argument("--size", default="1024x1024", help="height x width in pixels")
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--runs", type=int, default=2)
    parser.add_argument("--workloads", nargs="+", default=["text", "images", "questions", "gaps"])
    parser.add_argument("--peak", type=float, default=989.0)
    parser.add_argument("--bandwidth", type=float, default=4800.0)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    given = parser.parse_args(argv)
    height, width = (int(side) for side in given.size.split("x"))
    options = {
        "max_image_tokens": 4096,
        "max_running_requests": 128,
        "context_length": 8192,
        **parse_options(given.set),
    }
    with tempfile.TemporaryDirectory() as files:
        bench = Bench(given.shape, Path(files), options)
        rows = []
        for name in [name for name in given.workloads if name in ("text", "images", "questions")]:
            found = [
                workload(bench, name, given.images, (height, width), given.output, run) for run in range(given.runs + 1)
            ]
            seconds, first = min(found[1:])
            each = int(np.prod(bench.spec.grid(height, width)))
            encoded = {"text": 0, "questions": 1}.get(name, given.images)
            tokens = given.images * TEXT_TOKENS + (each if name == "questions" else given.images * each)
            floor = bench.floor(encoded, (height, width), tokens, given.output, given.peak, given.bandwidth)
            shown = [f"{seconds:.2f}", f"{given.images / seconds:.1f}", f"{first:.2f}", f"{floor:.2f}"]
            rows.append([name, *shown, f"{100 * floor / seconds:.0f}"])
        if rows:
            print(table(["workload", "seconds", "requests/s", "first token of half, s", "floor, s", "share, %"], rows))
        if "gaps" in given.workloads:
            cells = gaps(bench, 600 if given.output > 16 else 40, 8)
            names = ["p50, ms", "p99", "longest", "p50 beside", "p99 beside", "longest beside"]
            print(table(names, [[f"{cell:.1f}" for cell in cells]]))
        if "first" in given.workloads:
            names = ["prompt", "tokens", "encoded", "first token, s", "CPU, s"]
            print(table(names, first_tokens(bench, (height, width), given.runs)))
        if "conversation" in given.workloads:
            names = ["turn", "prompt tokens", "cached", "encoded", "first token, s"]
            print(table(names, conversation(bench, (height, width), given.output)))
        one = bench.spec.flops(height, width)
        print(f"tower: {one / 1e12:.2f} TFLOP an image, {1e3 * one / given.peak / 1e12:.1f} ms at the peak")
    print("; ".join(f"{name}: {value}" for name, value in machine_facts().items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
