"""Sections: inputs of the engine's parts in a step (`ForwardStep.sections`), each with one writer and one reader.

| name    | written by                | read by                                          |
|---------|---------------------------|--------------------------------------------------|
| media   | `radixrt.parts.media`     | the runner end of the same part                  |
| reads   | `radixrt.parts.reads`     | the runner end of the same part                  |
| sharing | `radixrt.parts.sharing`   | `radixrt.forward_batch`, for attention backends  |
| states  | `radixrt.parts.states`    | `radixrt.forward_batch`, for recurrent layers    |
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

MEDIA, READS, SHARING, STATES = "media", "reads", "sharing", "states"

S = TypeVar("S", bound=msgspec.Struct)


class ReadSection(msgspec.Struct, frozen=True, array_like=True):
    """Values that a step reads for its rows, in row order; the answer is a `ReadValues`.

    Attributes:
        index: int32[q], ascending indices of the step's new tokens after which a token is scored.
        targets: int32[q], token to score at each index.
        counts: int32[r * 2], (number of targets, alternatives of each) of every row that scores tokens.
        spans: int32[m * 2], (first, count) of each sum of hidden states, over the step's new tokens
            [first, first + count).
    """

    index: bytes = b""
    targets: bytes = b""
    counts: bytes = b""
    spans: bytes = b""


class SharedSection(msgspec.Struct, frozen=True, array_like=True):
    """Groups of rows with common positions, whose keys and values may be read once for the group.

    In an EXTEND step the rows of a group have either several new tokens each, or one each.

    Attributes:
        segments: int32[G * 4], (start, length, first, count) of each group: positions [start, start + length) hold the
            same slots for the rows rows[first : first + count], two or more. Groups that contain the same row cover
            disjoint positions, and together a prefix of the row without this step's tokens.
        rows: int32[N], indices of the step's rows in depth-first order: the rows of two groups are disjoint, or one
            group's rows are a subset of the other's.
    """

    segments: bytes
    rows: bytes


class StateSection(msgspec.Struct, frozen=True, array_like=True):
    """State slots of the B rows of a step of a model with recurrent layers.

    Slot 0 is all zeros and never written: a fresh sequence reads it. Slot 1 is scratch: padding rows read and write it.
    Except for scratch, no slot is written twice in a step, and no row reads a slot that another row of the step writes.
    New tokens that are replayed (see `ForwardStep`) are computed for the state alone; in such rows shared segments end
    before the first new token.

    Attributes:
        src: int32[B], slot that each row reads before its first new token. Several rows may read one slot.
        dst: int32[B], slot that each row writes after its last new token. It may equal the row's own src.
        cuts: int32[C * 3], (row, count, slot) in ascending order: the row also writes its state after its first `count`
            new tokens, fewer than all, into `slot`.
    """

    src: bytes
    dst: bytes
    cuts: bytes = b""


class EncodePiece(msgspec.Struct, frozen=True, array_like=True):
    """Blocks of the vision tower to compute for one image before a step.

    Attributes:
        key: number of the encoding, the same for all pieces of one encoding. A piece with `first` 0 begins an encoding.
        first, count: blocks [first, first + count) of the tower; the piece with the last block writes the rows.
        row: first row of the image in the encoder pool. The image has as many rows as keys.
        height, width: size of the image in pixels.
        pixels: path of a file with uint8 [height, width, 3]; "" if `data` holds the pixels.
        data: the pixels, for ranks on other machines.
    """

    key: int
    first: int
    count: int
    row: int
    height: int
    width: int
    pixels: str
    data: bytes = b""


class MediaSection(msgspec.Struct, frozen=True, array_like=True):
    """Images of a step. A step without new tokens of images, encodings and changed offsets has no such section.

    Attributes:
        encode: pieces of encodings, in order, computed before the step's layers.
        offsets: int32[k * 2], (row of req_to_token, offset): from this step on, the rotary position of the row's token
            at position p is p + offset, unless `positions` says otherwise. A row without entry keeps its offset.
        places: int32[m], ascending indices of the step's new tokens that are positions of images.
        source: int32[m], row of the encoder pool for each of them.
        positions: int32[3 * T], rotary positions of the step's T new tokens on the axes of time, height and width;
            empty if every new token has the position that `offsets` gives, the same on all axes.
        is_awaited: the step has decode rows, whose next tokens wait for all of its work.
    """

    encode: list[EncodePiece] = []
    offsets: bytes = b""
    places: bytes = b""
    source: bytes = b""
    positions: bytes = b""
    is_awaited: bool = False


def encode(section: msgspec.Struct) -> bytes:
    """Return a section as the bytes that a step carries."""
    return msgspec.msgpack.encode(section)


def decode(sections: dict[str, bytes], name: str, kind: type[S]) -> S | None:
    """Return a section of a step; None if the step has none of that name."""
    data = sections.get(name)
    return None if data is None else msgspec.msgpack.decode(data, type=kind)
