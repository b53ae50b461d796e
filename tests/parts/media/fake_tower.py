"""A runner whose images and rotary positions are digests, so that each mistake with one changes a request's output."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from radixrt.messages.images import RowImage, image_keys
from radixrt.messages.request import Envelope, Request, Row
from radixrt.messages.runner import ForwardStep
from radixrt.messages.sections import MEDIA, MediaSection, decode
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.models.vision_spec import VisionSpec
from radixrt.parts.media.scheduler import Media
from radixrt.parts.media.settings import MediaSettings
from radixrt.sampling_params import SamplingParams
from tests.scheduler.fake_runner import VOCAB, FakeRunner, Harness, digest, expected_output

IMAGE_TOKEN = VOCAB + 7
BLOCKS = 5
TOWER = VisionSpec(
    "qwen_vl", IMAGE_TOKEN, (), patch=1, merge=1, depth=BLOCKS, hidden=8, intermediate=16, heads=1, out_size=8,
    table_side=1, rotary_axes=(0, 1, 2),
)  # fmt: skip
SETTINGS = MediaSettings(TOWER, rows=32, flops_per_s=1e9)


def picture(number: int, rows: int, columns: int) -> RowImage:
    """Return the image of a number, at position 0."""
    name = f"{number}:{rows}x{columns}"
    pixels = hashlib.sha256(name.encode()).digest()
    return RowImage(0, rows * columns, rows, columns, rows, columns, pixels, name)


def content(image: RowImage, patch: int) -> int:
    """Return what the tower computes for a patch."""
    return digest(int.from_bytes(image.digest[:6], "little"), patch)


def joined(parts: Sequence[int | RowImage]) -> tuple[list[int], list[RowImage]]:
    """Return the ids of a prompt of tokens and images, and the images at their places."""
    ids: list[int] = []
    images = []
    for part in parts:
        if isinstance(part, int):
            ids.append(part)
        else:
            images.append(msgspec.structs.replace(part, start=len(ids)))
            ids += image_keys(part.digest, part.count).tolist()
    return ids, images


def axes(length: int, images: Sequence[RowImage]) -> list[tuple[int, int, int]]:
    """Return the rotary positions of a sequence's tokens, by the definition."""
    found: list[tuple[int, int, int]] = []
    at = {image.start: image for image in images}
    position = 0
    while len(found) < length:
        image = at.get(len(found))
        if image is None:
            found.append((position, position, position))
            position += 1
            continue
        found += [(position, position + r, position + c) for r in range(image.rows) for c in range(image.columns)]
        position += max(image.rows, image.columns)
    return found[:length]


def seen(value: int, position: tuple[int, int, int]) -> int:
    """Return a token that stands for a value at a rotary position."""
    return digest(digest(digest(value, position[0]), position[1]), position[2])


