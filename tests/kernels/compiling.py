"""Compiles kernels for an H200, in a process of its own, which reads what is wanted from stdin, as JSON."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

TYPES = {
    "addresses": "*i64", "turns": "*i64", "parts": "*i64", "eps": "fp32", "temperatures": "*fp32", "uniforms": "*fp64",
    "token_ids": "*i64", "best_out": "*fp32", "bias": "*bf16", "arrived": "*i32", "input_ids": "*i64",
    **dict.fromkeys(("rows", "each", "columns", "vocab", "tokens", "num_rows", "copy_stride", "first", "count"), "i32"),
}  # fmt: skip
"""Of arguments; those that are not named here are bfloat16."""

Wanted = tuple[str, str, dict[str, Any], dict[str, str]]
"""Module below radixrt.kernels.triton, kernel, constants, types beside TYPES."""


def compile_all(*wanted: Wanted) -> list[str]:
    """The kernels' PTX for sm_90. What Triton's bindings say when a process ends is not shown."""
    done = subprocess.run(
        [sys.executable, "-m", __name__], input=json.dumps(wanted), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found: list[str] = json.loads(done.stdout)
    return found


def compiled(module: str, name: str, constants: dict[str, Any], types: dict[str, str]) -> str:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel = getattr(importlib.import_module(f"radixrt.kernels.triton.{module}"), name)
    types = {**dict.fromkeys(kernel.arg_names, "*bf16"), **TYPES, **types, **dict.fromkeys(constants, "constexpr")}
    signature = {name: types[name] for name in kernel.arg_names}
    values = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(signature.values()) if kind.startswith("*")}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values, attrs=aligned)
    found: str = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4}).asm["ptx"]
    return found


if __name__ == "__main__":
    print(json.dumps([compiled(*each) for each in json.load(sys.stdin)]))
