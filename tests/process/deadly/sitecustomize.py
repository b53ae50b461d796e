"""Makes every ModelRunner process die that computes three DEADLY tokens in a row.

Python imports this module at its start wherever this folder is in PYTHONPATH, which a test sets for its server.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

DEADLY = 499


def _install() -> None:
    from radixrt.runner.model_runner import ModelRunner

    forward = ModelRunner.forward

    def deadly_forward(self: ModelRunner, batch: Any) -> Any:
        hits = (batch.input_ids == DEADLY).tolist()
        if any(all(hits[i : i + 3]) for i in range(len(hits) - 2)):
            os.kill(os.getpid(), signal.SIGSEGV)
        return forward(self, batch)

    ModelRunner.forward = deadly_forward  # type: ignore[method-assign, assignment]


if sys.orig_argv[-2:-1] == ["radixrt.engine.process"] and sys.orig_argv[-1].startswith("runner"):
    _install()
