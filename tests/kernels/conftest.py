"""Device of the Triton kernels' tests: the GPU, or the CPU under Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import importlib.util
import os

import pytest
import torch


@pytest.fixture(scope="session")
def triton_device() -> str:
    """ "cuda", or "cpu" under the interpreter; else the test is skipped."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "cpu"
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device; TRITON_INTERPRET=1 runs the kernels on the CPU")
    return "cuda"
