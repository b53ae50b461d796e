"""`ImageProcessor`: the images of a picture, as a model's own processor makes them: resized, divided, and hashed.

The pixels equal those of the PIL processors of transformers. Scaling to floats and normalization are the tower's.
"""

from __future__ import annotations

import hashlib
import json
import struct
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from radixrt.errors import ModelLoadError
from radixrt.messages.parts import Detail
from radixrt.vision.decode import decode, pillow
from radixrt.vision.header import Header, read_header
from radixrt.vision.limits import MAX_PIXELS, ImageError
from radixrt.vision.sizes import Size, fit_longest_edge, fit_shortest_edge, fit_tiles, smart_resize

if TYPE_CHECKING:
    from PIL.Image import Image

Kind = Literal["qwen_vl", "idefics3", "llava"]
Pixels = npt.NDArray[np.uint8]

LOW_TOKENS = 256
"""Most tokens of a picture with the detail "low", for models that do not divide pictures into tiles."""
MIN_TOKENS = 4
"""Fewest tokens of an image, so that equal keys prove equal pixels (`radixrt.messages.images.PROVEN_KEYS`)."""

BICUBIC, LANCZOS = 3, 1
"""Numbers of Pillow's filters, as they stand in processors' files."""

FORMAT_TAG = b"radixrt image 1"


@dataclass(frozen=True)
class Plan:
    """Sizes of a picture's images, known from its header.

    Attributes:
        size: height and width after resizing in pixels, before the picture is divided into tiles.
        tiles: (rows, columns) of the tiles; (0, 0) if the picture is not divided.
        image_size: height and width of each image in pixels.
        grid: (rows, columns) of an image's positions.
        num_images: number of images: tiles, and the whole picture as a tile behind them.
        padded: pixels of the square to which the picture is padded before resizing; 0 without padding.
    """

    size: Size
    tiles: Size
    image_size: Size
    grid: Size
    num_images: int
    padded: int = 0

    @property
    def num_tokens(self) -> int:
        """Positions of all images of the picture."""
        return self.num_images * self.grid[0] * self.grid[1]

    @property
    def num_bytes(self) -> int:
        """Bytes of the pixels of all images of the picture."""
        return self.num_images * self.image_size[0] * self.image_size[1] * 3


@dataclass(frozen=True)
class Tile:
    """One image of the model: a picture, or a tile of a divided picture.

    Attributes:
        pixels: [height, width, 3], RGB.
        rows, columns: size in merged patches, each of which is one position.
        digest: SHA-256 of the pixels, their size and the kind of processing.
    """

    pixels: Pixels
    rows: int
    columns: int
    digest: bytes


class ImageProcessor(ABC):
    """Processing of one model. `of` makes the processor of a model folder.

    Args:
        patch: side of a patch of the tower, in pixels.
        merge: patches along each side of a position.
        settings: contents of the processor's file.
        max_tokens: most positions of the images of one picture.
    """

    kind: Kind

    def __init__(self, patch: int, merge: int, settings: dict[str, Any], max_tokens: int) -> None:
        self._patch, self._merge, self._unit = patch, merge, patch * merge
        self._max_tokens = max_tokens
        self._filter = int(settings.get("resample", BICUBIC))
        self._tag = FORMAT_TAG + f" {self.kind} {patch} {merge}".encode()

    @staticmethod
    def of(folder: str | Path, kind: Kind, *, patch: int, merge: int, max_tokens: int) -> ImageProcessor:
        """Read a model's preprocessor_config.json, or the image processor in its processor_config.json.

        Raises:
            ModelLoadError: neither file is there, or a setting is not supported.
        """
        return _KINDS[kind](patch, merge, read_settings(Path(folder)), max_tokens)

    def plan(self, header: Header, detail: Detail = "auto") -> Plan:
        """Return the sizes of a picture's images; raises ImageError for a picture that the model cannot take."""
        return self._plan(*header.size, detail)

    def process(self, data: bytes, detail: Detail = "auto") -> list[Tile]:
        """Decode a picture and make its images, in the order of the prompt.

        Raises:
            ImageError: the picture cannot be read, or exceeds a limit.
            RequestError: Pillow is not installed.
        """
        header = read_header(data)
        plan = self.plan(header, detail)
        images = self._images(decode(data, header), plan)
        return [Tile(pixels, *plan.grid, self._digest(pixels)) for pixels in images]

    @abstractmethod
    def _plan(self, height: int, width: int, detail: Detail) -> Plan: ...

    @abstractmethod
    def _images(self, image: Image, plan: Plan) -> list[Pixels]: ...

    def _resized(self, image: Image, size: Size) -> Image:
        return image.resize((size[1], size[0]), self._filter)

    def _digest(self, pixels: Pixels) -> bytes:
        digest = hashlib.sha256(self._tag + struct.pack("<II", *pixels.shape[:2]))
        digest.update(np.ascontiguousarray(pixels).data)
        return digest.digest()


