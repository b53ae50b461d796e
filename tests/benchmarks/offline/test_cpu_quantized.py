"""The benchmark of quantized steps on a CPU: a line for each value of the option, and mistakes are named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.offline.cpu_quantized import main


def test_a_run(tiny_model: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", str(tiny_model("llama")), "--quantization", "none", "int8", "--rounds", "1"]
    assert main([*arguments, "--threads", "1", "--prompt", "100"]) == 0
    *_, plain, quantized = capsys.readouterr().out.splitlines()
    assert [line.split("|")[1].strip() for line in (plain, quantized)] == ["none", "int8"]
    assert [cell.strip() for cell in plain.split("|")[3:9:2]] == ["1.00"] * 3


def test_mistakes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rounds", "0"])
    assert "--rounds must be at least 1" in capsys.readouterr().err
