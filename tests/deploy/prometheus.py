"""Run every query of the Grafana dashboard, and the alerts, in a real Prometheus that scrapes a radixrt server.

    python -m tests.deploy.prometheus http://127.0.0.1:30000 --seconds 20

prints the number of series of each query, and exits with 1 if one of them fails, or has none and should have some. The
server should have work meanwhile: plain requests, constrained ones and a program of the frontend language. `prometheus`
is looked for on the PATH, or is the program that $PROMETHEUS names.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.server_process import wait_for

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = DEPLOY / "grafana" / "dashboards" / "radixrt.json"
SCRAPE_S = 0.2
CONFIG = """
global:
  scrape_interval: 200ms
  evaluation_interval: 200ms
rule_files: [{rules}]
scrape_configs:
  - job_name: radixrt
    static_configs:
      - targets: ["{target}"]
"""


def binary() -> str | None:
    """Return the path of Prometheus; None if there is none."""
    return os.environ.get("PROMETHEUS") or shutil.which("prometheus")


@dataclass(frozen=True)
class Query:
    """Query of a panel, as it stands in the dashboard.

    Attributes:
        optional: not every server has series for it, as the panel says, or it selects by a value.
    """

    panel: str
    expr: str
    optional: bool

    def with_variables(self, interval: str, model: str = ".*") -> str:
        """Return the query as Grafana sends it."""
        found = self.expr.replace("$__rate_interval", interval).replace("$instance", ".*").replace("$model_name", model)
        assert "$" not in found, found
        return found

    @property
    def metrics(self) -> set[str]:
        """Names of the series that the query reads."""
        return set(re.findall(r"\bradixrt_\w+", self.expr))


def queries(dashboard: dict[str, Any]) -> list[Query]:
    """Return the queries of all panels and annotations."""
    found = [
        Query(panel["title"], target["expr"], optional="Empty unless" in panel["description"])
        for panel in dashboard["panels"]
        if panel["type"] != "row"
        for target in panel["targets"]
    ]
    return [*found, *(Query(each["name"], each["expr"], optional=True) for each in dashboard["annotations"]["list"])]


class Prometheus:
    """The API of a running Prometheus."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=30, trust_env=False)

    def get(self, path: str, **params: str) -> Any:
        """Return the data of an answer; raises RuntimeError with Prometheus' own message."""
        answer = self._http.get(f"/api/v1/{path}", params=params).json()
        if answer["status"] != "success":
            raise RuntimeError(answer["error"])
        return answer["data"]

    def is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def scrapes(self) -> int:
        """Return the number of times that the server has been scraped."""
        found = self.get("query", query='count_over_time(up{job="radixrt"}[1h])')["result"]
        return int(found[0]["value"][1]) if found else 0

    def series(self, query: Query, interval: str) -> int:
        """Return the number of series of a query's result that hold a number.

        Raises:
            RuntimeError: Prometheus does not take the query.
        """
        result = self.get("query", query=query.with_variables(interval))["result"]
        return sum(each["value"][1] != "NaN" for each in result)


@contextmanager
def running(program: str, server: str) -> Iterator[Prometheus]:
    """Run Prometheus with the alerts of deploy/, scraping a server five times a second."""
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
        probe.close()
        config = Path(folder) / "prometheus.yml"
        rules = DEPLOY / "prometheus" / "alerts.yml"
        config.write_text(CONFIG.format(rules=json.dumps(str(rules)), target=urlsplit(server).netloc))
        command = [program, f"--config.file={config}", f"--storage.tsdb.path={folder}/data"]
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stderr=subprocess.DEVNULL)
        try:
            prometheus = Prometheus(f"http://{address}")
            assert wait_for(prometheus.is_ready)
            yield prometheus
        finally:
            process.terminate()
            process.wait(30)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url", help="the server")
    parser.add_argument("--seconds", type=float, default=20.0, help="time to scrape it before the queries are run")
    args = parser.parse_args()
    program = binary()
    if program is None:
        parser.error("there is no prometheus on the PATH; set PROMETHEUS to its path")
    bad = 0
    with running(program, args.url) as prometheus:
        time.sleep(args.seconds)
        interval = f"{int(args.seconds)}s"
        for query in queries(json.loads(DASHBOARD.read_text())):
            try:
                count = str(prometheus.series(query, interval))
            except RuntimeError as error:
                count = f"FAILED: {error}"
            bad += count.startswith("FAILED") or (count == "0" and not query.optional)
            print(f"{count:>4}  {query.panel}: {query.expr}")
        for rule in prometheus.get("rules")["groups"][0]["rules"]:
            print(f"alert {rule['name']}: {rule['health']}, {rule['state']}")
            bad += rule["health"] != "ok"
    print(f"{bad} without a result")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
