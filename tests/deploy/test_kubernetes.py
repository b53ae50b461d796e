"""The manifest for Kubernetes: its schemas, its options, and names that agree."""

from __future__ import annotations

from pathlib import Path

import kubernetes_validate
import yaml

from radixrt.cli import _parse, build_parser
from radixrt.config.file import read_config_file
from radixrt.server.access.checks import OPEN_PATHS
from tests.deploy.prometheus import DEPLOY

OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text()))
BY_KIND = {each["kind"]: each for each in OBJECTS}
POD = BY_KIND["Deployment"]["spec"]["template"]["spec"]
(CONTAINER,) = POD["containers"]


def test_every_object_satisfies_its_schema() -> None:
    for each in OBJECTS:
        kubernetes_validate.validate(each, "1.30", strict=True)
    assert list(BY_KIND) == ["ConfigMap", "PersistentVolumeClaim", "Deployment", "Service"]


def test_the_options_are_valid_and_fit_the_pod(tmp_path: Path) -> None:
    file = tmp_path / "radixrt.toml"
    file.write_text(BY_KIND["ConfigMap"]["data"]["radixrt.toml"])
    options = read_config_file(str(file))
    mounts = {each["mountPath"]: each["name"] for each in CONTAINER["volumeMounts"]}
    assert options["host"] == "0.0.0.0"
    assert Path(options["api_key_file"]).parent.as_posix() in mounts
    assert _parse(build_parser(), [CONTAINER["args"][0], "--config", str(file)]).grace_s == options["grace_s"]
    assert Path(CONTAINER["args"][2]) == Path("/config/radixrt.toml")
    wait = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    assert POD["terminationGracePeriodSeconds"] >= wait + options["grace_s"] + 10


def test_names_ports_and_probes_agree() -> None:
    volumes = {each["name"]: each for each in POD["volumes"]}
    assert {each["name"] for each in CONTAINER["volumeMounts"]} == set(volumes)
    claim = BY_KIND["PersistentVolumeClaim"]["metadata"]["name"]
    assert volumes["cache"]["persistentVolumeClaim"]["claimName"] == claim
    assert volumes["config"]["configMap"]["name"] == BY_KIND["ConfigMap"]["metadata"]["name"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        assert CONTAINER[probe]["httpGet"]["path"] in OPEN_PATHS
        assert CONTAINER[probe]["httpGet"]["port"] == CONTAINER["ports"][0]["name"]
    assert CONTAINER["ports"][0]["containerPort"] == 30000
    selected = BY_KIND["Service"]["spec"]["selector"]
    assert selected.items() <= BY_KIND["Deployment"]["spec"]["template"]["metadata"]["labels"].items()
