"""`ImageReader`: decodes the pictures of requests in threads, beside the thread that encodes prompts.

A picture takes some 50 ms. Clients take turns, and the pictures that are decoded at a time have at most `MAX_PIXELS`
pixels together, or there is only one of them. A picture that was known lately in the same namespace of the radix cache,
by the hash of its bytes, is not decoded again while the files with its pixels exist. The time of an answer thus tells
nobody which pictures other tenants have sent.

A decoder may crash or hang on a damaged picture in spite of all checks. So a file with the hash of each picture that is
being decoded stands in the folder; a process that finds such files after its start refuses these pictures. If a
decoder hangs, only the picture of this decoder is refused.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixrt.errors import ModelLoadError, RequestError
from radixrt.messages.images import RowImage
from radixrt.messages.parts import Detail, ImageInput
from radixrt.tokenizer.pixel_files import MAX_BYTES, PixelFiles
from radixrt.tokenizer.turns import Turns
from radixrt.vision.header import Header, read_header
from radixrt.vision.limits import MAX_PIXELS, MAX_REQUEST_PIXELS, ImageError, ImageLimits, refusal
from radixrt.vision.processor import ImageProcessor, Plan

logger = logging.getLogger(__name__)

KEEP_BYTES = 256 * 1024 * 1024
"""Size of the files of pixels that no request uses, so that a picture that comes again is not decoded again."""

MAX_KNOWN = 10_000
"""Pictures whose digests are remembered."""

MAX_THREADS = 8
MAX_DECODE_S = 30.0
"""Time after which a decoder hangs: ten times that of the largest picture on a machine with other work."""

DECODING, HUNG, REFUSED = "decoding-", "hung-", "refused-"


@dataclass(frozen=True)
class Picture:
    """A picture whose pixels are in files.

    Attributes:
        param: the client's name of the picture.
        tiles: (rows, columns) of its tiles; (0, 0) if it is not divided.
        images: its images in the order of the prompt, with `start` 0.
    """

    param: str
    tiles: tuple[int, int]
    images: list[RowImage]


class ImageJob:
    """Pictures of one request, from its arrival to its end."""

    def __init__(self, futures: Sequence[Future[Picture]], files: PixelFiles) -> None:
        self._futures = futures
        self._files = files

    def wait(self) -> Generator[Future[Any], None, list[Picture]]:
        """Yield what is to be waited for, and return the pictures.

        Raises:
            RequestError: a picture cannot be read.
        """
        for future in self._futures:
            if not future.done():
                yield future
        return [future.result() for future in self._futures]

    def release(self) -> None:
        """End the use of the files, and of those that are still to be written."""
        for future in self._futures:
            if not future.cancel():
                future.add_done_callback(self._release)

    def _release(self, future: Future[Picture]) -> None:
        if future.exception() is None:
            for image in future.result().images:
                self._files.release(image.digest)


class ImageReader:
    """See the module's docstring. One thread calls all methods.

    Args:
        load: makes the model's processor, when the first picture comes.
        folder: private folder of the files, which is made.
        limits: of the images of a request.
        keep_bytes: see `KEEP_BYTES`.
        max_bytes: see `radixrt.tokenizer.pixel_files.MAX_BYTES`.
    """

    def __init__(
        self,
        load: Callable[[], ImageProcessor],
        folder: Path,
        limits: ImageLimits,
        *,
        keep_bytes: int = KEEP_BYTES,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        self._load = load
        self._folder = folder
        self.limits = limits
        self._processor: ImageProcessor | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._turns: Turns[Callable[[], None]] = Turns()
        self._room = _Room(MAX_PIXELS)
        self._lock = threading.Lock()
        # Digests by the namespace and the hash of the encoded bytes.
        self._known: OrderedDict[tuple[str, bytes], tuple[bytes, ...]] = OrderedDict()
        self._began: dict[int, tuple[float, bytes]] = {}  # when each thread began the picture that it decodes
        folder.mkdir(mode=0o700, exist_ok=True)
        self._refused = _find_refused(folder)
        self.files = PixelFiles(folder, keep_bytes, max_bytes)

    def begin(self, images: Sequence[ImageInput], client: str, namespace: str, max_tokens: int) -> ImageJob:
        """Check pictures by their headers, and begin to decode them.

        Args:
            client: whose turns they take.
            namespace: of the radix cache; see `Envelope.cache_salt`.
            max_tokens: longest prompt.

        Raises:
            RequestError: naming a picture that exceeds a limit or cannot be read.
        """
        self.limits.check([(image.param, len(image.data)) for image in images])
        processor = self._loaded(images[0].param)
        plans = [self._plan(processor, image) for image in images]
        pixels = sum(header.width * header.height for header, _ in plans)
        tokens = sum(plan.num_tokens for _, plan in plans)
        last = images[-1].param
        if pixels > MAX_REQUEST_PIXELS:
            raise RequestError(
                f"{last}: the images of this request have {pixels} pixels together, and may have {MAX_REQUEST_PIXELS}; "
                "send fewer or smaller ones",
                param=last,
                code="images_too_large",
            )
        if tokens > max_tokens:
            raise RequestError(
                f"{last}: the images of this request take {tokens} tokens, and a prompt may have {max_tokens}; send "
                'fewer images, or set their detail to "low"',
                param=last,
                code="context_length_exceeded",
            )
        return ImageJob(
            [self._submit(image, *each, client, namespace) for image, each in zip(images, plans, strict=True)],
            self.files,
        )

    def is_overdue(self) -> bool:
        """Return whether decoding a picture takes longer than any picture does; such a picture gets a trace that
        acquits the others of the next process."""
        now = time.monotonic()
        overdue = [key for began, key in tuple(self._began.values()) if now - began > MAX_DECODE_S]
        for key in overdue:
            trace = self._folder / f"{DECODING}{key.hex()}"
            with suppress(FileNotFoundError):  # renamed before, or decoded in the meantime
                trace.rename(self._folder / f"{HUNG}{key.hex()}")
        return bool(overdue)

    def close(self) -> None:
        """End the threads, after the pictures that they decode."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _loaded(self, param: str) -> ImageProcessor:
        if self._processor is None:
            try:
                self._processor = self._load()
            except ModelLoadError as error:
                raise RequestError(f"{param}: images cannot be read: {error}", param=param, status=501) from error
        return self._processor

    @staticmethod
    def _plan(processor: ImageProcessor, image: ImageInput) -> tuple[Header, Plan]:
        if image.url:
            raise RequestError(
                f"{image.param}: images are not fetched here; send a data: URL",
                param=image.param,
                code="invalid_image_url",
            )
        try:
            header = read_header(image.data)
            return header, processor.plan(header, image.detail)
        except ImageError as error:
            raise refusal(error, image.param) from None

    def _submit(self, image: ImageInput, header: Header, plan: Plan, client: str, namespace: str) -> Future[Picture]:
        future: Future[Picture] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(self._read(image, header, plan, namespace))
            except BaseException as error:
                future.set_exception(error)

        if self._pool is None:
            threads = min(MAX_THREADS, os.cpu_count() or 1)
            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="radixrt-images")
        self._turns.add(client, run)
        self._pool.submit(self._take_turn)
        return future

    def _take_turn(self) -> None:
        taken = self._turns.take()
        assert taken is not None  # no client is ever parked
        taken[1]()

    # --- in the threads ---

    def _read(self, image: ImageInput, header: Header, plan: Plan, namespace: str) -> Picture:
        key = picture_key(image.data, image.detail)
        if key in self._refused:
            raise RequestError(
                f"{image.param}: the image is not decoded, because a process has failed while it decoded this image",
                param=image.param,
                code="invalid_image",
            )
        found = self._stored((namespace, key), plan)
        if found is None:
            self.files.check(plan.num_bytes, image.param)
            found = self._decode(key, image, header, plan, namespace)
        return Picture(image.param, plan.tiles, found)

    def _stored(self, known: tuple[str, bytes], plan: Plan) -> list[RowImage] | None:
        """Return the images of a known picture, if all of their files still exist."""
        with self._lock:
            digests = self._known.get(known)
            if digests is None:
                return None
            self._known.move_to_end(known)
        images: list[RowImage] = []
        for digest in digests:
            path = self.files.acquire(digest)
            if path is None:
                for image in images:
                    self.files.release(image.digest)
                return None
            images.append(_row_image(plan, digest, path))
        return images

    def _decode(self, key: bytes, image: ImageInput, header: Header, plan: Plan, namespace: str) -> list[RowImage]:
        assert self._processor is not None
        with self._room.taken(header.width * header.height + plan.padded), self._suspected(key):
            try:
                tiles = self._processor.process(image.data, image.detail)
            except ImageError as error:
                raise refusal(error, image.param) from None
        images: list[RowImage] = []
        try:
            for tile in tiles:
                images.append(_row_image(plan, tile.digest, self.files.store(tile.digest, tile.pixels, image.param)))
        except BaseException:
            for stored in images:
                self.files.release(stored.digest)
            raise
        with self._lock:
            self._known[namespace, key] = tuple(tile.digest for tile in tiles)
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return images

    @contextmanager
    def _suspected(self, key: bytes) -> Generator[None]:
        """Leave a trace of the picture that this thread decodes, for the next process if this one dies."""
        thread, trace = threading.get_ident(), self._folder / f"{DECODING}{key.hex()}"
        trace.touch(mode=0o600)
        self._began[thread] = (time.monotonic(), key)
        try:
            yield
        finally:
            del self._began[thread]
            trace.unlink(missing_ok=True)
            (self._folder / f"{HUNG}{key.hex()}").unlink(missing_ok=True)


