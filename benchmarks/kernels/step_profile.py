"""Table "Steps, by kind of kernel" of docs/cuda.md, and step tables of docs/cascade.md and docs/tensor_parallel.md.

Microseconds of each kind of kernel in one step on a GPU, as the profiler reports them.

A kernel counts from the end of the one before it to its own end: those that are launched early run beside it for a
while, waiting.

    python -m benchmarks.kernels.step_profile --shape llama-3.1-8b [--step prefill:1x8192 ...] [--ranks 2]
        [--set quantization=fp8 ...]

The runner alone, without scheduler and processes, on steps made by hand: `prefill:ROWSxTOKENS` computes that many
prompts, `decode:ROWSxCONTEXT` one token for each of that many rows, `shared:ROWSxCONTEXTxSHARED` the same where
all rows have the first SHARED positions in common, `suffix:ROWSxNEWxCACHED` NEW tokens for each row behind CACHED ones
that all have in common, and `shared_suffix` the same where these are computed once for all rows. The pool holds random
numbers (a GPU multiplies zeros faster). The floor beside a step's time is what reading weights, keys and values once
takes at the least, or its operations (see `benchmarks.common.device_rates`); of N ranks, an Nth of that. What
ranks tell each other counts as "between ranks", but for drawing from parts of the logits, waiting included.
"""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]
from torch.profiler import ProfilerActivity, profile

from benchmarks.common import machine
from benchmarks.common.device_rates import Device, measure_device
from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import CONFIGS, Shape, shape_folder, shape_of
from benchmarks.common.ranks import add_arguments, rank_info_of, run_on_ranks
from benchmarks.common.tables import table
from radixrt.config import make_config
from radixrt.distributed.rank_info import SINGLE_RANK, RankInfo
from radixrt.engine import assembly
from radixrt.engine.settings import resolve_settings
from radixrt.messages.runner import ForwardStep, RowWrite, SamplingRow
from radixrt.messages.sections import SHARING, STATES, SharedSection, StateSection, encode
from radixrt.messages.state_slots import RESERVED_STATES, SCRATCH_STATE
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.runner.model_runner import ModelRunner
from radixrt.sampling_params import DrawParams

DEFAULT_STEPS = ["decode:1x192", "decode:64x640", "decode:256x900", "shared:256x4256x4096", "prefill:1x8192"]
REPEATS = 8
WARM_UP = 3
"""Steps after the first: decode steps are captured by then, see `captures.CAPTURE_AT_STEP`."""
KINDS = {  # the first that fits; names of attention kernels hold "cutlass" too
    "between ranks": r"nccl|_sum_add_rms_norm|^_gather_kernel",
    "experts": r"expert|^_gate_up_kernel|^_down_kernel|_weighted_sum|list_tiles",
    "routing": r"_route_few|_logits_kernel|_choose_kernel",
    "attention": r"PrefillWithKVCache|BatchPrefill|decode_attention|flash::",
    "attention, shared prefix": r"shared_attention|_shared",
    "merging partial results": r"[Mm]erge",
    "GEMMs": r"gemm|nvjet|cutlass|cublas|gemv|splitK|xmma",
    "recurrence": r"delta|conv|_gated_norm",
    "quantization of activations": r"quantize_rows",
    "norm": r"norm",
    "heads (norm, rotary, store)": r"head",
    "activation": r"silu|activation",
    "sampling": r"sample|chunk|_row_kernel|argmax",
    "lists of slots": r"kv_indices|decode_list",
    "copies": r"Memcpy|Memset|copy",
}


def kind_of(kernel: str) -> str:
    for kind, pattern in KINDS.items():
        if re.search(pattern, kernel):
            return kind
    return "other"


def prefill_step(rows: int, tokens: int) -> ForwardStep:
    count = rows * tokens
    ids = np.random.default_rng(0).integers(10, 10_000, count)
    return ForwardStep(
        step_id=0, mode=1, req_pool_idx=pack_i32(np.arange(1, rows + 1)), seq_lens=pack_i32(np.full(rows, tokens)),
        out_cache_loc=pack_i32(np.arange(1, count + 1)), extend_lens=pack_i32(np.full(rows, tokens)),
        input_ids=pack_i32(ids), samples=bytes([1] * rows),
    )  # fmt: skip


