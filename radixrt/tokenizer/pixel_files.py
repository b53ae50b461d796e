"""`PixelFiles`: files with the pixels of images, which the ModelRunner reads, one for each digest."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from radixrt.errors import RequestError
from radixrt.vision.processor import Pixels

MAX_BYTES = 4 * 1024**3
"""Total size of the files that requests use: the pixels of four million tokens, 1,024 each."""


@dataclass
class _File:
    path: str
    size: int
    uses: int = 0


class PixelFiles:
    """See the module's docstring. A file exists as long as a request uses it. Files that no request uses are kept in
    the order of their last use, up to a number of bytes. Several threads may call the methods.

    Args:
        folder: private folder of the files.
        keep_bytes: total size of the files that no request uses.
        max_bytes: see `MAX_BYTES`.
    """

    def __init__(self, folder: Path, keep_bytes: int, max_bytes: int = MAX_BYTES) -> None:
        self._folder = folder
        self._keep_bytes = keep_bytes
        self._max_bytes = max_bytes
        self._used_bytes = 0
        self._lock = threading.Lock()
        self._files: dict[bytes, _File] = {}
        self._unused: OrderedDict[bytes, _File] = OrderedDict()
        self._unused_bytes = 0

    def __len__(self) -> int:
        return len(self._files)

    def check(self, num_bytes: int, param: str) -> None:
        """Raise RequestError (status 503) if the files of requests have no room for further bytes.

        Args:
            param: the client's name of the picture.
        """
        if self._used_bytes + num_bytes > self._max_bytes:
            raise RequestError(
                f"{param}: the images of the requests in the engine take {self._used_bytes} bytes, and may take "
                f"{self._max_bytes}; try again when some of these requests have ended",
                param=param,
                code="busy",
                status=503,
            )

    def acquire(self, digest: bytes) -> str | None:
        """Count a use of a file, and return its path; None if there is no file."""
        with self._lock:
            return self._use(digest)

    def store(self, digest: bytes, pixels: Pixels, param: str) -> str:
        """Write a file, and count a use; returns the path. A file that exists is kept, after the same work: the time of
        an answer tells no tenant that another one has sent these pixels.

        Args:
            pixels: [height, width, 3].
            param: the client's name of the picture.

        Raises:
            RequestError: the files of requests take too many bytes, or the file cannot be written (status 503).
        """
        with self._lock:
            self.check(pixels.nbytes, param)
            self._used_bytes += pixels.nbytes  # taken before the file is written, so that threads do not add up
        try:
            return self._write(digest, pixels)
        except OSError as error:
            raise RequestError(
                f"{param}: the pixels of the image cannot be stored: {error.strerror}; try again",
                param=param,
                code="busy",
                status=503,
            ) from error
        finally:
            with self._lock:
                self._used_bytes -= pixels.nbytes  # `_use` has counted the file

    def _write(self, digest: bytes, pixels: Pixels) -> str:
        # A name of its own until the file is complete: two threads may write the same pixels.
        path = self._folder / digest.hex()
        written = f"{path}.{threading.get_ident()}"
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(pixels.tobytes())
        except BaseException:
            os.unlink(written)
            raise
        with self._lock:
            if digest in self._files:
                os.unlink(written)
            else:
                os.replace(written, path)
                self._files[digest] = _File(str(path), pixels.nbytes)
            used = self._use(digest)
            assert used is not None
            return used

    def release(self, digest: bytes) -> None:
        """Take back a use of a file."""
        with self._lock:
            file = self._files[digest]
            file.uses -= 1
            if not file.uses:
                self._used_bytes -= file.size
                self._unused[digest] = file
                self._unused_bytes += file.size
                while self._unused_bytes > self._keep_bytes:
                    oldest, removed = self._unused.popitem(last=False)
                    self._unused_bytes -= removed.size
                    del self._files[oldest]
                    with contextlib.suppress(OSError):
                        os.unlink(removed.path)

    def _use(self, digest: bytes) -> str | None:
        file = self._files.get(digest)
        if file is None:
            return None
        if self._unused.pop(digest, None) is not None:
            self._unused_bytes -= file.size
        if not file.uses:
            self._used_bytes += file.size
        file.uses += 1
        return file.path
