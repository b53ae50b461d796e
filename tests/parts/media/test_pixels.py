"""Pixels of images on their way to the tower."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from radixrt.messages.sections import EncodePiece
from radixrt.parts.media.runner.pixels import PixelReader
from radixrt.runner.step_result import InputLostError

PIXELS = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
READER = PixelReader(torch.device("cpu"), PIXELS.nbytes)


def test_a_file_and_the_bytes_of_a_step(tmp_path: Path) -> None:
    (tmp_path / "image").write_bytes(PIXELS.tobytes())
    for path, data in ((str(tmp_path / "image"), b""), ("", PIXELS.tobytes())):
        read = READER.read(EncodePiece(1, 0, 2, 0, 4, 6, path, data))
        assert read.dtype == torch.uint8
        assert np.array_equal(read.numpy(), PIXELS)


@pytest.mark.parametrize("content", [None, b"", PIXELS.tobytes()[:-1]])
def test_lost_pixels_name_the_encoding(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "image"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputLostError, match="pixels of an image") as error:
        READER.read(EncodePiece(17, 0, 2, 0, 4, 6, str(path)))
    assert error.value.number == 17
