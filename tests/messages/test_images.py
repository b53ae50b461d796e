"""Keys of images: distinct from token ids, and different for different pixels."""

from __future__ import annotations

import hashlib

import numpy as np

from radixrt.messages.images import RowImage, image_keys


def _digest(number: int) -> bytes:
    return hashlib.sha256(str(number).encode()).digest()


def test_keys_are_never_token_ids_or_the_unknown_token() -> None:
    keys = image_keys(_digest(0), 200_000)
    assert keys.dtype == np.int32
    assert keys.max() <= -2


def test_a_longer_image_of_one_digest_begins_alike() -> None:
    assert np.array_equal(image_keys(_digest(1), 64), image_keys(_digest(1), 1000)[:64])


def test_keys_use_their_whole_range() -> None:
    keys = -2 - image_keys(_digest(2), 100_000).astype(np.int64)
    # The mean and the spread of uniform numbers below 2**31 - 2, within four standard errors.
    assert abs(keys.mean() / 2**30 - 1) < 4 / np.sqrt(3 * 100_000)
    assert len(np.unique(keys)) > 99_990


def test_no_two_images_have_equal_first_keys() -> None:
    firsts = {image_keys(_digest(i), 4).tobytes() for i in range(20_000)}
    assert len(firsts) == 20_000


def test_end_is_behind_the_last_key() -> None:
    assert RowImage(3, 4, 2, 2, 64, 64, _digest(0), "").end == 7
