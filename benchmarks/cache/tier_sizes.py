"""Table "How large" of docs/tiers.md: sizes of keys and values, and the slowest link over which fetching pays.

Nothing is measured: the sizes follow from config.json. A device computes a prompt token in

    2 * weights that the token is multiplied by / (DENSE_SHARE * dense bfloat16 rate of the device)

seconds, and a link is fast enough if the token's keys and values arrive in that time. Attention to long prefixes makes
computing slower than that, quantized weights make it faster.

Run: python -m benchmarks.cache.tier_sizes
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from benchmarks.common.model_shapes import CONFIGS
from benchmarks.common.tables import table
from radixrt.doctor.model import model_needs

MODELS = ("qwen3-0.6b", "llama-3.1-8b", "llama-3.1-70b", "qwen3-30b-a3b", "gpt-oss-20b")
CARDS = {"H100, H200": 989e12, "A100": 312e12, "L40S": 362e12, "RTX 4090": 165e12}
"""Dense bfloat16 operations a second, by card."""
DENSE_SHARE = 0.5
PREFIX = 8192
GIB = 2**30


def rows() -> list[list[str]]:
    """Return a row for each model."""
    found = []
    for name in MODELS:
        config = {key: value for key, value in CONFIGS[name].items() if key != "quantization_config"}
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            needs = model_needs(folder, device="cuda", free_bytes=0, dtype="bfloat16")
        assert not needs.problem, needs.problem
        head = 2 * config["vocab_size"] * config["hidden_size"]  # prompt tokens but the last one skip the output head
        operations = needs.step_bytes - head  # two for each weight of two bytes
        rates = [DENSE_SHARE * card / operations * needs.token_bytes / 1e9 for card in CARDS.values()]
        found.append(
            [
                name,
                f"{needs.token_bytes / 1024:.0f} KiB",
                f"{GIB // needs.token_bytes:,}",
                f"{PREFIX * needs.token_bytes / GIB:.2f} GiB",
                *(f"{rate:.1f}" for rate in rates),
            ]
        )
    return found


def main() -> None:
    header = ["model, bfloat16", "a token", "tokens a GiB", f"{PREFIX:,} tokens", *(f"GB/s, {card}" for card in CARDS)]
    print(table(header, rows()))


if __name__ == "__main__":
    main()
