"""The other way is the other way, and rates are of the operations that there are."""

from __future__ import annotations

import torch

from benchmarks.choices import PRODUCTS, PROMPT, as_it_is, attention_flops, late_launches, rate


def test_rates() -> None:
    assert attention_flops(3, 2) == 2 * 2 * 2 * 128 * (1 + 2 + 3)
    assert rate(attention_flops(8192, 32), 927) == "927, 593"
    columns, inner = PRODUCTS[0]
    assert rate(2 * PROMPT * columns * inner, 515) == "515, 801"


def test_late_launches() -> None:
    from radixrt.runner import model_runner

    usual = model_runner.launches_early
    with as_it_is("qwen3-0.6b"):
        assert model_runner.launches_early is usual
    with late_launches("qwen3-0.6b"):
        assert not model_runner.launches_early(torch.device("cuda"))
    assert model_runner.launches_early is usual
