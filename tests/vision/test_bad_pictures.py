"""Pictures that are refused, each in our own words, before any decoder sees them where the header tells."""

from __future__ import annotations

import io
import random
import struct
import sys
import zlib

import pytest
from PIL import Image

from radixrt.errors import RequestError
from radixrt.vision import decode as decoding
from radixrt.vision.header import read_header
from radixrt.vision.limits import ImageError, ImageLimits
from radixrt.vision.processor import PatchProcessor
from tests.vision.mutations import mutated
from tests.vision.pictures import encoded, picture, random_image

PROCESSOR = PatchProcessor(16, 2, {"size": {"shortest_edge": 4096, "longest_edge": 65_536}}, 2048)


def chunk(name: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width: int, height: int, *chunks: bytes) -> bytes:
    """PNG of the given size in its header, with no more pixels than its chunks have."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks)


def frames(format: str) -> bytes:
    images = [random_image(seed, 40, 40) for seed in range(3)]
    return encoded(images[0], format, save_all=True, append_images=images[1:], duration=100)


def scans(count: int, between: bytes = b"") -> bytes:
    """Progressive JPEG whose last scan is repeated."""
    data = encoded(random_image(0, 40, 40), "JPEG", progressive=True)
    last = data.rindex(b"\xff\xda")
    return data[:last] + (between + data[last:-2]) * count + data[-2:]


EMPTY = zlib.compress(b"\0")
BOMB = png(10_000, 10_000, chunk(b"IDAT", zlib.compress(bytes(30_010_000), 9)), chunk(b"IEND", b""))
BAD = {
    "empty": (b"", "empty"),
    "text": (b"hello, this is no picture at all", "no image of a known format"),
    "gif": (frames("GIF"), "is a GIF; send PNG, JPEG or WEBP"),
    "tiff": (encoded(random_image(0, 9, 9), "TIFF"), "is a TIFF"),
    "bmp": (encoded(random_image(0, 9, 9), "BMP"), "is a BMP"),
    "jpeg 2000": (encoded(random_image(0, 40, 40), "JPEG2000"), "is a JPEG 2000"),
    "avif": (b"\0\0\0\x20ftypavif\0\0\0\0", "AVIF"),
    "svg": (b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>", "is an SVG"),
    "xml": (b"  <?xml version='1.0'?><svg/>", "is an XML file"),
    "fits": (b"SIMPLE  =                    T", "is a FITS"),
    "gd": (b"gd2\0\0\2\xff\xff\xff\xff", "is a GD image"),
    "animated png": (frames("PNG"), "animated"),
    "animated webp": (frames("WEBP"), "animated"),
    "bomb": (BOMB, "10000 x 10000 pixels, and may have 40 million"),
    "long side": (png(16_385, 100, chunk(b"IDAT", EMPTY)), "a side may have 16384"),
    "side of 31 bits": (png(2**31 - 1, 1, chunk(b"IDAT", EMPTY)), "a side may have 16384"),
    "no width": (png(0, 4, chunk(b"IDAT", EMPTY)), "no pixels"),
    "narrow": (picture(1, 201), "201 x 1 pixels, and its long side may be 200 times"),
    "no pixels": (png(100, 100, chunk(b"IEND", b"")), "header is cut off or damaged"),
    "pixels missing": (png(100, 100, chunk(b"IDAT", EMPTY), chunk(b"IEND", b"")), "damaged"),
    "two headers": (png(9, 9, png(5000, 5000)[8:], chunk(b"IDAT", EMPTY)), "damaged"),
    "many chunks": (png(9, 9, *[chunk(b"tEXt", b"")] * 3000, chunk(b"IDAT", EMPTY)), "damaged"),
    "cut in the header": (picture(40, 40)[:20], "cut off or damaged"),
    "cut png": (picture(40, 40)[:-1000], "damaged: it cannot be decoded as PNG"),
    "cut jpeg": (picture(300, 300, format="JPEG")[:-3000], "damaged: it cannot be decoded as JPEG"),
    "cut webp": (picture(300, 300, format="WEBP")[:-3000], "damaged: it cannot be decoded as WEBP"),
    "jpeg of scans": (scans(120), "a JPEG of more than 100 scans; send a baseline JPEG, PNG or WEBP"),
    "jpeg of hidden scans": (scans(120, b"\xff\xfe\0\4\xff\xd9\xff\2"), "a JPEG of more than 100 scans"),
    "jpeg of segments behind its frame": (scans(1, b"\xff\xfe\0\2" * 3000), "cut off or damaged"),
    "jpeg of fill bytes": (b"\xff\xd8" + b"\xff" * 100_000, "cut off or damaged"),
    "jpeg of segments": (b"\xff\xd8" + b"\xff\xfe\0\2" * 100_000, "cut off or damaged"),
}  # fmt: skip


def test_scans_behind_the_end_of_a_jpeg_do_not_count():
    read_header(scans(50) + b"\xff\xda" * 1000)
    read_header(encoded(random_image(0, 40, 40), "JPEG", comment=b"\xff\xda" * 1000))


@pytest.mark.parametrize("name", BAD)
def test_a_bad_picture_is_refused(name):
    data, message = BAD[name]
    with pytest.raises(ImageError, match=message) as caught:
        PROCESSOR.process(data)
    assert "0x" not in str(caught.value)
    assert str(caught.value).startswith(("the image", "the bytes"))


def test_a_bomb_is_small():
    assert len(BOMB) < 50_000


@pytest.mark.parametrize("name", ["bomb", "long side", "narrow", "animated png", "animated webp"])
def test_no_decoder_sees_what_the_header_tells(name, monkeypatch):
    monkeypatch.setattr(decoding, "pillow", None)
    with pytest.raises(ImageError):
        PROCESSOR.process(BAD[name][0])


def test_two_frames_of_a_jpeg_with_two_sizes():
    first, second = picture(40, 40, format="JPEG"), picture(64, 640, format="JPEG")
    at = first.index(b"\xff\xda")
    begin = second.index(b"\xff\xc0")
    frame = second[begin : begin + 19]
    with pytest.raises(ImageError):
        PROCESSOR.process(first[:at] + frame + first[at:])


def test_exif_is_read_as_far_as_the_orientation():
    loop = b"II*\0\x08\0\0\0" + struct.pack("<H", 65_535) + b"\0" * 12  # more entries than there are
    for exif in (loop, b"II*\0\xff\xff\xff\xff", b"XX", b"", b"MM\0*\0\0\0\x08\0\1\1\x12\0\3\0\0\0\1\0\x63\0\0"):
        head = png(40, 40, chunk(b"eXIf", exif))
        whole = picture(40, 40)
        header = read_header(head + whole[whole.index(b"IDAT") - 4 :])
        assert header.orientation == 1


def test_a_jpeg_with_a_second_picture_is_its_first():
    file = io.BytesIO()
    first, second = random_image(0, 64, 64), random_image(1, 32, 32)
    first.save(file, "MPO", save_all=True, append_images=[second])
    assert Image.open(io.BytesIO(file.getvalue())).n_frames == 2
    (tile,) = PROCESSOR.process(file.getvalue())
    assert tile.pixels.shape == (64, 64, 3)


def test_limits_of_a_request():
    limits = ImageLimits(max_images=3, max_image_bytes=100, max_request_bytes=250)
    limits.check([("a", 100), ("b", 100), ("c", 50)])
    for sizes, param, message in (
        ([1, 1, 1, 1], "messages[3]", "has 4 images, and may have 3"),
        ([1, 101], "messages[1]", "101 bytes, and may have 100"),
        ([100, 100, 51], "messages[2]", "more than 250 bytes together"),
    ):
        with pytest.raises(RequestError, match=message) as caught:
            limits.check([(f"messages[{i}]", size) for i, size in enumerate(sizes)])
        assert caught.value.param == param
        assert caught.value.message.startswith(f"{param}: ")


def test_without_pillow_the_extra_is_named(monkeypatch):
    data = picture(40, 40)
    decoding.pillow.cache_clear()
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(RequestError, match="images need Pillow on the server: pip install") as caught:
        PROCESSOR.process(data)
    assert caught.value.status == 501
    monkeypatch.undo()
    decoding.pillow.cache_clear()


def test_mutated_pictures_are_read_or_refused():
    rng = random.Random(0)
    assert mutated(rng, 200, PROCESSOR) > 20