def decode_step(rows: int, context: int, shared: int) -> ForwardStep:
    own = context - shared
    order = np.random.default_rng(1).permutation(shared + rows * own) + 1
    common, slots = order[:shared], order[shared:].reshape(rows, own)
    writes = [RowWrite(i + 1, 0, pack_i32(np.concatenate([common, slots[i, :-1]]))) for i in range(rows)]
    segments = pack_i32([0, shared, 0, rows]) if shared else b""
    return ForwardStep(
        step_id=0, mode=2, req_pool_idx=pack_i32(np.arange(1, rows + 1)), seq_lens=pack_i32(np.full(rows, context)),
        out_cache_loc=pack_i32(slots[:, -1]), row_writes=writes,
        sampling_rows=[SamplingRow(req_pool_idx=i + 1, draw=DrawParams(temperature=0.6), seed=i) for i in range(rows)],
        sections={SHARING: encode(SharedSection(segments, pack_i32(np.arange(rows))))} if shared else {},
    )  # fmt: skip


def suffix_step(rows: int, new: int, cached: int, *, shared: bool) -> ForwardStep:
    order = np.random.default_rng(1).permutation(cached + rows * new) + 1
    return ForwardStep(
        step_id=0, mode=1, req_pool_idx=pack_i32(np.arange(1, rows + 1)),
        seq_lens=pack_i32(np.full(rows, cached + new)), out_cache_loc=pack_i32(order[cached:]),
        extend_lens=pack_i32(np.full(rows, new)), samples=bytes([1] * rows),
        input_ids=pack_i32(np.random.default_rng(0).integers(10, 10_000, rows * new)),
        row_writes=[RowWrite(i + 1, 0, pack_i32(order[:cached])) for i in range(rows)],
        sampling_rows=[SamplingRow(req_pool_idx=i + 1, draw=DrawParams(temperature=0.6), seed=i) for i in range(rows)],
        sections={SHARING: encode(SharedSection(pack_i32([0, cached, 0, rows]), pack_i32(np.arange(rows))))}
        if shared
        else {},
    )  # fmt: skip


def make_step(text: str, *, states: bool = False) -> ForwardStep:
    """The step that a text describes; with states, each row updates a state slot of its own in place."""
    name, _, sizes = text.partition(":")
    numbers = [int(n) for n in sizes.split("x")]
    if name == "prefill":
        step = prefill_step(*numbers)
    elif name.endswith("suffix"):
        step = suffix_step(*numbers, shared=name == "shared_suffix")
    else:
        step = decode_step(numbers[0], numbers[1], numbers[2] if name == "shared" else 0)
    if not states:
        return step
    slots = pack_i32(unpack_i32(step.req_pool_idx) + SCRATCH_STATE)
    return msgspec.structs.replace(step, sections={**step.sections, STATES: encode(StateSection(slots, slots))})


def floor_us(text: str, shape: Shape, device: Device) -> float:
    """The least microseconds that a step takes on a device: by bytes or by operations, whichever takes longer."""
    name, _, sizes = text.partition(":")
    rows, context, *rest = (int(n) for n in sizes.split("x"))
    shared = rest[0] if rest else 0
    if name.endswith("suffix"):
        read = shape.kv_bytes * shared
        tokens, attended = rows * context, rows * context * (2 * shared + context + 1) // 2
    elif name == "prefill":
        read = 0
        tokens, attended = rows * context, rows * context * (context + 1) // 2
    else:
        read = shape.kv_bytes * (shared + rows * (context - shared))
        tokens, attended = rows, rows * context
    read += 2 * shape.state_bytes * rows
    flops = 2 * (shape.layer_params * tokens + shape.head_params * rows) + shape.attention_flops * attended
    return max((shape.weight_bytes(tokens) + read) / device.bytes_per_s, flops / device.flops_per_s) * 1e6


def run(runner: ModelRunner, step: ForwardStep) -> Any:
    batch = runner.prepare(step)
    return runner.sample(runner.forward(batch), batch, step, None)


def wall_us(work: Callable[[], Any]) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    begin.record()
    for _ in range(REPEATS):
        work()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1000 / REPEATS


def start_runner(shape: str, rank_info: RankInfo = SINGLE_RANK, options: dict[str, Any] | None = None) -> ModelRunner:
    """A runner for one of CONFIGS, with random numbers in its KV pool, and zeros in its states.

    Args:
        options: of the engine.
    """
    config, settings = resolve_settings(
        make_config(
            model=str(shape_folder(shape)), load_format="dummy", max_running_requests=512, context_length=16_384,
            kv_cache_tokens=400_000, device="cuda", tp=rank_info.size, num_states=512 + RESERVED_STATES,
            **(options or {}),
        ),
        show_progress=False,
    )  # fmt: skip
    runner = assembly.make_runner(config, settings, rank_info)
    runner.initialize()
    with torch.inference_mode():
        for pool in (*runner.kv_cache.k, *runner.kv_cache.v):
            pool.copy_(torch.randn(pool.shape, device=pool.device, dtype=torch.bfloat16))  # float8 has no normal_
        for layer in () if runner.states is None else runner.states.layers:
            layer.conv.zero_()
            layer.recurrent.zero_()
    return runner


