"""What constraints cost a decode step: the same batch with and without a JSON schema for every row.

    python -m benchmarks.constrained_rows --shape qwen3-0.6b [--rows 64] [--runs 3] [--set option=value]

Dummy weights write random tokens; the schema is an object with one unbounded string, so that nearly every token is
allowed and each mask must be computed. The time of a token is a request's time between its first and last token, over
the tokens that were sampled between them. Runs alternate.
"""

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Any

from benchmarks import machine
from benchmarks.offline import parse_options
from benchmarks.offline_workloads import make_workload
from benchmarks.report import table
from benchmarks.shapes import CONFIGS, shape_folder
from radixrt import Engine

SCHEMA = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
OUTPUT = 256


def token_times(answers: Sequence[Any]) -> list[float]:
    """Seconds a sampled token, of each answer."""
    times = []
    for answer in answers:
        sampled = len(answer.token_ids) - (answer.constraint.forced_tokens if answer.constraint else 0)
        if sampled > OUTPUT // 2:  # a string may end early by chance
            times.append(answer.timings.decode_s / (sampled - 1))
    return times


def run(engine: Engine, rows: int, seed: int, *, constrained: bool) -> float:
    """Median seconds a token over the rows."""
    workload = make_workload("decode64", seed=seed)
    engine.flush_cache()
    params: dict[str, Any] = {"temperature": 0.6, "max_tokens": OUTPUT}
    params |= {"json_schema": SCHEMA} if constrained else {"ignore_eos": True, "detokenize": False}
    answers = engine.generate((workload.prompts() * (rows // 64 + 1))[:rows], params, progress=False)
    return median(token_times(answers))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", choices=sorted(CONFIGS))
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE")
    args = parser.parse_args()
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    rows = []
    for shape in args.shape or ["qwen3-0.6b"]:
        options = {"max_running_requests": max(64, args.rows), "context_length": 16_384, **parse_options(args.set)}
        with Engine(str(shape_folder(shape)), load_format="dummy", show_progress=False, **options) as engine:
            plain, constrained = [], []
            for turn in range(-1, args.runs):  # the first is to warm up
                for times, wanted in ((plain, False), (constrained, True)):
                    times.append(run(engine, args.rows, seed=turn + 1, constrained=wanted))
            a, b = median(plain[1:]) * 1e3, median(constrained[1:]) * 1e3
            rows.append([shape, str(args.rows), f"{a:.3f}", f"{b:.3f}", f"{b / a - 1:+.1%}"])
    print(table(["shape", "rows", "ms a token", "ms a token, constrained", "more"], rows))


if __name__ == "__main__":
    main()
