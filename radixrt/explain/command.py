"""`radixrt schema check`: a dry run of constraints, and of given answers against them."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from radixrt.constraint import Constraint, as_structured_options
from radixrt.errors import ConfigError, RequestError
from radixrt.explain.explanation import Explainer
from radixrt.explain.report import Finding, Report
from radixrt.explain.text_checker import compact
from radixrt.sampling_params import SamplingParams

OPTIONS = ("whitespace", "closed", "formats", "key_order", "on_unsupported", "backend")


def check(args: argparse.Namespace) -> int:
    """Print the results; return 0 if every constraint is enforced and every answer accepted, else 1.

    Raises:
        ConfigError: a file cannot be read, or there is nothing to check.
    """
    if args.jsonl is not None and args.files:
        raise ConfigError("--jsonl takes its instances from its own lines; leave out the other files")
    if args.jsonl is not None:
        return _check_jsonl(args)
    files = list(args.files)
    if args.regex is not None:
        name, constraint = "the regular expression", {"regex": args.regex}
    elif args.ebnf is not None:
        name, constraint = args.ebnf, {"ebnf": _read(args.ebnf)}
    elif files:
        name = files.pop(0)
        constraint = {"json_schema": _read(name)}
    else:
        raise ConfigError("name a schema file, or use --regex, --ebnf or --jsonl")
    with Explainer(args.model) as explainer:
        report = explainer.explain(_constraint(args, constraint))
    print(_shown(name, report))
    if not report.enforced:
        return 1
    results = [_check_file(report, file) for file in files]
    for result in results:
        print(result.line)
    return int(not all(result.accepted for result in results))


def _shown(name: str, report: Report) -> str:
    if report.refused:
        return "\n".join([f"{name}: refused", *(f"{name}{finding}" for finding in report.refused)])
    if report.error is not None:
        return f"{name}: refused. {report.error.message}"
    return "\n".join([f"{name}: enforced", *(f"  {line}" for line in report.lines())])


@dataclass(frozen=True)
class Result:
    accepted: bool
    line: str


def _check_file(report: Report, file: str) -> Result:
    """Check one instance or text against an enforced constraint."""
    text = _read(file)
    if report.constraint.kind != "json_schema":
        text = text.removesuffix("\n")
        problem = report.why_not(text)
        return Result(problem is None, f"{file}: {problem or 'accepted'}")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Result(False, f"{file}: not JSON: {error}")
    if not report.accepts_value(value):
        return Result(False, f"{file}: refused. {report.why_not_value(value)}")
    return Result(True, f"{file}: accepted{_difference(report, text.strip(), value)}")


def _difference(report: Report, text: str, value: Any) -> str:
    """Return the difference between an accepted instance and the generated text; empty if there is none."""
    if report.accepts(text):
        return ""
    if report.accepts(compact(value)):
        return "; it would be written without these spaces and escapes"
    return "; it would be written with its keys in the order of the schema, or with other spellings of its values"


def _constraint(args: argparse.Namespace, given: dict[str, Any]) -> Constraint:
    options = {name: getattr(args, name) for name in OPTIONS}
    constraint = SamplingParams(**given, structured=as_structured_options(options)).validate().constraint
    assert constraint is not None
    return constraint


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}") from error


# JSONL files


@dataclass(frozen=True)
class Row:
    """The result for one schema of a JSONL file.

    Attributes:
        name: id of the schema, or its line number.
        problem: the reason of the refusal; empty if the schema is enforced.
        keywords: the keywords at fault.
        right: number of instances whose result is as labelled.
        wrong_valid: number of valid instances that are refused.
        wrong_invalid: number of invalid instances that are accepted.
        reordered: number of valid instances that are accepted, but not with the keys in the instance's order.
    """

    name: str
    problem: str = ""
    keywords: tuple[str, ...] = ()
    backend: str = "-"
    min_tokens: int = 0
    compile_ms: float = 0.0
    right: int = 0
    wrong_valid: int = 0
    wrong_invalid: int = 0
    reordered: int = 0

    @property
    def tests(self) -> int:
        return self.right + self.wrong_valid + self.wrong_invalid

    @property
    def fine(self) -> bool:
        return not self.problem and self.right == self.tests

    def cells(self) -> tuple[str, ...]:
        if self.problem:
            return (self.name, "refused", "", "", "", self.problem)
        tests = f"{self.right}/{self.tests}" if self.tests else ""
        notes = [
            f"{count} {what}"
            for count, what in (
                (self.wrong_valid, "valid refused"),
                (self.wrong_invalid, "invalid accepted"),
                (self.reordered, "written in another way"),
            )
            if count
        ]
        return (self.name, self.backend, str(self.min_tokens), f"{self.compile_ms:.1f}", tests, ", ".join(notes))


def _check_jsonl(args: argparse.Namespace) -> int:
    entries = list(_entries(args.jsonl))
    rows = []
    widths = (40, 10, 10, 10, 7, 0)
    header = ("schema", "backend", "min tokens", "compile ms", "tests", "notes")
    print(_columns(header, widths))
    with Explainer(args.model) as explainer:
        for name, schema, tests in entries:
            row = _row(args, explainer, name, schema, tests)
            rows.append(row)
            print(_columns(row.cells(), widths), flush=True)
    print()
    print(_totals(rows))
    return int(not all(row.fine for row in rows))


def _entries(file: str) -> Iterator[tuple[str, Any, list[Any]]]:
    """Yield (name, schema, tests) of each line that is not empty. Raises ConfigError."""
    for number, line in enumerate(_read(file).splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file}:{number} is not JSON: {error}") from error
        if isinstance(entry, dict) and "schema" in entry:
            tests = entry.get("tests", [])
            if not isinstance(tests, list) or not all(isinstance(t, dict) and "data" in t for t in tests):
                raise ConfigError(f'{file}:{number}: "tests" must be a list of objects with "data" and "valid"')
            yield str(entry.get("id", f"line {number}")), entry["schema"], tests
        else:
            yield f"line {number}", entry, []


def _row(
    args: argparse.Namespace, explainer: Explainer, name: str, schema: Any, tests: Sequence[dict[str, Any]]
) -> Row:
    try:
        report = explainer.explain(_constraint(args, {"json_schema": schema}))
    except RequestError as error:
        return Row(name, problem=error.message)
    if not report.enforced:
        assert report.error is not None
        problem = _finding(report.refused[0]) if report.refused else report.error.message
        return Row(name, problem=problem, keywords=tuple(sorted({f.keyword for f in report.refused})))
    count: Counter[str] = Counter()
    for test in tests:
        value, valid = test["data"], bool(test.get("valid", True))
        accepted = report.accepts_value(value)
        count["right" if accepted == valid else "wrong_valid" if valid else "wrong_invalid"] += 1
        count["reordered"] += accepted and valid and not report.accepts(compact(value))
    assert report.cost is not None
    return Row(
        name,
        backend=report.backend or "",
        min_tokens=report.min_tokens,
        compile_ms=report.cost.compile_s * 1e3,
        right=count["right"],
        wrong_valid=count["wrong_valid"],
        wrong_invalid=count["wrong_invalid"],
        reordered=count["reordered"],
    )


def _finding(finding: Finding) -> str:
    return f"#{finding.pointer}: {finding.keyword}: {finding.reason}"


def _totals(rows: Sequence[Row]) -> str:
    enforced = [row for row in rows if not row.problem]
    tests = sum(row.tests for row in rows)
    lines = [f"{len(rows)} schemas: {len(enforced)} enforced, {len(rows) - len(enforced)} refused"]
    if tests:
        lines.append(
            f"{tests} instances: {sum(r.right for r in rows)} judged as labelled, "
            f"{sum(r.wrong_valid for r in rows)} valid refused, {sum(r.wrong_invalid for r in rows)} invalid accepted, "
            f"{sum(r.reordered for r in rows)} accepted but written in another way"
        )
    by_keyword = Counter(keyword for row in rows for keyword in row.keywords)
    if by_keyword:
        lines.append("refused for: " + ", ".join(f"{keyword} {count}" for keyword, count in by_keyword.most_common()))
    return "\n".join(lines)


def _columns(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
