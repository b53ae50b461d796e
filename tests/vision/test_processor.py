"""Images are those of the processors of transformers, byte for byte."""

from __future__ import annotations

import io
import json
import random

import numpy as np
import pytest
from PIL import Image
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil
from transformers.models.llava.image_processing_pil_llava import LlavaImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize
from transformers.models.smolvlm.image_processing_pil_smolvlm import SmolVLMImageProcessorPil

from radixrt.errors import ModelLoadError
from radixrt.vision.header import Header, read_header
from radixrt.vision.limits import ImageError
from radixrt.vision.processor import ImageProcessor, PatchProcessor, SquareProcessor, TileProcessor
from tests.vision.pictures import MODES, encoded, random_image

RAW = {"do_rescale": False, "do_normalize": False}
SMOLVLM = {"size": {"longest_edge": 512}, "max_image_size": {"longest_edge": 128}}
CLIP = {"size": {"shortest_edge": 84}, "crop_size": {"height": 84, "width": 84}, "do_center_crop": True}


def unpatched(values: np.ndarray, grid: np.ndarray, patch: int) -> np.ndarray:
    """Image [H, W, 3] of patches [n, 3 * 2 * patch * patch] in the order of merged positions."""
    _, rows, columns = grid
    parts = values.reshape(rows // 2, columns // 2, 2, 2, 3, 2, patch, patch)[:, :, :, :, :, 0]
    return parts.transpose(0, 2, 5, 1, 3, 6, 4).reshape(rows * patch, columns * patch, 3)


def sizes(seed: int, count: int, longest: int) -> list[tuple[int, int]]:
    rng = random.Random(seed)
    drawn = [(rng.randint(1, longest), rng.randint(1, longest)) for _ in range(count)]
    return [(h, w) for h, w in drawn if max(h, w) <= 200 * min(h, w)]


@pytest.mark.parametrize("mode", MODES)
def test_qwen(mode):
    processor = PatchProcessor(8, 2, {"size": {"shortest_edge": 4096, "longest_edge": 65_536}}, 2048)
    oracle = Qwen2VLImageProcessorPil(patch_size=8, size={"shortest_edge": 4096, "longest_edge": 65_536}, **RAW)
    for seed, (height, width) in enumerate(sizes(1, 12, 400)):
        image = random_image(seed, height, width, mode)
        options = {"transparency": 3} if mode == "PA" else {}
        data = encoded(image, "JPEG" if mode == "CMYK" else "PNG", **options)
        if mode == "I;16":
            image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
        else:
            image = Image.open(io.BytesIO(data))
        expected = oracle(image)
        (tile,) = processor.process(data)
        assert (tile.rows, tile.columns) == tuple(expected["image_grid_thw"][0][1:] // 2)
        pixels = unpatched(expected["pixel_values"], expected["image_grid_thw"][0], 8)
        np.testing.assert_array_equal(tile.pixels, pixels)


@pytest.mark.parametrize("oracle", [SmolVLMImageProcessorPil, Idefics3ImageProcessorPil])
def test_tiles(oracle):
    processor = TileProcessor(16, 4, SMOLVLM, 2048)
    for divides, detail in ((True, "auto"), (False, "low")):
        expect = oracle(**SMOLVLM, **RAW, do_image_splitting=divides, do_pad=False, return_row_col_info=True)
        for seed, (height, width) in enumerate([(1, 1), (1, 200), (128, 128), (511, 512), *sizes(2, 6, 700)]):
            image = random_image(seed, height, width)
            expected = expect(image)
            data = encoded(image)
            found = processor.process(data, detail)
            plan = processor.plan(read_header(data), detail)
            assert plan.tiles == (expected["rows"][0][0], expected["cols"][0][0])
            assert len(found) == plan.num_images == len(expected["pixel_values"][0])
            for tile, pixels in zip(found, expected["pixel_values"][0], strict=True):
                np.testing.assert_array_equal(tile.pixels, np.moveaxis(pixels, 0, -1))
                assert (tile.rows, tile.columns) == (2, 2)


@pytest.mark.parametrize("settings", [CLIP, CLIP | {"do_pad": True}, {"size": {"height": 84, "width": 84}}])
def test_squares(settings):
    processor = SquareProcessor(14, 1, settings, 2048)
    oracle = LlavaImageProcessorPil(**{"do_center_crop": False, **settings}, **RAW)
    for seed, (height, width) in enumerate([(84, 84), (83, 85), (1, 150), *sizes(3, 15, 300)]):
        image = random_image(seed, height, width)
        (tile,) = processor.process(encoded(image))
        np.testing.assert_array_equal(tile.pixels, np.moveaxis(oracle(image)["pixel_values"][0], 0, -1))
        assert (tile.rows, tile.columns) == (6, 6)


def test_the_square_of_a_padded_picture_is_bounded():
    padding = SquareProcessor(14, 1, CLIP | {"do_pad": True}, 2048)
    with pytest.raises(ImageError, match="16384 x 82 pixels, and this model pads it to a square, which may have 40"):
        padding.plan(Header("PNG", 16_384, 82))
    assert padding.plan(Header("PNG", 6_000, 100)).padded == 36_000_000
    assert padding.plan(Header("PNG", 6_000, 6_000)).padded == 0
    assert SquareProcessor(14, 1, CLIP, 2048).plan(Header("PNG", 16_384, 82)).padded == 0


def test_every_size_of_qwen():
    processor = PatchProcessor(16, 2, {"size": {"shortest_edge": 65_536, "longest_edge": 16_777_216}}, 2048)
    for height in range(1, 3000, 37):
        for width in range(1, 3000, 41):
            if max(height, width) > 200 * min(height, width):
                with pytest.raises(ImageError, match="200"):
                    processor.plan(Header("PNG", width, height))
                continue
            plan = processor.plan(Header("PNG", width, height))
            assert plan.size == smart_resize(height, width, 32, 65_536, 2048 * 1024)
            assert 4 <= plan.num_tokens <= 2048
            assert processor.plan(Header("PNG", width, height), "low").num_tokens <= 256


def test_tokens_are_bounded():
    wide = TileProcessor(14, 2, {"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}}, 2048)
    for height, width in ((1000, 1000), (200, 1400), (1, 199)):
        plan = wide.plan(Header("PNG", width, height))
        assert plan.num_tokens <= 2048, (height, width)
        assert plan.tiles != (0, 0)
    assert wide.plan(Header("PNG", 1000, 1000)).tiles == (3, 3)  # 17 images of 169 tokens would be 2,873
    tight = TileProcessor(14, 2, {"size": {"longest_edge": 1456}, "max_image_size": {"longest_edge": 364}}, 169)
    assert tight.plan(Header("PNG", 1000, 1000)).num_tokens == 169
    odd = TileProcessor(14, 3, {"size": {"longest_edge": 1536}, "max_image_size": {"longest_edge": 384}}, 2048)
    assert odd.plan(Header("PNG", 384, 384), "low").grid == (9, 9)  # 27 patches; six pixels behind them are not read
    assert (
        SquareProcessor(14, 1, {"size": {"height": 384, "width": 384}}, 2048).plan(Header("PNG", 9, 9)).num_tokens
        == 729
    )
    with pytest.raises(ImageError, match="max-image-tokens"):
        SquareProcessor(14, 1, CLIP, 35).plan(Header("PNG", 84, 84))
    assert PatchProcessor(16, 2, {"size": {"shortest_edge": 1, "longest_edge": 10**9}}, 2048).plan(
        Header("PNG", 1, 1)
    ).grid == (2, 2)


def test_digests():
    processor = TileProcessor(16, 4, SMOLVLM, 2048)
    image = np.zeros((512, 512, 3), np.uint8)
    image[:128, :128] = 7
    found = [tile.digest for tile in processor.process(encoded(Image.fromarray(image)))]
    assert len(set(found)) == 3  # the first tile, the empty ones, and the whole
    assert found == [tile.digest for tile in processor.process(encoded(Image.fromarray(image), "WEBP", lossless=True))]
    other = PatchProcessor(16, 4, {"size": {"shortest_edge": 128**2, "longest_edge": 128**2}}, 2048)
    (whole,) = other.process(encoded(Image.fromarray(image[128:256, 128:256])))
    assert whole.pixels.shape == (128, 128, 3)
    assert not whole.pixels.any()
    assert whole.digest not in found  # equal pixels of another kind of model


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["JPEG", "PNG", "WEBP"])
def test_orientation(format, orientation):
    from PIL import ImageOps

    from radixrt.vision.decode import decode

    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(random_image(0, 20, 30), format, exif=exif)
    header = read_header(data)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    image = decode(data, header)
    assert header.size == (image.height, image.width)
    np.testing.assert_array_equal(np.asarray(image), np.asarray(expected))


def test_settings(tmp_path):
    with pytest.raises(ModelLoadError, match=r"preprocessor_config\.json"):
        ImageProcessor.of(tmp_path, "idefics3", patch=16, merge=4, max_tokens=2048)
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": SMOLVLM}))
    processor = ImageProcessor.of(tmp_path, "idefics3", patch=16, merge=4, max_tokens=2048)
    assert processor.plan(Header("PNG", 500, 500)).tiles == (4, 4)
    (tmp_path / "preprocessor_config.json").write_text("[")
    with pytest.raises(ModelLoadError, match="cannot be read"):
        ImageProcessor.of(tmp_path, "idefics3", patch=16, merge=4, max_tokens=2048)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"max_image_size": {"longest_edge": 100}}))
    with pytest.raises(ModelLoadError, match="6 patches along a side, not a multiple of the 4"):
        ImageProcessor.of(tmp_path, "idefics3", patch=16, merge=4, max_tokens=2048)
    for settings in ({"image_grid_pinpoints": [[1, 1]]}, {"size": {"height": 84, "width": 98}}):
        with pytest.raises(ModelLoadError):
            SquareProcessor(14, 1, settings, 2048)
