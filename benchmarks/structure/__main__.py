"""Tables "Structured output" of docs/benchmarks.md: cost of compiling and using grammars, and gain of jump-forward.

    python -m benchmarks.structure grammars --data schemas.jsonl [--limit 50]   time to a grammar, verdicts, masks;
                        [--json-out FILE] [--compare FILE]                      masks of two versions, bit by bit
                        [--beside CHECKOUT]                                     the same, schema by schema in turn
    python -m benchmarks.structure first-mask                                   ordinary schemas through GrammarManager
    python -m benchmarks.structure scheduler                                    what 64 constrained rows add to a step
    python -m benchmarks.structure throughput --data schemas.jsonl              jump-forward on and off
    python -m benchmarks.structure bomb                                         other requests while a bomb compiles
    python -m benchmarks.structure neighbours                                   small constraints beside 300 bombs

`--data` is a file of lines `{"id", "schema", "tests": [{"data", "valid"}]}`. Nothing here asserts a time.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path
from typing import Any

from benchmarks.common import machine
from benchmarks.common.tables import table
from benchmarks.structure.grammar_jobs import read_entries, run, run_beside
from benchmarks.structure.grammar_worker import ENGINES, Answer
from radixrt.bench.result import percentile
from radixrt.config import ModelConfig
from radixrt.models.loading.source import prepare_model

COMMANDS = ("grammars", "first-mask", "scheduler", "throughput", "bomb", "neighbours")


def arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.structure",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--data", type=Path, help="JSONL file of schemas with instances")
    parser.add_argument("--limit", type=int, help="schemas to take of it, at even distances (default: all)")
    parser.add_argument("--engine", action="append", choices=list(ENGINES), help="grammars: may be repeated")
    parser.add_argument("--time-limit", type=float, default=60.0, help="grammars: seconds for one schema")
    parser.add_argument("--model", default=ModelConfig().model, help="embedded default, folder, GGUF file or hub id")
    parser.add_argument("--rows", type=int, default=64, help="scheduler: constrained requests at once")
    parser.add_argument("--rounds", type=int, default=2, help="scheduler, throughput, bomb: times each side runs")
    parser.add_argument("--samples", type=int, default=200, help="first-mask: schemas of each kind")
    parser.add_argument("--json-out", type=Path, metavar="FILE", help="grammars: every answer")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="grammars: --json-out of another version")
    parser.add_argument(
        "--beside", type=Path, metavar="CHECKOUT", help="grammars: folder of another version of radixrt"
    )
    args = parser.parse_args(argv)
    if args.data is None and args.command in ("grammars", "throughput"):
        parser.error(f"{args.command} needs --data")
    return args


# --- time to a usable grammar, verdicts, masks ---


def grammars(args: argparse.Namespace) -> None:
    folder = prepare_model(ModelConfig(model=args.model)).folder
    entries = read_entries(args.data, args.limit)
    answers: dict[str, list[Answer]] = {}
    if args.beside:
        pairs = list(run_beside("radixrt", folder, entries, args.time_limit, args.beside.resolve()))
        answers = {"this version": [ours for ours, _ in pairs], "the other": [theirs for _, theirs in pairs]}
    for engine in () if args.beside else args.engine or ENGINES:
        answers[engine] = []
        for i, answer in enumerate(run(engine, folder, entries, args.time_limit), 1):
            answers[engine].append(answer)
            if sys.stderr.isatty():
                print(f"\r{engine}: {i}/{len(entries)}", end="", file=sys.stderr, flush=True)
        if sys.stderr.isatty():
            print(file=sys.stderr)
    print(f"\n{len(entries)} schemas of {args.data.name}; processor time\n")
    print(table(VERDICT_COLUMNS, [verdicts(name, given) for name, given in answers.items()]))
    print()
    print(table(TIME_COLUMNS, [times(name, given) for name, given in answers.items()]))
    if args.beside:
        print(f"\n{differences(answers['this version'], list(map(asdict, answers['the other'])))}")
    if args.json_out:
        args.json_out.write_text(json.dumps({name: [asdict(a) for a in given] for name, given in answers.items()}))
    if args.compare:
        before = json.loads(args.compare.read_text())
        for name, given in answers.items():
            print(f"\n{name}, against {args.compare.name}: {differences(given, before.get(name, ()))}")


VERDICT_COLUMNS = (
    "engine",
    "compiled",
    "refused",
    "over limit or dead",
    "fully right as written",
    "in the schema's key order",
    "valid refused in that order",
    "invalid accepted",
)
TIME_COLUMNS = (
    "engine", "to first mask ms p50", "p90", "p95", "p99", "max", "of it load p50", "p99",
    "mask us p50", "p99", "p99.9", "max", "masks",
)  # fmt: skip


def verdicts(name: str, answers: Sequence[Answer]) -> list[str]:
    """Row of the verdict table: schemas compiled and refused, instances accepted and refused."""
    compiled = [a for a in answers if a.error is None]
    dead = [a for a in answers if a.error is not None and a.error.startswith(("over ", "the process ended"))]
    as_written = [a for a in compiled if not a.valid_refused and not a.invalid_accepted]
    right = [a for a in compiled if not a.refused_in_order and not a.invalid_accepted]
    tests = sum(a.tests for a in compiled)
    return [
        name,
        str(len(compiled)),
        str(len(answers) - len(compiled) - len(dead)),
        str(len(dead)),
        f"{len(as_written)} ({len(as_written) / len(answers):.1%})",
        f"{len(right)} ({len(right) / len(answers):.1%})",
        f"{sum(a.refused_in_order for a in compiled)} of {tests}",
        f"{sum(a.invalid_accepted for a in compiled)} of {tests}",
    ]


def differences(answers: Sequence[Answer], before: Sequence[dict[str, Any]]) -> str:
    """Names the schemas whose verdicts or masks, compared bit by bit by their hashes, are not those of another run."""
    verdict = itemgetter("error", "valid_refused", "refused_in_order", "invalid_accepted", "masks_digest")
    known = {one["id"]: verdict(one) for one in before}
    both = [one for one in answers if one.id in known]
    masks = sum(len(one.masks_us) for one in both)
    different = [one.id for one in both if verdict(asdict(one)) != known[one.id]]
    return f"{len(both)} schemas with {masks} masks, {len(different)} differ {' '.join(different[:20])}"


def times(name: str, answers: Sequence[Answer]) -> list[str]:
    """Row of the time table, over all schemas: refusing a schema takes time too."""
    compile_ms = [a.compile_s * 1e3 for a in answers]
    masks = [us for a in answers for us in a.masks_us] or [float("nan")]
    return [
        name,
        *(f"{percentile(compile_ms, q):.1f}" for q in (50, 90, 95, 99, 100)),
        *(f"{percentile([a.load_s * 1e3 for a in answers], q):.1f}" for q in (50, 99)),
        *(f"{percentile(masks, q):.0f}" for q in (50, 99, 99.9, 100)),
        str(len(masks)),
    ]


def main(argv: Sequence[str] | None = None) -> int:
    args = arguments(argv)
    facts = machine.facts() | {name: version(name) for name in ("llguidance", "xgrammar")}
    print("; ".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    if args.command == "grammars":
        grammars(args)
    elif args.command == "first-mask":
        from benchmarks.structure.first_mask import first_mask

        first_mask(args.model, args.samples)
    else:
        from benchmarks.structure import bombs, load

        {
            "scheduler": load.scheduler,
            "throughput": load.throughput,
            "bomb": load.bomb,
            "neighbours": bombs.neighbours,
        }[args.command](args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
