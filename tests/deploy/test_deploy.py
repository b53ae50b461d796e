"""The files of deploy/ agree with one another and with the server; programs that check them are run where they are."""

from __future__ import annotations

import functools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from radixrt.cli import build_parser
from tests.deploy.prometheus import DASHBOARD, DEPLOY, queries
from tests.test_operations_doc import names_of_metrics

PANELS = json.loads(DASHBOARD.read_text())["panels"]


def load(*parts: str) -> Any:
    return yaml.safe_load(DEPLOY.joinpath(*parts).read_text())


known_names = functools.cache(names_of_metrics)


def known(metric: str) -> bool:
    """Return True if the server has a metric of that name; a histogram has three suffixes."""
    names = known_names()
    return metric in names or re.sub("_(bucket|sum|count)$", "", metric) in names


def test_the_dashboard_reads_metrics_that_exist() -> None:
    read = {name for query in queries(json.loads(DASHBOARD.read_text())) for name in query.metrics}
    assert len(read) > 40
    assert not {name for name in read if not known(name)}


def test_alerts_read_metrics_that_exist() -> None:
    (group,) = load("prometheus", "alerts.yml")["groups"]
    read = {name for rule in group["rules"] for name in re.findall(r"\bradixrt_\w+", rule["expr"])}
    assert len(read) == len(group["rules"])
    assert not {name for name in read if not known(name)}


def test_panels_have_descriptions_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    cells: set[tuple[int, int]] = set()
    for panel in PANELS:
        at = panel["gridPos"]
        own = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not own & cells, panel["title"]
        assert at["x"] + at["w"] <= 24
        cells |= own
        if panel["type"] != "row":
            assert panel["description"].endswith("."), panel["title"]
            assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
            assert all("model_name=~" in target["expr"] for target in panel["targets"])


def test_compose_files_name_what_there_is() -> None:
    compose, cuda = load("compose.yaml"), load("compose.cuda.yaml")
    services = compose["services"]
    for service in services.values():
        for volume in service["volumes"]:
            source, inside, *_ = volume.split(":")
            if source.startswith("."):
                assert (DEPLOY / source).is_dir()
                assert inside
            else:
                assert source in compose["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE))
    assert {services["radixrt"]["build"]["target"], cuda["services"]["radixrt"]["build"]["target"]} <= targets
    (scraped,) = load("prometheus", "prometheus.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    assert scraped.partition(":")[0] in services
    (source,) = load("grafana", "provisioning", "datasources", "prometheus.yml")["datasources"]
    assert source["url"].removeprefix("http://").partition(":")[0] in services
    folder = load("grafana", "provisioning", "dashboards", "radixrt.yml")["providers"][0]["options"]["path"]
    mounted = [volume.partition(":")[2].partition(":")[0] for volume in services["grafana"]["volumes"]]
    assert folder in mounted


def test_command_lines_are_valid() -> None:
    commands = [load("compose.yaml")["services"]["radixrt"]["command"]]
    unit, environment = (DEPLOY / "radixrt.service").read_text(), (DEPLOY / "radixrt.env").read_text()
    (command,) = re.findall("^ExecStart=.*/radixrt (.*)$", unit, re.MULTILINE)
    (options,) = re.findall("^RADIXRT_OPTIONS=(.*)$", environment, re.MULTILINE)
    commands.append(command.replace("$RADIXRT_OPTIONS", options))
    for each in commands:
        words = re.sub(r"\$\{\w+:-(.*?)\}", r"\1", each).split()
        assert build_parser().parse_args(words).log_format == "json"


def test_the_image_installs_extras_that_exist() -> None:
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    for extras in re.findall(r"^ARG EXTRAS=(.*)$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE):
        assert all(re.search(rf"^{extra} = \[", project, re.MULTILINE) for extra in extras.split(","))


def test_the_image_for_cpus_has_kernels_and_no_compiler() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    stages = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", text, re.M | re.S))
    assert stages.keys() == {"wheel", "cpu", "cuda"}
    assert re.search(r'^RUN RADIXRT_KERNELS="\$\(uname -m\)" pip wheel ', stages["wheel"], re.MULTILINE)
    assert "g++" in stages["wheel"]
    assert "apt-get" not in stages["cpu"]
    assert all("COPY --from=wheel /wheels /wheels\n" in stages[name] for name in ("cpu", "cuda"))


def test_the_context_of_the_image_has_what_is_copied() -> None:
    root, text = DEPLOY.parent, (DEPLOY / "Dockerfile").read_text()
    copied = {name for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE) for name in line.split()}
    kept = {line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == kept
    assert all((root / name).exists() for name in copied)


@pytest.mark.parametrize(
    "command",
    [
        ["hadolint", str(DEPLOY / "Dockerfile")],
        ["promtool", "check", "config", str(DEPLOY / "prometheus" / "prometheus.yml")],
        ["docker-compose", "-f", str(DEPLOY / "compose.yaml"), "-f", str(DEPLOY / "compose.cuda.yaml"), "config", "-q"],
    ],
    ids=lambda command: command[0],
)
def test_programs_accept_the_files(command: list[str]) -> None:
    program = shutil.which(command[0])
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    unit = tmp_path / "radixrt.service"
    unit.write_text((DEPLOY / "radixrt.service").read_text().replace("/opt/radixrt/bin/radixrt", "/bin/true"))
    done = subprocess.run([program, "verify", str(unit)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
