"""Table "The sampler" of docs/benchmarks.md: `Sampler.sample` by kind of request, batch and vocabulary.

    python -m benchmarks.kernels.sampler [--device cuda] [--scale 3] [--batches 1 16 64] [--vocab 49152 128256]
    python -m benchmarks.kernels.sampler --device cuda --batches 1 64 256 --vocab 128256 151936

Logits are random, normal with deviation `--scale` (wider is more peaked), rounded to bfloat16 as a model's are, so
there are ties. A figure is the median and, in brackets, the least of the repetitions; on CUDA each waits for the
device once. There a second table has the microseconds of the kernels alone, replayed in one graph; in brackets, how
many of 100 rows were searched as a whole (see `radixrt.kernels.triton.filters`).
"""

import argparse
import time
from collections.abc import Callable
from statistics import median

import msgspec
import numpy as np
import torch

from benchmarks.common import machine
from benchmarks.common.cuda_timing import graph_us
from benchmarks.common.tables import table
from radixrt.executor.mask_table import Mask
from radixrt.messages.runner import SamplingRow
from radixrt.messages.wire import pack_i32
from radixrt.runner.sampling.sampler import Sampler
from radixrt.runner.sampling.sampling_tables import SamplingTables
from radixrt.sampling_params import DrawParams

SEQ_LEN = 700
OFF: dict[str, float] = {
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
}
KINDS: dict[str, dict[str, float]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "+ top_p 0.9": {"temperature": 0.8, "top_p": 0.9},
    "+ top_p 0.9, flat": {"temperature": 3.0, "top_p": 0.9},
    "+ top_k 50": {"temperature": 0.8, "top_k": 50},
    "+ top_k 50, top_p 0.9": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "+ min_p 0.05": {"temperature": 0.8, "min_p": 0.05},
    "greedy + penalties": {"repetition_penalty": 1.1, "frequency_penalty": 0.3},
    "greedy + 5 logprobs": {"logprobs": 5},
    "greedy + mask": {},
    "half greedy, half top_p 0.9": {"temperature": 0.8, "top_p": 0.9},
}


def sampler_for(kind: str, batch: int, vocab: int, device: str) -> tuple[Sampler, Mask | None]:
    """A sampler whose rows 1..batch are of that kind, and the mask of the step."""
    tables = SamplingTables(batch, vocab, device)
    rng = np.random.default_rng(0)
    for i in range(1, batch + 1):
        params = {} if kind.startswith("half") and i % 2 else KINDS[kind]
        ids = pack_i32(rng.integers(0, vocab, SEQ_LEN // 2))
        logprobs = int(params.get("logprobs", -1))
        draw = msgspec.convert(OFF | params, DrawParams, strict=False)
        tables.write(SamplingRow(req_pool_idx=i, draw=draw, seed=i, prompt_ids=ids, output_ids=ids, logprobs=logprobs))
    if "mask" not in kind:
        return Sampler(tables), None
    bits = rng.integers(0, 2**32, (batch, (vocab + 31) // 32), dtype=np.uint32)
    rows = np.arange(batch, dtype=np.int32)
    sampler = Sampler(tables)
    sampler.masks_changed(rows)
    return sampler, Mask(rows, rows, bits)


def milliseconds(run: Callable[[torch.Tensor], object], logits: torch.Tensor, seconds: float) -> list[float]:
    """Each repetition's time, for about that long in all; each has fresh logits, since sampling may edit them."""
    run(logits.clone())
    found: list[float] = []
    end = time.perf_counter() + seconds
    while len(found) < 5 or time.perf_counter() < end:
        fresh = logits.clone()
        if logits.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        run(fresh)
        if logits.is_cuda:
            torch.cuda.synchronize()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def measure(kind: str, batch: int, vocab: int, device: str, scale: float, seconds: float) -> str:
    sampler, mask = sampler_for(kind, batch, vocab, device)
    logits = random_logits(batch, vocab, scale, device)
    idx, lens = np.arange(1, batch + 1, dtype=np.int32), np.full(batch, SEQ_LEN, np.int32)
    found = milliseconds(lambda x: sampler.sample(x, idx, lens, mask), logits, seconds)
    return f"{median(found):.2f} ({min(found):.2f})"


def random_logits(batch: int, vocab: int, scale: float, device: str) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return (torch.randn(batch, vocab, generator=generator) * scale).bfloat16().float().to(device)


def kernels_alone(kind: str, batch: int, vocab: int, scale: float) -> str:
    """Time of the kernels for rows of this kind, every one of which draws."""
    from radixrt.kernels.triton.filters import filtered_sample
    from radixrt.kernels.triton.sampling import SampleWorkspace, fused_sample

    params = OFF | KINDS[kind]
    logits = random_logits(batch, vocab, scale, "cuda")
    temperature = torch.full((batch,), params["temperature"], device="cuda")
    u = torch.rand(batch, device="cuda", dtype=torch.float64)
    which = torch.arange(batch, device="cuda", dtype=torch.int32)
    top_k = torch.full_like(which, int(params["top_k"]) or vocab)
    top_p, min_p = torch.full_like(u, params["top_p"]), torch.full_like(temperature, params["min_p"])
    workspace = SampleWorkspace(batch, vocab, "cuda")
    filtered = bool(params["top_k"] or params["min_p"] or params["top_p"] < 1.0)

    def run() -> torch.Tensor | None:
        fused_sample(logits, temperature, u, workspace)
        return filtered_sample(logits, temperature, u, workspace, which, top_k, top_p, min_p) if filtered else None

    searched = run()
    share = "" if searched is None else f" ({100 * searched.float().mean().item():.0f})"
    return f"{graph_us(run):.0f}{share}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--scale", type=float, default=3.0)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--vocab", type=int, nargs="+", default=[49152, 128256])
    parser.add_argument("--seconds", type=float, default=0.4, help="of repetitions for each figure")
    parser.add_argument("--threads", type=int, default=None)
    args = parser.parse_args()
    if args.threads is not None:
        torch.set_num_threads(args.threads)
    facts = machine.facts() | {"torch": torch.__version__, "threads": torch.get_num_threads()}
    if args.device != "cpu":
        facts["device"] = torch.cuda.get_device_name()
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    shapes = [(batch, vocab) for vocab in args.vocab for batch in args.batches]
    rows = [[kind, *(measure(kind, b, v, args.device, args.scale, args.seconds) for b, v in shapes)] for kind in KINDS]
    print(table(["ms, median (least)", *(f"{b} x {v}" for b, v in shapes)], rows))
    if args.device != "cpu":
        drawn = [kind for kind, params in KINDS.items() if "temperature" in params and not kind.startswith("half")]
        rows = [[kind, *(kernels_alone(kind, b, v, args.scale) for b, v in shapes)] for kind in drawn]
        print(table(["µs, kernels alone", *(f"{b} x {v}" for b, v in shapes)], rows))


if __name__ == "__main__":
    main()
