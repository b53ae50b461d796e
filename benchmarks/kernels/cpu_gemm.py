"""Makes the table "Linear layers on a CPU" of docs/benchmarks.md: the compiled bfloat16 GEMM against oneDNN's.

    python -m benchmarks.kernels.cpu_gemm [--threads N]

Each figure is the time of one layer's four linear layers with the sizes of SmolLM2-135M, in processor time of all
threads, so that other work on the machine counts little. Weights of several layers are used in turn, so that they come
from memory or the last-level cache, as in a model. The minimum of several rounds is taken, oneDNN and ours in turn.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # spinning threads would count as work

import torch

from benchmarks.common.machine import facts
from benchmarks.common.tables import table
from radixrt.kernels.build import load_kernels
from radixrt.kernels.threads import set_threads
from radixrt.layers.formats.panels import Panels, PanelWeight
from radixrt.layers.formats.plain import pack_weight
from radixrt.layers.ops import CpuOps
from radixrt.models.loading.source import cache_folder

SHAPES = ((960, 576), (576, 576), (3072, 576), (576, 1536))
"""Output and input features of qkv, o, gate and up, and down."""
LAYERS, ROUNDS = 6, 7
ROWS = (1, 2, 4, 8, 16, 32, 37, 64, 128, 256, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    threads, library = parser.parse_args().threads, load_kernels(cache_folder() / "kernels")
    torch.set_num_threads(threads)
    set_threads(library, threads)
    print(facts())
    ours_format = Panels(CpuOps(library))
    weights = [[torch.randn(*shape).bfloat16() for shape in SHAPES] for _ in range(LAYERS)]
    packed = [[pack_weight(weight) for weight in layer] for layer in weights]
    panels = [[ours_format.pack(weight, gated=False) for weight in layer] for layer in weights]
    if panels[0][0] is None or packed[0][0] is None:
        raise SystemExit("this processor has no bfloat16 instructions")
    rows = []
    for count in ROWS:
        inputs = [torch.randn(count, shape[1]) for shape in SHAPES]
        rounded = [x.bfloat16() for x in inputs]

        def by_onednn(rounded: list[torch.Tensor] = rounded) -> None:
            for layer in packed:
                for x, weight in zip(rounded, layer, strict=True):
                    torch.ops.mkldnn._linear_pointwise.default(x, weight, None, "none", [], "")

        def by_ours(inputs: list[torch.Tensor] = inputs) -> None:
            for layer in panels:
                for x, weight in zip(inputs, layer, strict=True):
                    assert weight is not None
                    ours_format.linear(PanelWeight(weight, False), x, None)

        theirs, ours = best_of_both(by_onednn, by_ours)
        rows.append([str(count), f"{theirs:.0f}", f"{ours:.0f}", f"{theirs / ours:.2f}"])
    print(table(["rows", "oneDNN, µs", "radixrt, µs", "ratio"], rows))


def best_of_both(first: Callable[[], None], second: Callable[[], None]) -> tuple[float, float]:
    """Microseconds of processor time a layer, by each of two functions that compute LAYERS layers."""
    best = [float("inf"), float("inf")]
    for _ in range(ROUNDS):
        for i, run in enumerate((first, second)):
            started = time.process_time()
            run()
            best[i] = min(best[i], (time.process_time() - started) / LAYERS * 1e6)
    return best[0], best[1]


if __name__ == "__main__":
    main()
