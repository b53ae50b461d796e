"""The list of pages is each row's, in order, behind the one before, and nothing else is written."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("page_size", [1, 16])
@pytest.mark.parametrize("lens", [[1], [5, 1, 1, 40], [16, 32, 17], [9000, 3]], ids=str)
def test_lists_pages(lens: list[int], page_size: int, triton_device: str) -> None:
    from radixrt.kernels.triton.kv_indices import write_kv_indices

    rng = np.random.default_rng(0)
    counts = [-(-n // page_size) for n in lens]
    pages = rng.permutation(sum(counts)).astype(np.int32) + 1
    table = np.zeros((len(lens) + 2, max(counts) * page_size), np.int32)
    places = rng.permutation(len(lens) + 1)[: len(lens)] + 1
    first = 0
    for place, count in zip(places, counts, strict=True):
        slots = pages[first : first + count, None] * page_size + np.arange(page_size)
        table[place, : count * page_size] = slots.reshape(-1)
        first += count
    indptr = np.cumsum([0, *counts]).astype(np.int32)
    out = torch.full((len(pages) + 5,), -1, dtype=torch.int32, device=triton_device)
    arrays = (torch.from_numpy(x).to(triton_device) for x in (table, places, indptr))
    write_kv_indices(*arrays, page_size, out)
    assert out[: len(pages)].tolist() == pages.tolist()
    assert (out[len(pages) :] == -1).all()


@pytest.mark.parametrize("page_size", [1, 16])
def test_begins_behind_what_is_read_elsewhere(page_size: int, triton_device: str) -> None:
    from radixrt.kernels.triton.kv_indices import write_kv_indices

    rng = np.random.default_rng(1)
    pages = rng.permutation(40).astype(np.int32).reshape(2, 20)
    table = (pages[:, :, None] * page_size + np.arange(page_size, dtype=np.int32)).reshape(2, -1)
    skipped, counts = np.array([3, 0], np.int32), np.array([17, 5], np.int32)
    indptr = np.array([0, 17, 22], np.int32)
    out = torch.full((22,), -1, dtype=torch.int32, device=triton_device)
    arrays = [torch.from_numpy(x).to(triton_device) for x in (table, np.arange(2), indptr, skipped * page_size)]
    write_kv_indices(*arrays[:3], page_size, out, arrays[3])
    expected = [pages[row, s : s + n].tolist() for row, (s, n) in enumerate(zip(skipped, counts, strict=True))]
    assert out.tolist() == expected[0] + expected[1]
