"""`EncoderPool`: owner of the rows of the encoder pool, in which the ModelRunner keeps the encoded images.

An image has consecutive rows, one for each of its keys. Images that no active request needs stay in the pool until
their rows are needed, and leave it in the order of their last use. So a picture that many requests of a namespace show
is encoded once, although each request may ask another question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from radixrt.messages.images import RowImage
from radixrt.scheduler.req import Req

Key = tuple[str, bytes]
"""Namespace of the radix cache, and digest of the image: two namespaces share no encoding."""


@dataclass(eq=False)
class Encoding:
    """An image in the pool.

    Attributes:
        number: distinguishes the encodings of one engine.
        row: first row of the pool; the image has `count` rows.
        blocks: number of blocks of the tower that steps have been told to compute.
        users: (request, position behind the image in the request's row) of the requests that may need the rows.
        step: number of the last step that uses the rows.
    """

    key: Key
    image: RowImage
    number: int
    row: int
    blocks: int = 0
    users: list[tuple[Req, int]] = field(default_factory=list)
    step: int = -1

    @property
    def count(self) -> int:
        """Number of rows."""
        return self.image.count


class EncoderPool:
    """See the module's docstring.

    Args:
        size: number of rows.

    Attributes:
        used: number of rows that images have.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._encodings: dict[Key, Encoding] = {}  # in the order of their last use
        self.used = self._next_number = 0

    def find(self, key: Key) -> Encoding | None:
        """Return an image of the pool, which becomes the last one to leave; None if the pool does not have it."""
        found = self._encodings.pop(key, None)
        if found is not None:
            self._encodings[key] = found
        return found

    def has(self, key: Key) -> bool:
        """Return whether the pool has an image, which then leaves no later."""
        return key in self._encodings

    def add(self, key: Key, image: RowImage, is_held: Callable[[Encoding], bool]) -> Encoding | None:
        """Give an image rows, for which others may leave the pool.

        Args:
            is_held: returns whether an encoding must stay.

        Returns:
            The encoding, of which no block is computed; None if too many rows are held. Others may have left even then.
        """
        oldest = iter(list(self._encodings.values()))
        wanted = image.count
        while True:
            # The images that were used least recently leave.
            while self.size - self.used < wanted:
                leaving = next((each for each in oldest if not is_held(each)), None)
                if leaving is None:
                    return None
                self.remove(leaving)
            if (row := self._gap(image.count)) is not None:
                break
            # The free rows are in pieces: as many again leave before the next search.
            wanted = min(self.size - self.used + image.count, self.size)
        self._next_number += 1
        made = Encoding(key, image, self._next_number, row)
        self._encodings[key] = made
        self.used += image.count
        return made

    def remove(self, encoding: Encoding) -> None:
        """Take an image out of the pool."""
        del self._encodings[encoding.key]
        self.used -= encoding.count

    def forget(self, req: Req, key: Key) -> None:
        """Note that a request needs no image any longer."""
        encoding = self._encodings.get(key)
        if encoding is not None:
            encoding.users = [user for user in encoding.users if user[0] is not req]

    def clear(self) -> None:
        """Forget all images: their rows are lost."""
        self._encodings.clear()
        self.used = 0

    @property
    def encodings(self) -> list[Encoding]:
        """All images of the pool, in the order of their last use."""
        return list(self._encodings.values())

    def _gap(self, count: int) -> int | None:
        """Return the first row of the first gap of `count` rows; None without such a gap."""
        row = 0
        for each in sorted(self._encodings.values(), key=lambda encoding: encoding.row):
            if each.row - row >= count:
                return row
            row = each.row + each.count
        return row if self.size - row >= count else None