class TowerRunner(FakeRunner):
    """As `FakeRunner`, with an encoder pool and offsets of rotary positions.

    Attributes:
        encoded: names of the images whose encoding was finished, in order.
    """

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)  # type: ignore[arg-type]
        self.offsets = [0] * len(self.mirror)
        self.rows: list[int | None] = [None] * SETTINGS.rows
        self.images: dict[str, RowImage] = {}
        self.encoded: list[str] = []
        self._progress: dict[int, int] = {}
        self._places: dict[int, int] = {}
        self._positions: np.ndarray | None = None

    def successor(self) -> TowerRunner:
        made = TowerRunner(
            len(self.content) - 64, len(self.mirror) - 1, self.mirror.shape[1], self.deadly, len(self.states),
            self.stages,
        )  # fmt: skip
        made.images, made.encoded = self.images, self.encoded
        return made

    def begin(self, step: ForwardStep) -> None:
        section = decode(step.sections, MEDIA, MediaSection)
        self._places, self._positions = {}, None
        if section is None:
            return
        for row, offset in unpack_i32(section.offsets).reshape(-1, 2).tolist():
            self.offsets[row] = offset
        for piece in section.encode:
            if piece.first == 0:
                self._progress = {piece.key: 0}
                assert not piece.pixels.startswith("/") or os.path.exists(piece.pixels), "the pixels are lost"
            assert self._progress[piece.key] == piece.first
            self._progress[piece.key] += piece.count
            image = self.images[piece.pixels]
            assert (piece.height, piece.width) == (image.height, image.width)
            if self._progress[piece.key] == BLOCKS:
                del self._progress[piece.key]
                self.rows[piece.row : piece.row + image.count] = [content(image, i) for i in range(image.count)]
                assert len(self.rows) == SETTINGS.rows
                self.encoded.append(piece.pixels)
        places = unpack_i32(section.places).tolist()
        assert places == sorted(set(places))
        self._places = dict(zip(places, unpack_i32(section.source).tolist(), strict=True))
        if section.positions:
            self._positions = unpack_i32(section.positions).reshape(3, -1)
            assert self._positions.shape[1] == len(step.out_cache_loc) // 4

    def read(self, token: int, row: int, position: int, index: int) -> int:
        if index in self._places:
            assert token == IMAGE_TOKEN
            found = self.rows[self._places[index]]
            assert found is not None, "a row of the pool that was never written"
            token = found
        else:
            assert token < VOCAB
        if self._positions is not None:
            return seen(token, tuple(self._positions[:, index].tolist()))
        place = position + self.offsets[row]
        return seen(token, (place, place, place))


class ImageHarness(Harness):
    """As `Harness`, for prompts with images.

    Args:
        rows: rows of the encoder pool.
        flops_per_s: speed of the tower that the scheduler assumes at first.
        links: see `MediaSettings`; the pixels of images are then files.
    """

    def __init__(
        self, *, rows: int = SETTINGS.rows, flops_per_s: float = 1e9, links: str = "", **options: object
    ) -> None:
        super().__init__(**options)  # type: ignore[arg-type]
        self.links = links
        settings = replace(SETTINGS, rows=rows, flops_per_s=flops_per_s, links=links)
        self.make_scheduler.keywords["media"] = settings
        self.scheduler = self.make_scheduler()
        self.cache = self.scheduler.kv.cache
        old = self.runner
        self.runner: TowerRunner = TowerRunner(
            len(old.content) - 64, len(old.mirror) - 1, old.mirror.shape[1], old.deadly, len(old.states), old.stages
        )

    @property
    def part(self) -> Media:
        return self.scheduler.part(Media)

    def show(self, rid: str, parts: Sequence[int | RowImage], *, cache_salt: str = "", **fields: object) -> None:
        """Add a request with a prompt of tokens and images."""
        ids, images = joined(parts)
        self.runner.images |= {image.pixels: image for image in images}
        if self.links:
            self.runner.images |= {f"{self.links}/{image.digest.hex()}": image for image in images}
        sampling = SamplingParams(**{"max_tokens": 4, "temperature": 0.0, **fields})  # type: ignore[arg-type]
        made = Request.continue_prompt(Envelope(rid, cache_salt=cache_salt), pack_i32(ids), sampling)
        row: Row = msgspec.structs.replace(made.rows[0], images=images)
        message = msgspec.structs.replace(made, rows=[row])
        self.requests[rid] = message
        self.scheduler.intake.add(message, self.now)

    def assert_seen(self, rid: str) -> None:
        """The request ended with the tokens that its prompt with images determines."""
        request = self.requests[rid]
        assert request.sampling is not None
        tokens, reason = self._expected(request)
        assert self.finishes[rid].reason == reason, self.finishes[rid]
        assert self.outputs[rid] == tokens

    def _expected(self, request: Request) -> tuple[list[int], str]:
        images, ids = request.rows[0].images, request.tokens(0).tolist()
        assert request.sampling is not None
        for image in images:
            ids[image.start : image.end] = [content(image, i) for i in range(image.count)]
        places = axes(len(ids) + 200, images)
        read = [seen(token, place) for token, place in zip(ids, places, strict=False)]
        return expected_output(read, request.sampling, self.max_len, lambda token, at: seen(token, places[at]))
