"""Table "The radix cache alone" of docs/benchmarks.md: times of match, insert and evict, by the size of the tree.

The tree holds `--prefixes` prefixes of 1024 tokens, each with its share of leaves of 64 tokens, as after that many
requests of 1,088 tokens that share their system prompts. Measured on the full tree, median over `--samples` calls:

    match     match_prefix of 1,088 tokens, all of them cached, at a random leaf
    insert    insert of 1,088 tokens of which 1,024 are cached: adds a leaf
    evict     evict(256): frees four leaves
    request   what one request costs in all: match, lock, allocate, insert, unlock, when nothing is evicted

Run: python -m benchmarks.cache.radix_cache [--leaves 10000 100000 1000000] [--page-sizes 1 16]
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from radixrt.bench.result import percentile
from radixrt.mem_cache import EVICTION_POLICIES, RadixCache, TokenToKVPoolAllocator
from radixrt.mem_cache.allocator import Int32Array

PREFIX_LEN = 1024
LEAF_LEN = 64
VOCAB = 128_000
EVICT_TOKENS = 256


class Workload:
    """Keys of `prefixes` x any number of leaves; key i is the same each time it is asked for."""

    def __init__(self, prefixes: int, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.prefixes = rng.integers(0, VOCAB, (prefixes, PREFIX_LEN), dtype=np.int32)
        self.offsets = rng.integers(0, VOCAB, 1 << 16, dtype=np.int32)

    def key(self, i: int) -> Int32Array:
        """int32[PREFIX_LEN + LEAF_LEN]. The first leaf tokens are i in mixed radix, so all leaves differ."""
        key = np.empty(PREFIX_LEN + LEAF_LEN, dtype=np.int32)
        key[:PREFIX_LEN] = self.prefixes[i % len(self.prefixes)]
        start = i * 7919 % (len(self.offsets) - LEAF_LEN)
        key[PREFIX_LEN:] = self.offsets[start : start + LEAF_LEN]
        key[PREFIX_LEN] = i % VOCAB
        key[PREFIX_LEN + 1] = i // VOCAB
        return key


def build(cache: RadixCache, workload: Workload, leaves: int) -> float:
    """Runs `leaves` requests to their ends; returns seconds."""
    start = time.perf_counter()
    for i in range(leaves):
        request(cache, workload.key(i))
    return time.perf_counter() - start


def request(cache: RadixCache, key: Int32Array) -> None:
    slots, node, *_ = cache.match_prefix(key)
    cache.inc_lock_ref(node)
    matched = len(slots)
    new = cache.allocator.alloc_extend(matched, len(key) - matched, int(slots[-1]) if matched else 0)
    assert new is not None
    cache.insert(key, np.concatenate([slots, new]))
    cache.dec_lock_ref(node)


def timed(call: Callable[..., object], *args: object) -> float:
    """Microseconds of one call."""
    start = time.perf_counter_ns()
    call(*args)
    return (time.perf_counter_ns() - start) / 1000


def measure(cache: RadixCache, workload: Workload, leaves: int, samples: int) -> dict[str, list[float]]:
    """Microseconds of every call, by operation."""
    rng = np.random.default_rng(1)
    times: dict[str, list[float]] = {"match": [], "insert": [], "evict": [], "request": []}
    for i in rng.integers(0, leaves, samples).tolist():
        key = workload.key(i)
        times["match"].append(timed(cache.match_prefix, key))
    for i in range(leaves, leaves + samples):
        key = workload.key(i)
        matched = cache.match_prefix(key[:PREFIX_LEN]).slots
        new = cache.allocator.alloc_extend(PREFIX_LEN, LEAF_LEN, int(matched[-1]))
        assert new is not None
        slots = np.concatenate([matched, new])
        times["insert"].append(timed(cache.insert, key, slots))
    for i in range(leaves + samples, leaves + 2 * samples):
        key = workload.key(i)
        times["request"].append(timed(request, cache, key))
    # A tree of 10,000 leaves must not be eaten up by measuring it.
    for _ in range(min(samples, leaves // 8)):
        times["evict"].append(timed(cache.evict, EVICT_TOKENS))
    return times


def resident_mib() -> float:
    """Memory of this process, or nan where /proc is missing."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return float("nan")
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or "unknown"


def row(page_size: int, leaves: int, args: argparse.Namespace) -> str:
    """Builds one tree, measures it and describes it."""
    before = resident_mib()
    tokens = args.prefixes * PREFIX_LEN + (leaves + 2 * args.samples) * LEAF_LEN
    cache = RadixCache(TokenToKVPoolAllocator(-(-tokens // page_size) * page_size, page_size), args.policy)
    workload = Workload(args.prefixes)
    seconds = build(cache, workload, leaves)
    used = resident_mib() - before
    gc.collect()
    gc.freeze()  # as a server should: the tree leaves no garbage cycles behind, so walking it is time lost
    times = measure(cache, workload, leaves, args.samples)
    cells = [str(page_size), f"{leaves:,}"]
    medians = {name: float(np.median(values)) for name, values in times.items()}
    cells += [f"{medians[name]:.1f} ({percentile(times[name], 99):.1f})" for name in medians]
    cells += [f"{1e6 / medians[name]:,.0f}" for name in medians]
    return " | ".join([*cells, f"{used:,.0f}", f"{seconds:.1f}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--leaves", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--page-sizes", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--policy", choices=EVICTION_POLICIES, default="lru")
    parser.add_argument("--prefixes", type=int, default=64)
    parser.add_argument("--samples", type=int, default=2000)
    args = parser.parse_args()

    print(f"cpu {cpu_name()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    print(f"python {platform.python_version()}, numpy {np.__version__}, {platform.platform()}")
    print(f"{args.prefixes} prefixes of {PREFIX_LEN} tokens, leaves of {LEAF_LEN}, policy {args.policy}")
    print(f"median (99th percentile) microseconds, then calls a second at the median; {args.samples} samples\n")
    names = ["match 1088", "insert 1088", "evict 256", "request"]
    header = ["page", "leaves", *names, *(f"{name.split()[0]}/s" for name in names), "MiB", "build s"]
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}", flush=True)
    for page_size in args.page_sizes:
        for leaves in args.leaves:
            # A process for each, so that none starts with the memory that the last one left.
            child = os.fork()
            if child == 0:
                print(f"| {row(page_size, leaves, args)} |", flush=True)
                os._exit(0)
            if os.waitpid(child, 0)[1] != 0:
                raise SystemExit(f"failed at page size {page_size}, {leaves:,} leaves")


if __name__ == "__main__":
    main()
