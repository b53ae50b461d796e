"""The choice of dtypes, and what it does to a small model on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from radixrt.models import precision
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from radixrt.models.precision import FLOAT32_MAX_PARAMETERS, FLOAT32_MIN_TOKENS, Precision, choose_precision
from tests.models.dense_attention import DenseAttention, logits_of

AMD = frozenset({"AuthenticAMD", "avx512_bf16"})
INTEL_AMX = frozenset({"GenuineIntel", "avx512_bf16", "amx_bf16"})
INTEL_WITHOUT_AMX = frozenset({"GenuineIntel", "avx512_bf16", "avx512_fp16"})
OLD = frozenset({"GenuineIntel", "avx2"})


@pytest.mark.parametrize(
    ("dtype", "device", "flags", "expected"),
    [
        ("auto", "cuda", OLD, Precision("bfloat16", "bfloat16", "bfloat16")),
        ("float16", "cuda", OLD, Precision("float16", "float16", "float16")),
        ("auto", "cpu", OLD, Precision("float32", "float32", "float32")),
        ("float16", "cpu", OLD, Precision("float16", "float32", "float32")),
        ("auto", "cpu", AMD, Precision("bfloat16", "float32", "float32")),
        ("auto", "cpu", INTEL_AMX, Precision("bfloat16", "float32", "float32")),
        ("auto", "cpu", INTEL_WITHOUT_AMX, Precision("bfloat16", "float32", "float32", FLOAT32_MIN_TOKENS)),
        ("float32", "cpu", INTEL_WITHOUT_AMX, Precision("float32", "float32", "float32")),
    ],
)
def test_choose_precision(
    dtype: str, device: str, flags: frozenset[str], expected: Precision, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "cpu_flags", lambda: flags)
    monkeypatch.setattr(precision.platform, "machine", lambda: "x86_64")
    assert choose_precision(dtype, device) == expected


def test_a_large_model_gets_no_second_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "cpu_flags", lambda: INTEL_WITHOUT_AMX)
    assert choose_precision("auto", "cpu", FLOAT32_MAX_PARAMETERS + 1).float32_min_tokens is None


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_many_rows_are_multiplied_in_float32(
    kind: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU without fast bfloat16 GEMM; biases and norms of heads included."""
    folder = tiny_model(kind)
    spec = load_model_spec(folder)
    ids = torch.randint(0, spec.vocab_size, (FLOAT32_MIN_TOKENS,), generator=torch.Generator().manual_seed(1)).tolist()

    def error(flags: frozenset[str], tokens: int) -> float:
        monkeypatch.setattr(precision, "cpu_flags", lambda: flags)
        exact = load_model(folder, spec, dtype="float32", device="cpu")
        rounded = load_model(folder, spec, dtype="bfloat16", device="cpu")
        batch = [(0, 0, tokens)]
        both = [logits_of(model, DenseAttention(), batch, ids[:tokens]) for model in (exact, rounded)]
        return float((both[0] - both[1]).abs().mean())

    many, few = FLOAT32_MIN_TOKENS, FLOAT32_MIN_TOKENS - 1
    assert error(INTEL_WITHOUT_AMX, few) == error(AMD, few)
    assert error(INTEL_WITHOUT_AMX, many) < error(AMD, many)