class PatchProcessor(ImageProcessor):
    """Qwen's: an image has as many positions as its size in patches, within bounds."""

    kind = "qwen_vl"

    def __init__(self, patch: int, merge: int, settings: dict[str, Any], max_tokens: int) -> None:
        super().__init__(patch, merge, settings, max_tokens)
        size = settings.get("size") or {}
        low = settings.get("min_pixels") or size.get("shortest_edge") or 56 * 56
        high = settings.get("max_pixels") or size.get("longest_edge") or 28 * 28 * 1280
        area = self._unit**2
        self._high = max(min(int(high), max_tokens * area), MIN_TOKENS * area)
        self._low = min(max(int(low), MIN_TOKENS * area), self._high)

    def _plan(self, height: int, width: int, detail: Detail) -> Plan:
        high = min(self._high, LOW_TOKENS * self._unit**2) if detail == "low" else self._high
        size = smart_resize(height, width, self._unit, min(self._low, high), high)
        return Plan(size, (0, 0), size, (size[0] // self._unit, size[1] // self._unit), 1)

    def _images(self, image: Image, plan: Plan) -> list[Pixels]:
        return [np.asarray(self._resized(image, plan.size))]


class TileProcessor(ImageProcessor):
    """Idefics3's and SmolVLM's: a picture is enlarged or reduced to whole tiles, and each tile, and the whole picture
    in the size of a tile, is an image."""

    kind = "idefics3"

    def __init__(self, patch: int, merge: int, settings: dict[str, Any], max_tokens: int) -> None:
        super().__init__(patch, merge, {"resample": LANCZOS, **settings}, max_tokens)
        self._tile = int((settings.get("max_image_size") or {}).get("longest_edge", 364))
        self._longest = int((settings.get("size") or {}).get("longest_edge", 4 * self._tile))
        self._divides = bool(settings.get("do_image_splitting", True))
        if self._tile < patch or self._tile // patch % merge:
            raise ModelLoadError(
                f"the processor's max_image_size is {self._tile}, {self._tile // patch} patches along a side, not a "
                f"multiple of the {merge} that make a position"
            )

    def _plan(self, height: int, width: int, detail: Detail) -> Plan:
        tile, side = self._tile, self._tile // self._patch // self._merge
        divides = self._divides and detail != "low"
        longest = self._longest
        while True:
            size = fit_longest_edge(height, width, longest)
            whole = fit_tiles(*size, tile)
            rows, columns = whole[0] // tile, whole[1] // tile
            if not divides or (rows, columns) == (1, 1):
                return Plan(size, (0, 0), (tile, tile), (side, side), 1)
            if (rows * columns + 1) * side**2 <= self._max_tokens:
                return Plan(size, (rows, columns), (tile, tile), (side, side), rows * columns + 1)
            longest = (longest - 1) // tile * tile  # fewer tiles, until the picture fits
            divides = longest > tile

    def _images(self, image: Image, plan: Plan) -> list[Pixels]:
        tile = self._tile
        image = self._resized(image, plan.size)
        rows, columns = plan.tiles
        if not rows:
            return [np.asarray(self._resized(image, (tile, tile)))]
        image = self._resized(image, (rows * tile, columns * tile))
        pixels = np.asarray(image)
        images: list[Pixels] = [
            pixels[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
            for row in range(rows)
            for column in range(columns)
        ]
        return [*images, np.asarray(self._resized(image, (tile, tile)))]


class SquareProcessor(ImageProcessor):
    """CLIP's and LLaVA's: the shortest side is resized, and the middle is cut out; or the whole is resized."""

    kind = "llava"

    def __init__(self, patch: int, merge: int, settings: dict[str, Any], max_tokens: int) -> None:
        super().__init__(patch, merge, settings, max_tokens)
        if settings.get("image_grid_pinpoints"):
            raise ModelLoadError("image_grid_pinpoints (divided pictures of LLaVA-NeXT) are not supported")
        size = settings.get("size") or {"shortest_edge": 224}
        if isinstance(size, int):
            size = {"shortest_edge": size}
        self._shortest = size.get("shortest_edge")
        crop = settings.get("crop_size") or {}
        if isinstance(crop, int):
            crop = {"height": crop, "width": crop}
        crops = bool(settings.get("do_center_crop", bool(crop)))
        side: int = self._shortest or size.get("height") or 0
        self._size: Size = (crop.get("height", side), crop.get("width", side)) if crops else (side, side)
        if not side or self._size != (side, side) or size.get("width", side) != side or side < patch:
            raise ModelLoadError(f"the processor's size {size} and crop_size {crop} do not give a square of patches")
        if self._shortest and not crops and not settings.get("do_pad"):
            raise ModelLoadError("the processor neither crops nor pads pictures, so that their sizes would differ")
        mean = settings.get("image_mean") or [0.48145466, 0.4578275, 0.40821073]
        self._padding = tuple(int(value * 255) for value in mean) if settings.get("do_pad") else None

    def _plan(self, height: int, width: int, detail: Detail) -> Plan:
        padded = 0
        if self._padding is not None:
            padded = max(height, width) ** 2 if height != width else 0
            if padded > MAX_PIXELS:
                raise ImageError(
                    f"the image is {width} x {height} pixels, and this model pads it to a square, which may have "
                    f"{MAX_PIXELS // 1_000_000} million; send it smaller"
                )
            height = width = max(height, width)
        size = fit_shortest_edge(height, width, self._shortest) if self._shortest else self._size
        rows, columns = (side // self._patch // self._merge for side in self._size)
        if rows * columns > self._max_tokens:
            raise ImageError(
                f"an image of this model takes {rows * columns} tokens, and may take {self._max_tokens} "
                "(--max-image-tokens)"
            )
        return Plan(size, (0, 0), self._size, (rows, columns), 1, padded)

    def _images(self, image: Image, plan: Plan) -> list[Pixels]:
        if self._padding is not None and image.width != image.height:
            side = max(image.size)
            square = pillow().new("RGB", (side, side), self._padding)
            square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
            image = square
        pixels = np.asarray(self._resized(image, plan.size))
        height, width = self._size
        top, left = (plan.size[0] - height) // 2, (plan.size[1] - width) // 2
        return [pixels[top : top + height, left : left + width]]


_KINDS: dict[Kind, type[ImageProcessor]] = {
    each.kind: each for each in (PatchProcessor, TileProcessor, SquareProcessor)
}


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of a model folder's image processor; raises ModelLoadError."""
    for name, key in (("preprocessor_config.json", None), ("processor_config.json", "image_processor")):
        try:
            settings = json.loads((folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{folder / name} cannot be read: {error}") from error
        settings = settings.get(key) if key is not None and isinstance(settings, dict) else settings
        if isinstance(settings, dict):
            return settings
    raise ModelLoadError(
        f"{folder} has no preprocessor_config.json, which names the sizes of images; copy it from the model's "
        "repository"
    )
