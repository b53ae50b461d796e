"""The manifests for KubeRay: their fields, and a command line that the parser takes."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml

from radixrt.cli import build_parser
from radixrt.engine.cluster_options import OLDEST, TOO_NEW
from tests.deploy.prometheus import DEPLOY

TEXT = (DEPLOY / "kuberay.yaml").read_text()
CLUSTER, SERVICE, POLICY = yaml.safe_load_all(TEXT)
HEAD = CLUSTER["spec"]["headGroupSpec"]
WORKERS = CLUSTER["spec"]["workerGroupSpecs"]


def container(group: dict[str, Any]) -> dict[str, Any]:
    (only,) = group["template"]["spec"]["containers"]
    return dict(only)


def options() -> Any:
    command = re.search(r"exec radixrt (launch .*)$", container(HEAD)["args"][0])
    assert command is not None
    return build_parser().parse_args(command[1].split())


def test_the_kinds_and_versions_of_the_objects() -> None:
    kinds = [(each["apiVersion"], each["kind"]) for each in (CLUSTER, SERVICE, POLICY)]
    assert kinds == [("ray.io/v1", "RayCluster"), ("v1", "Service"), ("networking.k8s.io/v1", "NetworkPolicy")]
    version = tuple(int(part) for part in CLUSTER["spec"]["rayVersion"].split(".")[:2])
    assert OLDEST <= version < TOO_NEW


def test_ray_asks_for_a_token_and_only_http_is_open() -> None:
    assert CLUSTER["spec"]["authOptions"] == {"mode": "token"}
    inside, http = POLICY["spec"]["ingress"]
    labels = {"ray.io/cluster": CLUSTER["metadata"]["name"]}
    assert inside == {"from": [{"podSelector": {"matchLabels": labels}}]}
    assert POLICY["spec"]["podSelector"]["matchLabels"] == labels
    assert [port["port"] for port in http["ports"]] == ["http"]
    assert SERVICE["spec"]["selector"] == {**labels, "ray.io/node-type": "head"}


@pytest.mark.parametrize("group", [HEAD, *WORKERS])
def test_containers_start_ray_by_their_own_commands(group: dict[str, Any]) -> None:
    assert CLUSTER["metadata"]["annotations"] == {"ray.io/overwrite-container-cmd": "true"}
    assert container(group)["command"] == ["/bin/bash", "-c", "--"]
    assert "$KUBERAY_GEN_RAY_START_CMD" in container(group)["args"][0]
    volumes = {volume["name"] for volume in group["template"]["spec"]["volumes"]}
    assert {mount["name"] for mount in container(group)["volumeMounts"]} == volumes


def test_the_ranks_of_a_stage_fit_on_a_node() -> None:
    given = options()
    assert given.cluster == "auto"
    limits = container(WORKERS[0])["resources"]["limits"]
    assert int(limits["nvidia.com/gpu"]) >= given.tp
    assert "nvidia.com/gpu" not in container(HEAD)["resources"]["limits"]
    model = container(WORKERS[0])["volumeMounts"][0]["mountPath"]
    assert given.model.startswith(model)


def test_the_engines_port_is_the_services() -> None:
    ports = {port["name"]: port["containerPort"] for port in container(HEAD)["ports"]}
    assert ports["http"] == options().port == SERVICE["spec"]["ports"][0]["port"]
    assert {container(HEAD)[probe]["httpGet"]["path"] for probe in ("readinessProbe", "livenessProbe")} == {
        "/ready",
        "/health",
    }


def test_the_image_of_the_comment_has_ray() -> None:
    assert "--build-arg EXTRAS=server,otel,cuda,ray -t radixrt:cuda" in TEXT
