"""Offline workloads, their shared prefixes, and the least time that a device could take for them.

A prompt is a path of segments; requests whose paths begin with the same segments share these tokens. The prompts, and
the least that an engine has to compute and read, both follow from that.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.common.device_rates import Device
from benchmarks.common.model_shapes import Shape

LOWEST_ID, HIGHEST_ID = 10, 10_000
"""Range of prompt tokens; ids below are special tokens of some models."""


Paths = list[tuple[int, ...]]


@dataclass(frozen=True)
class Workload:
    """Requests that are submitted at once; in a conversation, once for each turn.

    Attributes:
        segments: int32 runs of tokens that prompts are made of.
        paths: for each request, the indices of the segments that its prompt consists of.
        outputs: for each request, its output tokens.
        counts_prompt: the figure is prompt tokens a second, not output tokens.
        turns: for each turn after the first, and each request, the index of the segment that follows its last answer.
    """

    name: str
    segments: list[npt.NDArray[np.int32]]
    paths: Paths
    outputs: list[int]
    counts_prompt: bool = False
    turns: tuple[tuple[int, ...], ...] = ()

    def prompts(self) -> list[list[int]]:
        return [np.concatenate([self.segments[i] for i in path]).tolist() for path in self.paths]

    def next_prompts(self, turn: int, prompts: list[list[int]], answers: Sequence[Sequence[int]]) -> list[list[int]]:
        """Prompts of turn 1 and later, from those of the turn before and its answers."""
        parts = zip(prompts, answers, self.turns[turn - 1], strict=True)
        return [[*prompt, *answer, *self.segments[segment].tolist()] for prompt, answer, segment in parts]

    def prompt_len(self, request: int) -> int:
        return sum(len(self.segments[i]) for i in self.paths[request])

    @property
    def prompt_tokens(self) -> int:
        return sum(self.prompt_len(i) for i in range(len(self.paths)))

    @property
    def output_tokens(self) -> int:
        """Tokens that all turns generate."""
        return sum(self.outputs) * (1 + len(self.turns))

    @property
    def counted_tokens(self) -> int:
        """Unit of the workload's figure."""
        return self.prompt_tokens if self.counts_prompt else self.output_tokens


class _Maker:
    """Draws lengths and segments; `scale` shrinks numbers of requests and lengths, none below 1."""

    def __init__(self, seed: int, scale: float) -> None:
        self._rng = np.random.default_rng(seed)
        self._scale = scale
        self.segments: list[npt.NDArray[np.int32]] = []

    def sized(self, count: int) -> int:
        return max(1, round(count * self._scale))

    def segment(self, length: int) -> int:
        """A new run of `length` random tokens, not scaled; returns its index."""
        self.segments.append(self._rng.integers(LOWEST_ID, HIGHEST_ID, length, dtype=np.int32, endpoint=True))
        return len(self.segments) - 1

    def lengths(self, low: int, high: int, count: int) -> list[int]:
        """Uniform in [low, high], scaled."""
        return [self.sized(n) for n in self._rng.integers(low, high, count, endpoint=True).tolist()]

    def shuffled(self, count: int) -> list[int]:
        return self._rng.permutation(count).tolist()


def _plain(
    make: _Maker, name: str, requests: int, prompt: int, output: int, *, counts_prompt: bool = False
) -> Workload:
    paths: Paths = [(make.segment(make.sized(prompt)),) for _ in range(requests)]
    outputs = [output if counts_prompt else make.sized(output)] * requests
    return Workload(name, make.segments, paths, outputs, counts_prompt)


def _single(make: _Maker) -> Workload:
    return _plain(make, "single", 1, 64, 256)


def _decode64(make: _Maker) -> Workload:
    return _plain(make, "decode64", make.sized(64), 512, 256)


def _prefill(make: _Maker) -> Workload:
    return _plain(make, "prefill", make.sized(16), 8192, 1, counts_prompt=True)


def _mixed256(make: _Maker) -> Workload:
    requests = make.sized(256)
    paths: Paths = [(make.segment(n),) for n in make.lengths(100, 1024, requests)]
    return Workload("mixed256", make.segments, paths, make.lengths(100, 1024, requests))


def _shared4k(make: _Maker) -> Workload:
    shared = make.segment(make.sized(4096))
    paths: Paths = [(shared, make.segment(make.sized(128))) for _ in range(make.sized(256))]
    return Workload("shared4k", make.segments, paths, [make.sized(64)] * len(paths))


