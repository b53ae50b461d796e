"""What a float8 pool costs in exactness and saves in time: one layer's decode attention beside float32.

    python -m benchmarks.kv_dtype

Queries, keys and values are normal random numbers; the error is that of the whole result against the reference backend
in float32, relative to its norm.
"""

import numpy as np
import torch

from benchmarks import machine
from benchmarks.report import table
from radixrt.attention.base import AttentionLayer
from radixrt.attention.flashinfer import FlashInferBackend
from radixrt.attention.kv_cache import KVCache
from radixrt.attention.torch_native import TorchNativeBackend
from radixrt.forward_batch.forward_batch import BatchBuilder, ForwardBatch
from radixrt.messages.runner import ForwardStep, RowWrite
from radixrt.messages.wire import pack_i32

SHAPES = {"Qwen3-0.6B": (16, 8, 128), "Llama-3.1-8B": (32, 8, 128)}
ROWS, CONTEXT = 64, 1024
REPEATS = 50


def decode_batch(device: torch.device) -> ForwardBatch:
    builder = BatchBuilder(ROWS, CONTEXT, device)
    slots = (np.random.default_rng(0).permutation(ROWS * CONTEXT) + 1).reshape(ROWS, CONTEXT)
    builder.write_rows([RowWrite(i + 1, 0, pack_i32(slots[i, :-1])) for i in range(ROWS)])
    return builder.build(
        ForwardStep(
            step_id=0,
            mode=2,
            req_pool_idx=pack_i32(np.arange(1, ROWS + 1)),
            seq_lens=pack_i32([CONTEXT] * ROWS),
            out_cache_loc=pack_i32(slots[:, -1]),
        )
    )


def measure(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> tuple[float, float]:
    """Relative error, and microseconds of the layer."""
    heads, kv_heads, dim = shape
    layer = AttentionLayer(0, heads, kv_heads, dim, dim**-0.5)
    batch, slots = decode_batch(device), ROWS * CONTEXT
    q, k, v = (torch.randn(ROWS, n, dim, device=device).bfloat16() for n in (heads, kv_heads, kv_heads))
    pool, exact = (KVCache([layer], slots, 1, kind, device) for kind in (dtype, torch.float32))
    for mine, theirs in ((pool.k[0], exact.k[0]), (pool.v[0], exact.v[0])):
        theirs.normal_()
        mine.copy_(theirs.to(dtype))
    backend = FlashInferBackend(pool, [layer], dtype=torch.bfloat16, max_rows=ROWS, context_length=CONTEXT)
    reference = TorchNativeBackend(exact)
    backend.prepare(batch)
    reference.prepare(batch)
    expected = reference.attend(layer, q.float(), k.float(), v.float(), batch)
    got = backend.attend(layer, q, k, v, batch).float()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPEATS):
        backend.attend(layer, q, None, None, batch)
    end.record()
    end.synchronize()
    return float((got - expected).norm() / expected.norm()), begin.elapsed_time(end) * 1000 / REPEATS


def main() -> None:
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    device = torch.device("cuda")
    rows = []
    for name, shape in SHAPES.items():
        for dtype in (torch.bfloat16, torch.float8_e4m3fn):
            error, micros = measure(shape, dtype, device)
            rows.append([name, str(dtype).removeprefix("torch."), f"{error:.1e}", f"{micros:.0f}"])
    print(table([f"{ROWS} rows of {CONTEXT}", "pool", "relative error", "µs a layer"], rows))


if __name__ == "__main__":
    main()
