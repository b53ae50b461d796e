"""Table of docs/tour.md: the ten programs of examples/tour, in the language and with the plain OpenAI client.

    python -m benchmarks.programs.tour [--rounds 3] [--rows 200] [--only rag agent]

A server is started on the embedded model, and both scripts of each program run on it in turn, the cache emptied before
each. Lines are lines of code: no blank lines, comments or docstrings. Tokens are the server's own counts.
"""

import argparse
import asyncio
import contextlib
import importlib.util
import io
import os
import shlex
import sys
import tokenize
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import ModuleType

import radixrt as rt
from benchmarks.common import machine
from benchmarks.common.servers import started
from benchmarks.common.tables import table
from benchmarks.programs.measure import Side, measured

FOLDER = Path(__file__).parents[2] / "examples" / "tour"
SIZES = {
    "extraction": 8, "rag": 8, "judge_panel": 6, "agent": 6, "map_reduce": 8, "self_consistency": 4,
    "tree_of_thought": 4, "classify": 10_000, "generate_data": 8, "multi_agent": 6,
}  # fmt: skip
"""Number of items of each script, as it runs without options."""

COLUMNS = (
    "program",
    "items",
    "lines plain",
    "lines",
    "plain s",
    "s",
    "plain computed",
    "computed",
    "plain cached",
    "cached",
)


def load(path: Path) -> ModuleType:
    """Import a script of the tour."""
    sys.path[:0] = [str(FOLDER)]
    try:
        name = f"tour_{'plain_' if path.parent.name == 'plain' else ''}{path.stem}"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


def code_lines(path: Path) -> int:
    """Number of lines with code; a string that is a statement is a docstring."""
    lines: set[int] = set()
    skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
    begins = True  # a statement
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type in (*skipped, tokenize.ENCODING):
                begins = begins or token.type in (tokenize.NEWLINE, tokenize.INDENT, tokenize.ENCODING)
                continue
            if not (begins and token.type == tokenize.STRING):
                lines.update(range(token.start[0], token.end[0] + 1))
            begins = False
    return len(lines)


def runs(name: str, size: int, url: str) -> tuple[Callable[[], None], Callable[[], None]]:
    """Both scripts of a program as functions: plain, and in the language."""
    kit, plain, program = (load(FOLDER / f"{each}.py") for each in ("kit", f"plain/{name}", name))

    for script in (plain, program):  # a temporary folder is the current one while they run
        vars(script).update(OUTPUT=Path("labels.jsonl"))

    def plainly() -> None:
        asyncio.run(kit.with_client(plain.run, url, size))

    def in_language() -> None:
        program.run(size)

    return plainly, in_language


def compare(name: str, size: int, url: str, rounds: int) -> list[str]:
    """One row of the table."""
    sides: tuple[list[Side], list[Side]] = ([], [])
    for _ in range(rounds):
        for run, results in zip(runs(name, size, url), sides, strict=True):
            with TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stderr(io.StringIO()):
                results.append(measured(url, run))
    lines = [str(code_lines(FOLDER / path)) for path in (f"plain/{name}.py", f"{name}.py")]
    walls = [f"{median(side.wall for side in each):.1f}" for each in sides]
    computed = [f"{median(side.computed for side in each):,.0f}" for each in sides]
    cached = [f"{median(side.cached for side in each):,.0f}" for each in sides]
    return [name, f"{size:,}", *lines, *walls, *computed, *cached]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="times that each side runs")
    parser.add_argument("--rows", type=int, default=200, help="rows to classify, instead of the script's 10,000")
    parser.add_argument("--only", nargs="+", choices=list(SIZES), default=list(SIZES))
    args = parser.parse_args(argv)
    print("; ".join(f"{name}: {value}" for name, value in machine.facts().items()), flush=True)
    rows = []
    with TemporaryDirectory() as folder:
        command = f"{shlex.quote(sys.executable)} -m radixrt launch --port {{port}} --log-level warning"
        with started(command, Path(folder) / "server.log", 120.0, 10.0) as server:
            rt.set_default_backend(server.url)
            for name in args.only:
                size = args.rows if name == "classify" else SIZES[name]
                rows.append(compare(name, size, server.url, args.rounds))
                print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
            rt.set_default_backend(None)
    print(f"\nmedian of {args.rounds} rounds\n")
    print(table(COLUMNS, rows))
    return 0


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    sys.exit(main())