def _tree(make: _Maker) -> Workload:
    """8 roots, 8 branches of each, 8 leaves of each of these; scaled, as many of each as keep about scale x 512."""
    width = max(1, round(8 * (make.sized(512) / 512) ** (1 / 3)))
    paths: Paths = []
    for _ in range(width):
        root = make.segment(make.sized(1024))
        for _ in range(width):
            branch = make.segment(make.sized(256))
            paths += [(root, branch, make.segment(make.sized(64))) for _ in range(width)]
    paths = [paths[i] for i in make.shuffled(len(paths))]
    return Workload("tree", make.segments, paths, [make.sized(32)] * len(paths))


def _questions(make: _Maker) -> Workload:
    document = make.segment(make.sized(4096))
    paths: Paths = [(document, make.segment(make.sized(16))) for _ in range(make.sized(512))]
    return Workload("questions", make.segments, paths, [1] * len(paths))


def _fork8(make: _Maker) -> Workload:
    """16 groups of 8 requests that share a prefix, all shuffled."""
    paths: Paths = []
    for _ in range(make.sized(16)):
        shared = make.segment(make.sized(4096))
        paths += [(shared, make.segment(make.sized(200))) for _ in range(8)]
    paths = [paths[i] for i in make.shuffled(len(paths))]
    return Workload("fork8", make.segments, paths, [make.sized(64)] * len(paths))


def _chat8(make: _Maker) -> Workload:
    """64 conversations of 8 turns: a system prompt of their own, then a user's message before each answer."""
    count = make.sized(64)
    paths: Paths = [(make.segment(make.sized(300)), make.segment(make.sized(60))) for _ in range(count)]
    turns = tuple(tuple(make.segment(make.sized(60)) for _ in range(count)) for _ in range(7))
    return Workload("chat8", make.segments, paths, [make.sized(120)] * count, turns=turns)


def _throughput(make: _Maker, *, prompt: int, output: int, requests: int) -> Workload:
    return _plain(make, f"in{prompt}-out{output}", make.sized(requests), prompt, output)


MAKERS: dict[str, Callable[[_Maker], Workload]] = {
    "single": _single,
    "decode64": _decode64,
    "prefill": _prefill,
    "mixed256": _mixed256,
    "shared4k": _shared4k,
    "tree": _tree,
    "questions": _questions,
    "fork8": _fork8,
    "chat8": _chat8,
}
DEFAULT = tuple(MAKERS)
"""Workloads that run where none is named."""


THROUGHPUT = {
    (128, 128): 4096, (128, 2048): 1024, (128, 4096): 512, (500, 2000): 768, (1000, 1000): 1024,
    (1000, 2000): 768, (2048, 128): 1024, (2048, 2048): 512, (5000, 500): 384, (20000, 2000): 64,
}  # fmt: skip
"""Numbers of requests by tokens of a prompt and of an answer: the shapes of TensorRT-LLM's published tables, with so
many requests that a large GPU is busy for a minute, about."""

MAKERS |= {
    f"in{prompt}-out{output}": functools.partial(_throughput, prompt=prompt, output=output, requests=requests)
    for (prompt, output), requests in THROUGHPUT.items()
}

COPY_SEEDS = 1_000_003
"""Distance of the seeds of copies."""


def make_workload(name: str, *, seed: int, scale: float = 1.0, copies: int = 1) -> Workload:
    """One of MAKERS; the same seed gives the same tokens, another one tokens that share nothing with them. Several
    copies have tokens of their own, and their requests alternate."""
    each = [MAKERS[name](_Maker(seed + COPY_SEEDS * i, scale)) for i in range(copies)]
    if copies == 1:
        return each[0]
    offsets = [0, *itertools.accumulate(len(one.segments) for one in each)]
    requests = [(i, request) for request in range(len(each[0].paths)) for i in range(copies)]
    return dataclasses.replace(
        each[0],
        segments=[segment for one in each for segment in one.segments],
        paths=[tuple(offsets[i] + segment for segment in each[i].paths[request]) for i, request in requests],
        outputs=[each[i].outputs[request] for i, request in requests],
        turns=tuple(
            tuple(offsets[i] + each[i].turns[turn][request] for i, request in requests)
            for turn in range(len(each[0].turns))
        ),
    )


# --- the floor ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Floor:
    """The least that a workload asks of a device: all requests of a turn run at once, shared tokens are computed and
    read once.

    Attributes:
        new_tokens: prompt tokens to be computed.
        prefill_flops: of these.
        decode_steps: steps after the prompts'.
        decode_bytes: weights and keys and values that these read.
        prefill_s, decode_s: seconds, by whichever limits, bytes or operations.
    """

    new_tokens: int
    prefill_flops: float
    decode_steps: int
    decode_bytes: float
    prefill_s: float
    decode_s: float

    @property
    def seconds(self) -> float:
        return self.prefill_s + self.decode_s


