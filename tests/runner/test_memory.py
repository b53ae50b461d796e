"""The runner's memory does not grow with the number of different steps that it has run."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

NEW_SHAPES = """
import json, sys
from pathlib import Path

import numpy as np
import torch

from radixrt.config import make_config
from radixrt.engine import assembly
from radixrt.engine.settings import resolve_settings
from radixrt.runner.profile_run import largest_step

def resident_mb():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

config = make_config(
    model=sys.argv[1], dtype="bfloat16", device="cpu", attention_backend="torch_native", num_threads=1,
    kv_cache_tokens=1024,
)
runner = assembly.make_runner(*resolve_settings(config, show_progress=False))
runner.initialize()
sizes = []
with torch.inference_mode():
    for tokens in range(1, 221):
        step = largest_step(1, tokens, 512)
        batch = runner.prepare(step)
        runner.sample(runner.forward(batch), batch, step, None).wait()
        sizes.append(resident_mb())
print(json.dumps(sizes))
"""


def test_steps_of_ever_new_lengths_do_not_add_memory(tiny_model: Callable[[str], Path]) -> None:
    # Without compiled kernels oneDNN multiplies, and compiles a primitive for each number of rows. In a process of its
    # own: caches are bounded at their first use, and what other tests leave free would hide growth.
    ran = subprocess.run(
        [sys.executable, "-c", NEW_SHAPES, str(tiny_model("llama"))], capture_output=True, text=True, timeout=280
    )
    assert ran.returncode == 0, ran.stderr
    sizes = json.loads(ran.stdout)
    assert sizes[-1] - sizes[100] < 50, sizes[::20]
