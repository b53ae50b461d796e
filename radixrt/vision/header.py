"""`read_header`: format, size, orientation and animation of a picture, read from its bytes without decoding pixels and
without any library, so that a picture beyond a limit never reaches a decoder."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from radixrt.vision.limits import ImageError, check_size

FORMATS = "PNG, JPEG or WEBP"
MAX_SEGMENTS = 2_000
"""Segments or chunks of a file before its pixels. A JPEG photo with its metadata has some dozens, of 64 KiB at most."""

MAX_SCANS = 100
"""Scans of a JPEG. A progressive photo has about 10; a decoder walks over the whole picture for each of them."""

_MARKER = re.compile(rb"\xff[\xc0-\xcf\xd8-\xfe]")
"""A marker that a JPEG decoder does not skip while it looks for the end of a scan."""

ORIENTATION = 0x0112
TRANSPOSED = range(5, 9)
"""Orientations of EXIF that exchange width and height."""

_OTHERS = (
    (b"GIF8", "a GIF"),
    (b"BM", "a BMP"),
    (b"II*\0", "a TIFF"),
    (b"MM\0*", "a TIFF"),
    (b"%PDF", "a PDF"),
    (b"<svg", "an SVG"),
    (b"<?xml", "an XML file"),
    (b"\0\0\0\x0cjP", "a JPEG 2000"),
    (b"\xff\x0a", "a JPEG XL"),
    (b"SIMPLE", "a FITS"),
    (b"gd2", "a GD image"),
)
"""First bytes of formats that are refused by their names."""


@dataclass(frozen=True)
class Header:
    """Header of a picture.

    Attributes:
        format: name of the format, as Pillow spells it.
        width, height: size of the stored picture in pixels.
        orientation: how the stored picture is to be turned, 1 to 8 as in EXIF.
    """

    format: Literal["PNG", "JPEG", "WEBP"]
    width: int
    height: int
    orientation: int = 1

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the upright picture in pixels."""
        turned = self.orientation in TRANSPOSED
        return (self.width, self.height) if turned else (self.height, self.width)


def read_header(data: bytes) -> Header:
    """Read the header of an encoded picture.

    Raises:
        ImageError: the format is not supported, the header is cut or contradicts itself, the picture is animated, or
            its size exceeds a limit.
    """
    try:
        header = _read(data)
    except (struct.error, IndexError):
        raise ImageError("the image's header is cut off or damaged") from None
    check_size(header.width, header.height)
    return header