def picture_key(data: bytes, detail: Detail) -> bytes:
    """Return the key of an encoded picture among the known and the refused ones."""
    digest = hashlib.sha256(data)
    digest.update(detail.encode())
    return digest.digest()


def _row_image(plan: Plan, digest: bytes, path: str) -> RowImage:
    rows, columns = plan.grid
    height, width = plan.image_size
    return RowImage(0, rows * columns, rows, columns, height, width, digest, path)


def _find_refused(folder: Path) -> frozenset[bytes]:
    """Remove what another process has left in the folder, and return the hashes of the pictures on which it failed."""
    blamed = HUNG if any(folder.glob(f"{HUNG}*")) else DECODING
    for path in list(folder.iterdir()):
        if path.name.startswith(blamed):
            logger.error("the tokenizer failed while it decoded an image, which is refused from now on: %s", path.name)
            path.rename(folder / (REFUSED + path.name.removeprefix(blamed)))
        elif not path.name.startswith(REFUSED):
            path.unlink()
    return frozenset(bytes.fromhex(path.name.removeprefix(REFUSED)) for path in folder.glob(f"{REFUSED}*"))


class _Room:
    """Bounds the number of pixels that are decoded at a time, in the order of arrival. A single picture is never
    refused."""

    def __init__(self, pixels: int) -> None:
        self._free = self._pixels = pixels
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def taken(self, pixels: int) -> Generator[None]:
        pixels = min(pixels, self._pixels)
        with self._changed:
            # Small pictures do not pass a large one, which would wait for ever.
            ticket = object()
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket and self._free >= pixels)
            self._waiting.popleft()
            self._free -= pixels
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify_all()
