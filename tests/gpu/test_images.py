"""Images on a GPU: towers, the encoder pool and rotary positions, with graphs and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from radixrt.messages.wire import unpack_f32
from tests.equivalence.images import Part, logits
from tests.equivalence.test_images import ImageBench, pictures, token_ids
from tests.tiny_models import make_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

KINDS = ("qwen3_vl", "qwen3_5_vl", "smolvlm", "llava")
ROUNDING = 0.05
"""Mean error of log-probabilities in bfloat16; a lost offset, or axes in another order, are above 0.1."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Tiny models with heads that FlashInfer takes."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            text = {"head_dim": 64}
            if kind.startswith("qwen3_vl"):
                sections = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [12, 10, 10]}
                text["rope_parameters"] = {**sections, "mrope_interleaved": True}  # type: ignore[assignment]
            if kind == "qwen3_5_vl":
                sections = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [4, 2, 2]}
                text["rope_parameters"] = {**sections, "mrope_interleaved": True, "partial_rotary_factor": 0.25}  # type: ignore[assignment]
            made[kind] = make_tiny_model(tmp_path_factory.mktemp("images") / kind, kind, text_config=text)
        return made[kind]

    return get


def prompts(folder: Path) -> list[list[Part]]:
    first, second, third = pictures(folder)
    return [[105, 106, first, 107], [105, second, 108, first, 109], [105, 106, third, 107], [110, 111, 112]]


@pytest.mark.parametrize("kind", KINDS)
def test_float32_equals_transformers(kind: str, model: Callable[[str], Path], tmp_path: Path) -> None:
    bench = ImageBench(model(kind), tmp_path, device="cuda", chunked_prefill_size=16)
    for i, parts in enumerate(prompts(model(kind))):
        bench.show(f"r{i}", parts)
    bench.assert_equal()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("graphs", ["on", "off"])
def test_bfloat16_prompts_and_decoded_tokens(
    kind: str, graphs: str, model: Callable[[str], Path], tmp_path: Path
) -> None:
    """Log-probabilities of prompts and of decoded tokens are close to transformers' in float32."""
    folder = model(kind)
    options = {} if graphs == "on" else {"cuda_graph": "off"}
    bench = ImageBench(folder, tmp_path, device="cuda", dtype="bfloat16", **options)
    for turn in range(2):  # the second time behind cached prefixes
        for i, parts in enumerate(prompts(folder)):
            bench.show(f"r{turn}{i}", parts, logprobs=0, max_tokens=24, min_tokens=24)
        bench.drain()
    bench.show("scored", prompts(folder)[1], prompt_logprobs=0)
    bench.drain()
    for turn in range(2):
        for i, parts in enumerate(prompts(folder)):
            rid, length = f"r{turn}{i}", len(token_ids(folder, parts))
            exact = logits(folder, parts, bench.tokens[rid]).log_softmax(-1)
            expected = exact[range(length - 1, length + 23), bench.tokens[rid]].numpy()
            assert np.abs(unpack_f32(bench.logprobs[rid]) - expected).mean() < ROUNDING
    ids = token_ids(folder, prompts(folder)[1])
    exact = logits(folder, prompts(folder)[1]).log_softmax(-1)[range(len(ids) - 1), ids[1:]].numpy()
    assert np.abs(unpack_f32(bench.scores["scored"]) - exact).mean() < ROUNDING
