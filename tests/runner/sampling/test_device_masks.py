"""The device's table of grammar masks."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radixrt.runner.sampling import device_masks
from radixrt.runner.sampling.device_masks import DeviceMasks


def test_warming_up_copies_each_size_and_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    masks = DeviceMasks(100, 71, torch.device("cpu"))
    masks.table.random_(-(1 << 31), (1 << 31) - 1)
    before, sizes = masks.table.clone(), []
    upload = device_masks.upload_together

    def noted(arrays: list[np.ndarray], device: torch.device) -> list[torch.Tensor]:
        sizes.append(len(arrays[0]))
        return upload(arrays, device)

    monkeypatch.setattr(device_masks, "upload_together", noted)
    masks.load_kernels()
    assert torch.equal(masks.table, before)
    assert sizes == [1, 2, 4, 8, 16, 32, 64]
