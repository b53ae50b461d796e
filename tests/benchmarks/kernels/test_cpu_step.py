"""The benchmark of a decode step on a CPU: each kernel of the layers is in the table, and mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kernels.cpu_step import PARTS, main
from tests.tiny_models import make_tiny_model

SIZES = {"head_dim": 32, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = make_tiny_model(tmp_path / "m", "llama", **SIZES)
    options = ["--set", f"model={folder}", "--set", "dtype=float32", "--set", "kv_cache_dtype=model"]
    assert main([*options, "--step", "decode:2x40", "--rounds", "3"]) == 0
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in capsys.readouterr().out.splitlines()]
    calls = {cells[0]: int(cells[1]) for cells in lines if len(cells) == len(PARTS) and cells[1].isdigit()}
    assert calls["radixrt_gemm_f32 192 x 64"] == 2  # gate and up
    assert sum(count for name, count in calls.items() if "gemm" in name) == 8
    assert calls["radixrt_attend_f32"] == 2
    assert calls["radixrt_add_rms_norm_f32"] == 5
    times = {cells[0]: float(cells[1]) for cells in lines if cells[0] in ("whole step", "layers")}
    assert times["whole step"] > times["layers"] > 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--rounds", "0"], "must be at least 1"),
        (["--threads", "0"], "must be at least 1"),
        (["--step", "prefill:1x64"], "only steps decode:ROWSxCONTEXT are recorded"),
    ],
)
def test_mistakes(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert words in capsys.readouterr().err