def warm_step(runner: ModelRunner, text: str) -> Callable[[], Any]:
    """Runs a step again and again, once everything has happened that happens only once."""
    step = make_step(text, states=runner.num_states > 0)
    run(runner, step)
    again = ForwardStep(
        **{f: getattr(step, f) for f in step.__struct_fields__ if f not in ("row_writes", "sampling_rows")}
    )
    for _ in range(WARM_UP):
        run(runner, again)
    torch.cuda.synchronize()
    return lambda: run(runner, again)


def shares(profiler: profile) -> list[tuple[str, float]]:
    """Each kernel and copy in order of their ends, and the microseconds from the end of the one before it, without the
    time in which it was not running."""
    found = []
    until = 0.0
    events = [event for event in profiler.events() or [] if event.device_type == DeviceType.CUDA]
    for event in sorted(events, key=lambda event: event.time_range.end):
        begin = max(until, event.time_range.start)
        found.append((event.name, max(0.0, event.time_range.end - begin)))
        until = max(until, event.time_range.end)
    return found


def profile_step(
    runner: ModelRunner, text: str, shape: Shape, rank_info: RankInfo, device: Device, *, names: bool
) -> None:
    """Profile on rank 0 and print its tables; the others run the same steps."""
    work = warm_step(runner, text)
    took = wall_us(work)
    for _ in range(2):  # the first iteration starts the profiler, for which other ranks would wait
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            for _ in range(REPEATS):
                work()
            torch.cuda.synchronize()
    if rank_info.rank:
        return
    micros: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    kernels: dict[str, tuple[float, int]] = defaultdict(lambda: (0.0, 0))
    for kernel, us in shares(profiler):
        micros[kind_of(kernel)] += us / REPEATS
        calls[kind_of(kernel)] += 1
        before, count = kernels[kernel]
        kernels[kernel] = (before + us / REPEATS, count + 1)
    rows = [
        [
            kind,
            str(calls[kind] // REPEATS),
            f"{us:.0f}",
            f"{us / max(1, calls[kind] // REPEATS):.1f}",
            f"{us / took:.1%}",
        ]
        for kind, us in sorted(micros.items(), key=lambda item: -item[1])
    ]
    rows.append(
        ["between kernels", "", f"{took - sum(micros.values()):.0f}", "", f"{1 - sum(micros.values()) / took:.1%}"]
    )
    print(f"\n### {text}: {took:.0f} µs a step, floor {floor_us(text, shape, device) / rank_info.size:.0f}")
    print(table(["kind", "kernels", "µs a step", "µs each", "share"], rows))
    if names:
        for name, (us, count) in sorted(kernels.items(), key=lambda item: -item[1][0])[:14]:
            print(f"    {us:9.1f} µs {count // REPEATS:4d} x {name[:150]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=sorted(CONFIGS))
    parser.add_argument("--step", action="append", metavar="KIND:SIZES")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an engine option")
    parser.add_argument("--names", action="store_true", help="also the kernels by name")
    parser.add_argument("--all-reduce", choices=("nccl", "one_shot"), default="one_shot", help="of several ranks")
    add_arguments(parser, ranks=1)
    args = parser.parse_args()
    if args.rank is None:
        for name, value in machine.facts().items():
            print(f"{name}: {value}", flush=True)
        if args.ranks > 1:
            return run_on_ranks("benchmarks.kernels.step_profile", args.ranks, sys.argv[1:])
    rank_info = SINGLE_RANK if args.rank is None else rank_info_of(args, one_shot=args.all_reduce == "one_shot")
    device = measure_device("cuda")
    for shape in args.shape or ["qwen3-0.6b"]:
        options = parse_options(args.set)
        runner, costs = start_runner(shape, rank_info, options), shape_of(shape, options)
        if not rank_info.rank:
            print(f"\n## {shape}" + (f" on {rank_info.size} GPUs, {args.all_reduce}" if rank_info.size > 1 else ""))
        with torch.inference_mode():
            for text in args.step or DEFAULT_STEPS:
                profile_step(runner, text, costs, rank_info, device, names=args.names)
        runner.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
