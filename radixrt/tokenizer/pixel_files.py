"""`PixelFiles`: files with the pixels of images, which the ModelRunner reads, one for each digest."""

from __future__ import annotations

import contextlib
import os
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from radixrt.vision.processor import Pixels


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
    """

    def __init__(self, folder: Path, keep_bytes: int) -> None:
        self._folder = folder
        self._keep_bytes = keep_bytes
        self._lock = threading.Lock()
        self._files: dict[bytes, _File] = {}
        self._unused: OrderedDict[bytes, _File] = OrderedDict()
        self._unused_bytes = 0

    def __len__(self) -> int:
        return len(self._files)

    def acquire(self, digest: bytes) -> str | None:
        """Count a use of a file, and return its path; None if there is no file."""
        with self._lock:
            return self._use(digest)

    def store(self, digest: bytes, pixels: Pixels) -> str:
        """Write a file unless it exists, and count a use; returns the path.

        Args:
            pixels: [height, width, 3].

        Raises:
            OSError: the file cannot be written.
        """
        found = self.acquire(digest)
        if found is not None:
            return found
        # A name of its own until the file is complete: two threads may write the same pixels.
        path = self._folder / digest.hex()
        written = f"{path}.{threading.get_ident()}"
        descriptor = os.open(written, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(pixels.tobytes())
        with self._lock:
            os.replace(written, path)
            self._files.setdefault(digest, _File(str(path), pixels.nbytes))
            used = self._use(digest)
            assert used is not None
            return used

    def release(self, digest: bytes) -> None:
        """Take back a use of a file."""
        with self._lock:
            file = self._files[digest]
            file.uses -= 1
            if not file.uses:
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
        file.uses += 1
        return file.path
