"""The benchmark of one row on a CPU: a token takes as long as its floor at the least, and mistakes are named."""

from __future__ import annotations

import pytest

from benchmarks.common.model_shapes import shape_of
from benchmarks.offline.cpu_decode import HEADER, main


def test_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--shape", "tiny-hybrid", "--runs", "1", "--threads", "1", "--buffer", "16"]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    found = dict(zip(HEADER, (cell.strip() for cell in last.strip("|").split("|")), strict=True))
    assert found["shape"] == "tiny-hybrid"
    assert found["weights MB"] == f"{shape_of('tiny-hybrid').weight_bytes(1) / 1e6:,.0f}"
    assert float(found["ms a token"]) > float(found["floor ms"])


@pytest.mark.parametrize("arguments", [["--runs", "0"], ["--threads", "0"], ["--buffer", "0"]])
def test_mistakes(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--shape", "tiny", *arguments])
    assert "must be at least 1" in capsys.readouterr().err