def _read(data: bytes) -> Header:
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _read_png(data)
    if data.startswith(b"\xff\xd8\xff"):
        return _read_jpeg(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _read_webp(data)
    if data[4:12] in (b"ftypavif", b"ftypavis", b"ftypheic", b"ftypheix", b"ftypmif1"):
        raise ImageError(f"the image is an AVIF or HEIC file; send {FORMATS}")
    start = data[:64].lstrip()
    for magic, name in _OTHERS:
        if start.startswith(magic):
            raise ImageError(f"the image is {name}; send {FORMATS}")
    if not data:
        raise ImageError(f"the image is empty; send {FORMATS}")
    raise ImageError(f"the bytes are no image of a known format; send {FORMATS}")


def _animated() -> ImageError:
    return ImageError("the image is animated; send the frames that matter as images of their own")


def _damaged() -> ImageError:
    return ImageError("the image's header is cut off or damaged")


def _read_png(data: bytes) -> Header:
    size: tuple[int, int] | None = None
    orientation = None
    for name, start, length in _png_chunks(data):
        if name == b"IHDR":
            if size is not None or length != 13:
                raise _damaged()
            width, height = struct.unpack_from(">II", data, start)
            size = (width, height)
        elif size is None:
            raise _damaged()
        elif name == b"acTL":
            raise _animated()
        elif name == b"eXIf" and orientation is None:
            orientation = _orientation(data[start : start + length])
    if size is None:
        raise _damaged()
    return Header("PNG", *size, orientation or 1)


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, start of the content, its length) of the chunks before the first one with pixels."""
    at = 8
    for _ in range(MAX_SEGMENTS):
        length, name = struct.unpack_from(">I4s", data, at)
        if name == b"IDAT":
            return
        if at + 12 + length > len(data):
            break
        yield name, at + 8, length
        at += 12 + length
    raise _damaged()


def _read_jpeg(data: bytes) -> Header:
    at, orientation = 2, None
    for _ in range(MAX_SEGMENTS):
        if data[at] != 0xFF:
            break
        if data[at + 1] == 0xFF:  # a fill byte
            at += 1
            continue
        marker = data[at + 1]
        (length,) = struct.unpack_from(">H", data, at + 2)
        content = at + 4
        if marker in (0xDA, 0xD9) or length < 2 or at + 2 + length > len(data):
            break
        if marker == 0xE1 and orientation is None and data.startswith(b"Exif\0\0", content):
            orientation = _orientation(data[content + 6 : at + 2 + length])
        # Frame headers; the other markers of this range define tables.
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            _, height, width = struct.unpack_from(">BHH", data, content)
            _check_scans(data, at + 2 + length)
            return Header("JPEG", width, height, orientation or 1)
        at += 2 + length
    raise _damaged()


def _check_scans(data: bytes, at: int) -> None:
    """Count the scans behind the header of a frame as a decoder does; raises ImageError."""
    scans = segments = 0
    while (found := _MARKER.search(data, at)) is not None:
        at, marker = found.end(), data[found.end() - 1]
        # The end of the picture, or a second start, at which decoders fail. Videos and depth maps may follow.
        if marker in (0xD8, 0xD9) or at + 2 > len(data):
            return
        at += int.from_bytes(data[at : at + 2], "big")
        scans += marker == 0xDA
        segments += 1
        if scans > MAX_SCANS:
            raise ImageError(f"the image is a JPEG of more than {MAX_SCANS} scans; send a baseline JPEG, PNG or WEBP")
        if segments > MAX_SEGMENTS:
            raise _damaged()


def _read_webp(data: bytes) -> Header:
    size = flags = None
    orientation = 1
    at = 12
    for _ in range(MAX_SEGMENTS):
        if at + 8 > len(data):
            break
        name, length = struct.unpack_from("<4sI", data, at)
        content = at + 8
        if name in (b"ANIM", b"ANMF"):
            raise _animated()
        if name == b"VP8X" and size is None:
            flags = data[content]
            if flags & 0x02:
                raise _animated()
            size = (1 + _uint24(data, content + 4), 1 + _uint24(data, content + 7))
        elif name == b"EXIF":
            orientation = _orientation(data[content : content + length].removeprefix(b"Exif\0\0")) or 1
        elif name in (b"VP8 ", b"VP8L"):
            inner = _vp8_size(data, content) if name == b"VP8 " else _vp8l_size(data, content)
            if size is not None and inner != size:
                raise ImageError("the image's header contradicts itself: it names two sizes")
            size = inner
            if flags is None:
                break
        at += 8 + length + length % 2
    if size is None:
        raise _damaged()
    return Header("WEBP", *size, orientation)


def _uint24(data: bytes, at: int) -> int:
    low, high = struct.unpack_from("<HB", data, at)
    return int(low | high << 16)


def _vp8_size(data: bytes, at: int) -> tuple[int, int]:
    if data[at + 3 : at + 6] != b"\x9d\x01\x2a":
        raise _damaged()
    width, height = struct.unpack_from("<HH", data, at + 6)
    return width & 0x3FFF, height & 0x3FFF


def _vp8l_size(data: bytes, at: int) -> tuple[int, int]:
    if data[at] != 0x2F:
        raise _damaged()
    (bits,) = struct.unpack_from("<I", data, at + 1)
    return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)


def _orientation(exif: bytes) -> int | None:
    """Return the orientation that the first directory of EXIF data names; None if there is none or the data is
    damaged. Other entries are not read."""
    order = {b"II": "<", b"MM": ">"}.get(exif[:2])
    if order is None:
        return None
    try:
        (start,) = struct.unpack_from(order + "I", exif, 4)
        (entries,) = struct.unpack_from(order + "H", exif, start)
        for i in range(min(entries, MAX_SEGMENTS)):
            tag, kind, count = struct.unpack_from(order + "HHI", exif, start + 2 + 12 * i)
            if tag == ORIENTATION:
                (value,) = struct.unpack_from(order + "H", exif, start + 10 + 12 * i)
                return value if kind == 3 and count == 1 and 1 <= value <= 8 else None
    except struct.error:
        return None
    return None
