"""docs/operations.md names every log line, exit code, route, metric and option of a server."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from radixrt.config import Config, RecoveryConfig, ServerConfig
from radixrt.engine.replica_set import ReplicaSet
from radixrt.engine.restarts import ExitCode
from radixrt.messages.histogram import COMPILE_TIMES, MOVE_TIMES, STEP_TOKENS, TOKEN_GAPS, Histogram
from radixrt.messages.scheduler_stats import GrammarStats, MoveStats, ProgramStats, StateStats, TierStats
from radixrt.server.access.tenants import Accounts, Tenant
from radixrt.server.answers.response_store import ResponseStore
from radixrt.server.metrics import Metrics
from radixrt.server.metrics.throughput import Throughput
from radixrt.server.routes.table import ROUTES
from tests.server.fake_engine import FakeEngine, stats

ROOT = Path(__file__).parents[1]
DOC = (ROOT / "docs" / "operations.md").read_text()
OF_ANSWERS = {"--tool-call-format", "--reasoning-parser", "--decision-temperature"}
"""Options that concern the form of answers, not the operation."""
LEVELS = ("info", "warning", "error", "exception")


def log_lines() -> Iterator[tuple[str, str]]:
    """Yield (file, text) of each log line in the code, with … in place of each value."""
    for path in sorted((ROOT / "radixrt").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.Call(
                    func=ast.Attribute(value=ast.Name("logger" | "logging"), attr=level), args=[first, *_]
                ) if level in LEVELS:
                    assert isinstance(first, ast.Constant), f"{path}:{node.lineno}: the text is no literal"
                    text = re.sub(r"%[.\d]*[a-z]", "…", first.value).replace("%%", "%")
                    if re.search(r"[a-z]{3}", text):
                        yield str(path.relative_to(ROOT)), text


def names_of_metrics() -> set[str]:
    engine = FakeEngine()
    try:
        engine.client.stats = msgspec.structs.replace(
            stats(), grammars=GrammarStats(Histogram.empty(COMPILE_TIMES), refusals={"pattern": 1}),
            programs=ProgramStats(), cache_resets={"x": 1}, states=StateStats(10, 3, 5, 2, 100),
            token_gaps=Histogram.empty(TOKEN_GAPS), step_tokens=Histogram.empty(STEP_TOKENS),
            tiers=TierStats(moves={"in": MoveStats(seconds=Histogram.empty(MOVE_TIMES))}),
        )  # fmt: skip
        accounts = Accounts()
        accounts.of(Tenant("alice"))
        replicas = ReplicaSet(Config(), None, "", None, engine.client, print, print)  # type: ignore[arg-type]
        metrics = Metrics(engine.client, "m", accounts, ResponseStore(1, 1), Throughput(engine.client), replicas)
        text = metrics.render().decode()
    finally:
        engine.close()
    return {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}


def test_every_log_line_is_documented() -> None:
    missing = [f"{file}: {text}" for file, text in log_lines() if text not in DOC]
    assert not missing, "\n".join(missing)


def test_every_metric_is_documented() -> None:
    missing = {name for name in names_of_metrics() if f"`{name}" not in DOC}
    assert not missing


def test_every_exit_code_is_documented() -> None:
    assert not {code for code in ExitCode if not re.search(rf"^\| {code.value} \|", DOC, re.MULTILINE)}


def test_every_route_is_documented() -> None:
    paths = [path.replace(":path", "") for route in ROUTES for path in route.paths]
    assert not {path for path in paths if f"{path}`" not in DOC}


def test_every_option_of_the_server_is_documented() -> None:
    names = [field.name for section in (ServerConfig, RecoveryConfig) for field in dataclasses.fields(section)]
    flags = {f"--{name.replace('_', '-')}" for name in names} - OF_ANSWERS
    assert not {flag for flag in flags if flag not in DOC and flag.replace("--", "--no-", 1) not in DOC}
