"""A compile worker on which some constraints have the effects that only unknown ones have on the real worker."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

from radixrt.constrained.compile import worker
from radixrt.constrained.compile.compiler import compile_constraint as compile_for_real

real = compile_for_real


def compile_constraint(constraint: Any, *rest: Any, **options: Any) -> Any:
    source = constraint.source
    if source.startswith("hang"):
        while True:
            time.sleep(0.01)
    if source.startswith("crash"):
        os.abort()
    if source.startswith("eat"):
        kept = []
        while True:
            kept.append(np.empty(64 * 1024 * 1024, np.uint8))
    if source.startswith("defect"):
        raise KeyError("a defect")
    if source.startswith("noise"):
        print("a library writes to stdout")
        os.write(1, b"\x00" * 100)
    return real(constraint, *rest, **options)


def begin() -> None:
    """Do at the start what the vocabulary's folder is named after."""
    make = worker.CompileWorker.__init__

    def start(self: Any, settings: Any) -> None:
        name = settings.tokenizer.rpartition("/")[2]
        if name == "aborts":
            os.abort()
        if name == "raises":
            raise KeyError("a defect")
        make(self, settings)
        if name == "ends":
            os._exit(0)

    worker.CompileWorker.__init__ = start  # type: ignore[method-assign]


if __name__ == "__main__":
    vars(worker)["compile_constraint"] = compile_constraint
    begin()
    sys.exit(worker.main())
