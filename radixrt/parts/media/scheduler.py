"""Scheduler end of images: which images a step encodes, and which new tokens take rows of the encoder pool.

A chunk reaches an image only once its step, or a step before it, encodes the image: steps run in order, so rows are
written before they are read, and no answer is awaited. Beside decode rows a step encodes for as long as the bound of
gaps allows, if need be some blocks of the tower at a time. Positions that the cache has are not encoded.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from radixrt.errors import InvariantError
from radixrt.messages.images import PROVEN_KEYS, RowImage, images_to_encode
from radixrt.messages.parts import FINISH_ERROR, Finish, FinishError
from radixrt.messages.request import Request, Row
from radixrt.messages.runner import StepOutput
from radixrt.messages.scheduler import is_forgotten
from radixrt.messages.scheduler_stats import MediaStats
from radixrt.messages.sections import MEDIA, EncodePiece, MediaSection, encode
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.parts.media.encoder_pool import EncoderPool, Encoding, Key
from radixrt.parts.media.pixel_links import PixelLinks
from radixrt.parts.media.rotary import RotaryPositions
from radixrt.parts.media.settings import MediaSettings
from radixrt.parts.media.tower_times import NO_WORK, TowerTimes, TowerWork
from radixrt.scheduler.kv_manager import DecodeRows
from radixrt.scheduler.part import Core, End, Part, Section
from radixrt.scheduler.req import Reach, Req
from radixrt.scheduler.schedule_batch import ByKind, Chunk, ScheduleBatch

USUAL_SIDE = 16
"""Positions along each axis of the image that counts as usual before the first one."""
RECENT_IMAGES = 64
"""Number of images over which the mean work of a position is taken."""


class _Sent(NamedTuple):
    """Work of the tower in one step.

    Attributes:
        step: number of the section.
    """

    step: int
    work: TowerWork


class RowImages:
    """Images of one request, its `Req.inputs`.

    Attributes:
        token: see `Inputs`.
        positions: rotary positions of the row.
    """

    def __init__(self, part: Media, req: Req, images: Sequence[RowImage], token: int) -> None:
        self._part, self._req = part, req
        self.images = images
        self.token = token
        self.positions = RotaryPositions(images)

    def usable(self, matched: int) -> int:
        """Return how many of `matched` cached tokens may be reused: a match that ends within an image ends before it,
        unless the keys that match prove that the pixels are the same."""
        for image in self.images:
            if image.start < matched < min(image.end, image.start + PROVEN_KEYS):
                return image.start
        return matched

    def reach(self, start: int, wanted: int, seconds: float, *, must: bool) -> Reach:
        """As `Inputs.reach`."""
        return self._part.reach(self._req, self.within(start, start + wanted), start, wanted, seconds, must=must)

    def seconds(self, cached: int) -> float:
        """As `Inputs.seconds`."""
        return self._part.input_seconds(self.images, self._req.namespace, cached)

    def lost(self, number: int) -> FinishError | None:
        """As `Inputs.lost`."""
        key = self._part.key_of(number)
        # A request with output had the image encoded before the oldest step in flight, the one that has failed.
        if key is None or self._req.num_output or self._req.namespace != key[0]:
            return None
        return PIXELS_LOST if any(image.digest == key[1] for image in self.images) else None

    def within(self, start: int, stop: int) -> list[RowImage]:
        """Return the images that have positions in [start, stop)."""
        return [image for image in self.images if image.start < stop and image.end > start]


class Media(Part):
    """See the module's docstring.

    Attributes:
        pool: rows of the encoder pool.
        times: model of the tower's times.
        encoded_images, reused_images: number of images whose encoding has begun, and of images of requests that the
            pool had already.
    """

    name = MEDIA

    def __init__(self, settings: MediaSettings) -> None:
        self._settings, self._vision = settings, settings.vision
        self.pool = EncoderPool(settings.rows)
        self.times = TowerTimes(settings.flops_per_s, settings.image_s, settings.block_s)
        side = self._vision.image_size or USUAL_SIDE * self._vision.patch * self._vision.merge
        rows, columns = self._vision.grid(side, side)
        self._position = NO_WORK.plus(self._whole(side, side), 1 / (rows * columns))  # mean of each position
        self._step = 0  # number of sections
        self._pieces: list[EncodePiece] = []  # work of the next step
        self._work = NO_WORK  # of `_pieces`
        self._links = PixelLinks(settings.links)
        self._groups: dict[str, list[bytes]] = {}  # digests of the images of all rows of a group, by its rid
        self._begins: list[bytes] = []  # digests of the images whose pixels `_pieces` read
        self._reads: dict[int, list[bytes]] = {}  # digests of the images whose pixels steps in flight read
        self._lost: dict[Req, None] = {}  # requests that wait for an image whose pixels are lost
        self._begun: Encoding | None = None  # the only encoding of which some blocks are missing
        self._offsets: dict[int, int] = {}  # by row of req_to_token, of the rows whose offset is not 0
        self._changed: dict[int, int] = {}  # offsets that the next step must write
        self.encoded_images = self.reused_images = 0

    def attach(self, core: Core) -> None:
        self._core = core

    # --- requests ---

    def refuse(self, message: Request, now: float, *, compiling: int) -> FinishError | None:
        for row in message.rows:
            for image in row.images:
                if self._settings.links and not os.path.exists(self._links.path(image)):
                    return _missing(image)
                if image.count > self.pool.size:
                    return FinishError(
                        f"an image of {image.count} tokens is larger than the encoder pool, which has {self.pool.size} "
                        "rows; raise max_image_tokens, or send a smaller image",
                        param="images",
                        status=400,
                    )
        return None

    def input_seconds(self, images: Sequence[RowImage], namespace: str, cached: int) -> float:
        """Return the predicted seconds of the tower for the images that the cache and the pool do not have."""
        return sum(
            self.times.seconds(self._whole(image.height, image.width))
            for image in images_to_encode(images, cached)
            if not self.pool.has((namespace, image.digest))
        )

    def queued(self, req: Req, row: Row, message: Request, now: float) -> None:
        if row.images:
            req.inputs = RowImages(self, req, row.images, self._vision.image_token_id)
            for image in row.images:
                self._links.hold(image)
        # Later rows join the queue when the tokenizer may have removed its files.
        if req.member is not None and row is message.rows[0] and req.member.group not in self._groups:
            images = [image for each in message.rows for image in each.images]
            if images:
                for image in images:
                    self._links.hold(image)
                self._groups[req.member.group] = [image.digest for image in images]

    def admitted(self, req: Req, prompt_tokens: int, cached_tokens: int, *, again: bool) -> None:
        """Set the offset of the request's row, which another request may have had before."""
        if not self._vision.rotary_axes:
            return
        offset = req.inputs.positions.offset if isinstance(req.inputs, RowImages) else 0
        row = req.kv.req_pool_idx
        if offset != self._offsets.get(row, 0):
            self._offsets[row] = self._changed[row] = offset

    def ended(self, end: End) -> None:
        """Forget a request that has used images, whose encodings may stay for long."""
        req = end.req
        if req is not None and isinstance(req.inputs, RowImages):
            for image in req.inputs.images:
                self.pool.forget(req, (req.namespace, image.digest))
            self._links.release(image.digest for image in req.inputs.images)
        elif req is None:
            self._links.release(self._groups.pop(end.rid, ()))

    def emptying(self) -> None:
        """Forget what the ModelRunner has lost."""
        self.pool.clear()
        self._pieces, self._work, self._begun = [], NO_WORK, None
        self._links.release(self._begins)
        self._begins = []
        # A new ModelRunner has offsets of 0, and one that goes on has the written ones: each is written again.
        self._changed = dict.fromkeys(self._offsets, 0)
        self._offsets.clear()

    def lost(self, batches: Iterable[ScheduleBatch], reason: str, now: float) -> None:
        self._read(self._step)

    def flushing(self) -> None:
        self._drop(lambda namespace: True)

    def forgetting(self, namespace: str, *, whole_owner: bool) -> None:
        self._drop(partial(is_forgotten, namespace=namespace, whole_owner=whole_owner))

    def _drop(self, is_wanted: Callable[[str], bool]) -> None:
        """Remove the images of some namespaces that no request needs."""
        for each in self.pool.encodings:
            if is_wanted(each.key[0]) and not self._is_held(each):
                self._remove(each)

    def _remove(self, encoding: Encoding) -> None:
        self.pool.remove(encoding)
        if self._begun is encoding:
            self._begun = None

    def tick(self, now: float) -> None:
        """End the requests whose pixels are lost."""
        lost, self._lost = self._lost, {}
        for req in lost:
            if req.finish is None:
                self._core.requests.end(req, Finish(FINISH_ERROR, error=PIXELS_LOST), now)

    def key_of(self, number: int) -> Key | None:
        """Return the key of an encoding in the pool."""
        return next((each.key for each in self.pool.encodings if each.number == number), None)

    # --- steps ---

    def reach(
        self, req: Req, images: Sequence[RowImage], start: int, wanted: int, seconds: float, *, must: bool
    ) -> Reach:
        """Encode the images of a chunk as far as the time allows; see `Inputs.reach`.

        Args:
            images: images with positions within the chunk.
        """
        spent = 0.0
        for image in images:
            encoding = self._encoding_of(req, image)
            if encoding is not None and encoding.blocks < self._vision.depth:
                spent += self._advance(encoding, seconds - spent, must=must and not spent)
            if encoding is None or encoding.blocks < self._vision.depth:
                return Reach(max(image.start - start, 0), spent)
            encoding.step = self._step
        return Reach(wanted, spent)

    def _encoding_of(self, req: Req, image: RowImage) -> Encoding | None:
        """Return the image's place in the pool, and note that the request needs it; None if there is no room now."""
        key = (req.namespace, image.digest)
        found = self.pool.find(key)
        if found is None and not self._links.has(image):
            self._lost[req] = None
            return None
        if found is None:
            # Blocks are computed for one image at a time, so that a rank keeps the state of one.
            if self._begun is not None:
                if self._is_held(self._begun):
                    return None
                self._remove(self._begun)
            found = self.pool.add(key, image, self._is_held)
            if found is None:
                return None
            self._begun = found
            self.encoded_images += 1
        elif all(user is not req for user, _ in found.users):
            self.reused_images += 1
        # A request holds the rows for one of its images at a time. If it held them until another image of the same
        # pixels, an image between both might have no room.
        found.users = [(user, end) for user, end in found.users if self._needs(user, end)]
        if all(user is not req for user, _ in found.users):
            found.users.append((req, image.end))
        return found

    def _advance(self, encoding: Encoding, seconds: float, *, must: bool) -> float:
        """Add blocks of the tower to the next step, and return their predicted time.

        Args:
            must: add at least one block, even if it takes longer than `seconds`.
        """
        image, settings = encoding.image, self._settings
        count = self._vision.depth - encoding.blocks
        while count and self.times.seconds(work := self._work_of(encoding, count)) > seconds:
            count -= 1
        if not count:
            if not must:
                return 0.0
            count, work = 1, self._work_of(encoding, 1)
        path, data = self._links.path(image), b""
        if not encoding.blocks:
            rest = self._position.plus(self._whole(image.height, image.width), -1 / image.count)
            self._position = self._position.plus(rest, -1 / min(self.encoded_images, RECENT_IMAGES))
            self._links.hold(image)
            self._begins.append(image.digest)
            if not settings.shares_memory:
                # Without its pixels the step fails in the rank, which does not end the scheduler.
                with contextlib.suppress(OSError), open(path, "rb") as file:
                    data = file.read()
        self._pieces.append(
            EncodePiece(
                encoding.number,
                encoding.blocks,
                count,
                encoding.row,
                image.height,
                image.width,
                path if settings.shares_memory or not (encoding.blocks or data) else "",
                data,
            )
        )
        encoding.blocks += count
        encoding.step = self._step
        self._work = self._work.plus(work)
        if encoding.blocks == self._vision.depth:
            self._begun = None
        return self.times.seconds(work)

    def _whole(self, height: int, width: int) -> TowerWork:
        """Return the work of an image of a size in pixels."""
        return TowerWork(1, self._vision.depth, self._vision.flops(height, width))

    def _work_of(self, encoding: Encoding, count: int) -> TowerWork:
        """Return the work of the next blocks of an image."""
        image, first = encoding.image, encoding.blocks
        flops = self._vision.piece_flops(image.height, image.width, first, count)
        return TowerWork(int(first == 0), count, flops)

    def _is_held(self, encoding: Encoding) -> bool:
        """Return whether the next step or an active request needs an encoding."""
        return encoding.step == self._step or any(self._needs(req, end) for req, end in encoding.users)

    def _needs(self, req: Req, end: int) -> bool:
        """Return whether a request has a row and has not computed the tokens before position `end`."""
        return req.kv.req_pool_idx > 0 and self._core.kv.computed_len(req) < end

    def section(self, kinds: ByKind, decode: DecodeRows) -> Section | None:
        self._step += 1
        chunks = kinds.chunks
        if not (chunks or self._pieces or self._changed):
            return None
        positions = self._positions(chunks, decode) if self._vision.rotary_axes else b""
        places, source = self._places(chunks)
        work, pieces, changed = self._work, self._pieces, self._changed
        if not (pieces or changed or positions or len(places)):
            return None
        self._work, self._pieces, self._changed = NO_WORK, [], {}
        if self._begins:
            self._reads[self._step] = self._begins
            self._begins = []
        offsets = np.array(list(changed.items()), np.int32).reshape(-1)
        columns = (pack_i32(offsets), pack_i32(places), pack_i32(source), positions)
        data = encode(MediaSection(pieces, *columns, is_awaited=bool(decode.requests)))
        return Section(data, _Sent(self._step, work) if pieces else None, self.times.seconds(work))

    def _places(self, chunks: Sequence[Chunk]) -> tuple[Int32Array, Int32Array]:
        """Return int32[m] indices of the step's tokens that are positions of images, and their rows of the pool."""
        places, source, first = [], [], 0
        for chunk in chunks:
            count = len(chunk.slots)
            if isinstance(chunk.req.inputs, RowImages):
                for image in chunk.req.inputs.within(chunk.start, chunk.start + count):
                    encoding = self.pool.find((chunk.req.namespace, image.digest))
                    assert encoding is not None, "a chunk reaches encoded images only"
                    begin = max(image.start, chunk.start)
                    patches = np.arange(begin, min(image.end, chunk.start + count), dtype=np.int32) - image.start
                    places.append(patches + (first + image.start - chunk.start))
                    source.append(patches + encoding.row)
            first += count
        nothing = np.empty(0, np.int32)
        return np.concatenate([nothing, *places]), np.concatenate([nothing, *source])

    def _positions(self, chunks: Sequence[Chunk], decode: DecodeRows) -> bytes:
        """Return the column of positions; empty if each row's new tokens are behind its images."""
        rows = [(chunk, chunk.req.inputs) for chunk in chunks]
        if not any(isinstance(images, RowImages) and chunk.start < images.positions.end for chunk, images in rows):
            return b""
        columns = []
        for chunk, images in rows:
            stop = chunk.start + len(chunk.slots)
            if isinstance(images, RowImages):
                columns.append(images.positions.within(chunk.start, stop))
            else:
                columns.append(np.tile(np.arange(chunk.start, stop, dtype=np.int32), (3, 1)))
        offsets = np.array([self._offsets.get(int(row), 0) for row in decode.req_pool_idx], np.int32)
        columns.append(np.tile(decode.seq_lens - 1 + offsets, (3, 1)))
        return pack_i32(np.concatenate(columns, axis=1).reshape(-1))

    def _read(self, step: int) -> None:
        """Note that the ranks read no pixels any longer for steps up to a number, steps without an answer included."""
        for number in [number for number in self._reads if number <= step]:
            self._links.release(self._reads.pop(number))

    def commit(self, batch: ScheduleBatch, kept: _Sent, output: StepOutput, now: float) -> None:
        """Learn the times of the tower from the time that a step took longer than its tokens."""
        self._read(kept.step)
        step_time, shape = self._core.step_time, batch.shape
        if step_time.last_s > 0 and (step_time.times.extend_steps or not shape.tokens):
            self.times.learn(kept.work, step_time.last_s, step_time.times.seconds(*shape))

    def stats(self, now: float) -> dict[str, MediaStats]:
        counts = self.pool.size, self.pool.used, self.encoded_images, self.reused_images
        return {"media": MediaStats(*counts, position_s=self.times.seconds(self._position))}

    def check(self) -> None:
        """Check that the encodings have rows of their own."""
        row = 0
        for each in sorted(self.pool.encodings, key=lambda encoding: encoding.row):
            if each.row < row or each.row + each.count > self.pool.size:
                raise InvariantError(f"rows [{each.row}, {each.row + each.count}) of the encoder pool overlap or end")
            row = each.row + each.count


PIXELS_LOST = FinishError(
    "the pixels of an image are lost, because the tokenizer process was started again; send the request again",
    param="images",
    code="busy",
    status=503,
)


def _missing(image: RowImage) -> FinishError:
    """Return the error of a request whose pixels do not exist here."""
    if os.path.isdir(os.path.dirname(image.pixels)):
        return PIXELS_LOST
    return FinishError("images need the scheduler and the tokenizer on one machine", param="images", status=501)
