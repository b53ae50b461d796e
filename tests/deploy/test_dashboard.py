"""The dashboard and the alerts as Grafana and Prometheus read them: PromQL by a parser, and Grafana's own schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import promql_parser as promql
import pytest
import yaml
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from tests.deploy.prometheus import DASHBOARD, DEPLOY, queries

BOARD = json.loads(DASHBOARD.read_text())
ALERTS = yaml.safe_load((DEPLOY / "prometheus" / "alerts.yml").read_text())["groups"][0]["rules"]
EXPRESSIONS = {
    **{f"{query.panel} {n}": query.with_variables("5m") for n, query in enumerate(queries(BOARD))},
    **{rule["alert"]: rule["expr"] for rule in ALERTS},
}
COUNTED = ("_total", "_bucket", "_sum", "_count")
"""Suffixes of the series that only grow."""
RATES = ("rate", "increase", "irate")
BEYOND_THE_SCHEMA = {
    ".annotations.list[].titleFormat",  # of the Prometheus data source
    ".panels[].options.tooltip.mode",  # of heat maps, since Grafana 10.3
    ".templating.list[].definition",  # what the editor shows of a variable's query
}
"""Fields that Grafana has and its published schema lacks."""


def parts(node: Any, inside: tuple[str, ...] = ()) -> Iterator[tuple[Any, tuple[str, ...]]]:
    """Yield each part of an expression, with the names of the functions that it is an argument of."""
    yield node, inside
    if isinstance(node, promql.Call):
        for each in node.args:
            yield from parts(each, (*inside, node.func.name))
    elif isinstance(node, promql.BinaryExpr):
        yield from parts(node.lhs, inside)
        yield from parts(node.rhs, inside)
    elif isinstance(node, promql.MatrixSelector):
        yield from parts(node.vector_selector, inside)
    elif isinstance(node, promql.AggregateExpr | promql.ParenExpr | promql.SubqueryExpr | promql.UnaryExpr):
        yield from parts(node.expr, inside)


def check(expression: str) -> None:
    """Parse an expression; a series that grows is read by its rate, no other is, and quantiles keep their buckets."""
    read = 0
    for node, inside in parts(promql.parse(expression)):
        if isinstance(node, promql.VectorSelector):
            read += 1
            grows = (node.name or "").endswith(COUNTED)
            assert grows == any(name in RATES for name in inside), f"{node.name} in {expression}"
        elif isinstance(node, promql.AggregateExpr) and "histogram_quantile" in inside:
            assert node.modifier is not None, expression
            assert "le" in node.modifier.labels, expression
    assert read, expression


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_queries_and_alerts_are_promql(name: str) -> None:
    check(EXPRESSIONS[name])


@pytest.mark.parametrize(
    "expression",
    ["sum(rate(a_total[5m])", "a_total", "rate(a_running[5m])", "histogram_quantile(0.5, sum(rate(a_bucket[5m])))"],
)
def test_what_is_no_sensible_query_is_noticed(expression: str) -> None:
    with pytest.raises((AssertionError, ValueError)):
        check(expression)


def lost(given: Any, read: Any, path: str = "") -> set[str]:
    """Paths of what Grafana's schema does not know, or reads as something else."""
    if isinstance(given, dict) and isinstance(read, dict):
        below = [lost(value, read[name], f"{path}.{name}") for name, value in given.items() if name in read]
        return {f"{path}.{name}" for name in given.keys() - read.keys()}.union(*below)
    if isinstance(given, list) and isinstance(read, list) and len(given) == len(read):
        return set().union(*(lost(*pair, f"{path}[]") for pair in zip(given, read)))
    return set() if given == read else {path}


def unknown(board: dict[str, Any]) -> set[str]:
    register_default_plugins()
    return lost(board, json.loads(JSONEncoder().encode(Dashboard.from_json(board))))


def test_the_dashboard_has_no_field_that_grafana_does_not_know() -> None:
    assert unknown(BOARD) == BEYOND_THE_SCHEMA
    panel = next(panel for panel in BOARD["panels"] if panel["type"] == "timeseries")
    wrong = {**panel, "fieldconfig": {}, "options": {**panel["options"], "legends": {}}}
    found = unknown({**BOARD, "panels": [wrong]})
    assert {".panels[].fieldconfig", ".panels[].options.legends"} <= found