def floor_of(workload: Workload, shape: Shape, device: Device) -> Floor:
    """See `Floor`."""
    turns = [_floor_of_turn(workload, shape, device)]
    lengths = [workload.prompt_len(i) for i in range(len(workload.paths))]
    for segments in workload.turns:
        # The last token of an answer is sampled and not computed.
        lengths = [length + output - 1 for length, output in zip(lengths, workload.outputs, strict=True)]
        known = [np.zeros(length, np.int32) for length in lengths]
        new = [np.zeros(1 + len(workload.segments[i]), np.int32) for i in segments]
        paths: list[tuple[int, ...]] = [(i, i + len(known)) for i in range(len(known))]
        turn = Workload(workload.name, known + new, paths, workload.outputs)
        turns.append(_floor_of_turn(turn, shape, device, cached={path[:1] for path in paths}))
        lengths = [turn.prompt_len(i) for i in range(len(paths))]
    return _sum(turns)


def uncached_floor_of(workload: Workload, shape: Shape, device: Device) -> Floor:
    """Return the floor of an engine that shares nothing: each request, at each turn, computes and reads its prompt."""
    turns = []
    lengths = [workload.prompt_len(i) for i in range(len(workload.paths))]
    for segments in (None, *workload.turns):
        if segments is not None:
            added = [output + len(workload.segments[i]) for output, i in zip(workload.outputs, segments, strict=True)]
            lengths = [length + more for length, more in zip(lengths, added, strict=True)]
        prompts = [np.zeros(length, np.int32) for length in lengths]
        alone = Workload(workload.name, prompts, [(i,) for i in range(len(prompts))], workload.outputs)
        turns.append(_floor_of_turn(alone, shape, device))
    return _sum(turns)


def _sum(turns: Sequence[Floor]) -> Floor:
    return Floor(*map(sum, zip(*(dataclasses.astuple(turn) for turn in turns), strict=True)))


def _floor_of_turn(
    workload: Workload, shape: Shape, device: Device, cached: Collection[tuple[int, ...]] = ()
) -> Floor:  # fmt: skip
    """The floor of the first turn; the prefixes `cached` of paths have been computed."""
    new_tokens, attended = _distinct(workload, cached)
    head_flops = 2 * shape.head_params * len(workload.paths)
    prefill_flops = 2 * shape.layer_params * new_tokens + shape.attention_flops * attended + head_flops
    prefill_s = max(prefill_flops / device.flops_per_s, shape.weight_bytes(new_tokens) / device.bytes_per_s)
    steps = max(workload.outputs) - 1
    decode_bytes = decode_s = 0.0
    lengths = np.array([workload.prompt_len(i) for i in range(len(workload.paths))])
    outputs = np.array(workload.outputs)
    shared_len, live_before = 0, -1
    for step in range(1, steps + 1):
        live = np.flatnonzero(outputs > step)
        if len(live) != live_before:  # the rows only ever get fewer
            live_before = len(live)
            shared_len = _distinct_len(workload, live.tolist())
        read = shape.weight_bytes(len(live)) + shape.kv_bytes * (shared_len + step * len(live))
        read += 2 * shape.state_bytes * len(live)
        context = int(lengths[live].sum()) + step * len(live)
        flops = 2 * (shape.layer_params + shape.head_params) * len(live) + shape.attention_flops * context
        decode_bytes += read
        decode_s += max(read / device.bytes_per_s, flops / device.flops_per_s)
    return Floor(new_tokens, prefill_flops, steps, decode_bytes, prefill_s, decode_s)


def _distinct(workload: Workload, cached: Collection[tuple[int, ...]]) -> tuple[int, int]:
    """Prompt tokens that no other prompt has computed, and the positions that they attend to, all summed."""
    seen = set(cached)
    tokens = attended = 0
    for path in workload.paths:
        start = 0
        for depth, segment in enumerate(path, 1):
            length = len(workload.segments[segment])
            if path[:depth] not in seen:
                seen.add(path[:depth])
                tokens += length
                attended += length * start + length * (length + 1) // 2
            start += length
    return tokens, attended


def _distinct_len(workload: Workload, requests: list[int]) -> int:
    """Prompt tokens of the requests, each shared one counted once."""
    seen = {workload.paths[i][:depth] for i in requests for depth in range(1, len(workload.paths[i]) + 1)}
    return sum(len(workload.segments[path[-1]]) for path in seen)
