"""The bitmask on some rows of logits: exactly the reference."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("vocab", [1, 31, 1000, 4096, 49152, 70001])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["f32", "bf16"])
def test_forbidden_tokens(triton_device: str, vocab: int, dtype: torch.dtype) -> None:
    from radixrt.kernels.triton.mask import apply_bitmask

    rng = np.random.default_rng(vocab)
    slots = np.array([0, -1, 2, 1, 2], np.int32)
    words = rng.integers(-(2**31), 2**31, (3, (vocab + 31) // 32)).astype(np.int32)
    words[1] = 0
    words[2] = -1
    logits = torch.from_numpy(rng.standard_normal((5, vocab)).astype(np.float32)).to(dtype)
    logits[4, 0] = torch.nan
    allowed = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")[:, :vocab].astype(bool)
    expected = logits.clone()
    for row, slot in enumerate(slots.tolist()):
        if slot >= 0:
            expected[row, torch.from_numpy(~allowed[slot])] = -torch.inf
    expected[4, 0] = torch.nan
    found = logits.to(triton_device)
    apply_bitmask(found, *(torch.from_numpy(array).to(triton_device) for array in (slots, words)))
    torch.testing.assert_close(found.cpu(), expected, rtol=0, atol=0, equal_nan=True)
