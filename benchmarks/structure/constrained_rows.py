"""Figures of constrained rows in "Offline throughput on one NVIDIA H200" of docs/benchmarks.md.

Cost of constraints in a decode step: the same batch with and without a JSON schema for every row.

    python -m benchmarks.structure.constrained_rows --shape qwen3-0.6b [--rows 64] [--runs 5] [--set option=value]

Dummy weights write random tokens; the schema is an object with one unbounded string, so that nearly every token is
allowed and rows go on to the end. Both kinds of rows have the same prompts, lengths and temperature, and both are
detokenized. The time of a token is a request's time between its first and last token, over the tokens that were sampled
between them; a run's is the median of its rows. Runs of both kinds alternate, and so does which goes first; the last
column but one is the median of what each pair of runs says, with the least and the most. Rows that end early by chance
leave the others faster steps, and are counted.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.common import machine
from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import CONFIGS, shape_folder
from benchmarks.common.tables import table
from benchmarks.offline.workloads import make_workload
from radixrt import Engine

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
OUTPUT = 256


@dataclass(frozen=True)
class Run:
    """One batch's median seconds a token, and how many of its rows ended early."""

    token_s: float
    ended_early: int


def sampled_tokens(answer: Any) -> int:
    """Tokens that steps of the model brought for an answer. One that is closed early has dropped the last of them."""
    info = answer.constraint
    if info is None:
        return len(answer.token_ids)
    return len(answer.token_ids) - info.forced_tokens - info.closing_tokens + (info.closing_tokens > 0)


def measure(answers: Sequence[Any]) -> Run:
    """The run that gave these answers."""
    sampled = [sampled_tokens(answer) for answer in answers]
    pairs = zip(answers, sampled, strict=True)
    times = [answer.timings.decode_s / (count - 1) for answer, count in pairs if count > OUTPUT // 2]
    return Run(median(times), sum(count <= OUTPUT // 2 for count in sampled))


def run(engine: Engine, rows: int, seed: int, *, constrained: bool) -> Run:
    """Generate a batch."""
    workload = make_workload("decode64", seed=seed)
    engine.flush_cache()
    params: dict[str, Any] = {"temperature": 0.6, "max_tokens": OUTPUT}
    params |= {"json_schema": SCHEMA} if constrained else {"ignore_eos": True}
    return measure(engine.generate((workload.prompts() * (rows // 64 + 1))[:rows], params, progress=False))


def summary(plain: Sequence[Run], constrained: Sequence[Run]) -> list[str]:
    """Cells: milliseconds a token with and without constraints, their ratio, and rows that ended early."""
    more = [b.token_s / a.token_s - 1 for a, b in zip(plain, constrained, strict=True)]
    cells = [f"{median(times):.3f} ({min(times):.3f} to {max(times):.3f})" for times in map(_ms, (plain, constrained))]
    early = sum(each.ended_early for each in constrained)
    return [*cells, f"{median(more):+.1%} ({min(more):+.1%} to {max(more):+.1%})", str(early)]


def _ms(runs: Sequence[Run]) -> list[float]:
    return [each.token_s * 1e3 for each in runs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=sorted(CONFIGS))
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    args = parser.parse_args()
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    rows = []
    for shape in args.shape or ["qwen3-0.6b"]:
        options = {"max_running_requests": max(64, args.rows), "context_length": 16_384, **parse_options(args.set)}
        with Engine(str(shape_folder(shape)), load_format="dummy", show_progress=False, **options) as engine:
            found: dict[bool, list[Run]] = {False: [], True: []}
            for turn in range(args.runs + 1):  # the first is to warm up
                for wanted in (False, True) if turn % 2 else (True, False):
                    found[wanted].append(run(engine, args.rows, seed=turn, constrained=wanted))
            rows.append([shape, str(args.rows), *summary(found[False][1:], found[True][1:])])
    print(table(["shape", "rows", "ms a token", "ms a token, constrained", "more", "ended early"], rows))


if __name__ == "__main__":
    main()
