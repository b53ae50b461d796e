"""`PixelLinks`: the scheduler's own names of files of pixels, so that a file exists as long as a request or a step
needs the file, whatever the tokenizer process does.

The tokenizer writes a file for each image, and removes the file behind the last request that needs the image. If the
tokenizer process fails, its successor removes all files, while schedulers may have steps in flight whose images the
ranks have yet to read. So the scheduler gives each file a second name (a hard link) in a folder of its own.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from radixrt.messages.images import RowImage


class PixelLinks:
    """See the module's docstring.

    Args:
        folder: private folder of the names, which is made; files that an earlier scheduler has left there are removed.
            "" to use the tokenizer's names, in an engine of one process.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._uses: Counter[bytes] = Counter()
        if folder:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            for path in Path(folder).iterdir():
                path.unlink()

    def __len__(self) -> int:
        return len(self._uses)

    def path(self, image: RowImage) -> str:
        """Return the name by which an image that is held can be read."""
        own = self._own(image.digest)
        return own if own and os.path.exists(own) else image.pixels

    def has(self, image: RowImage) -> bool:
        """Return whether all pixels of an image that is held can be read. Without names of its own the scheduler does
        not look: the tokenizer is in the same process."""
        try:
            return not self._folder or os.path.getsize(self.path(image)) == 3 * image.height * image.width
        except OSError:
            return False

    def hold(self, image: RowImage) -> None:
        """Count a use of an image. If the file cannot get another name, the tokenizer's name remains the only one until
        the next use."""
        self._uses[image.digest] += 1
        own = self._own(image.digest)
        if own and not os.path.exists(own):
            with contextlib.suppress(OSError):
                os.link(image.pixels, own)

    def release(self, digests: Iterable[bytes]) -> None:
        """Take back a use of each image; the name is removed with the last use."""
        for digest in digests:
            self._uses[digest] -= 1
            if not self._uses[digest]:
                del self._uses[digest]
                if own := self._own(digest):
                    with contextlib.suppress(OSError):
                        os.unlink(own)

    def _own(self, digest: bytes) -> str:
        return f"{self._folder}/{digest.hex()}" if self._folder else ""
