"""Options of engines on a Ray cluster: what follows from them, what contradicts, and Ray that is not installed."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest

from radixrt.config import make_config
from radixrt.engine.cluster_options import check_ray, resolve_cluster
from radixrt.errors import ConfigError


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "2.60.0")


def resolved(**options: Any) -> tuple[str, str | None, str]:
    found = resolve_cluster(make_config(**options).executor)
    return found.executor, found.ray_address, found.device


def test_a_cluster_is_rays_executor_at_its_address() -> None:
    assert resolved(cluster="10.0.0.1:6379") == ("ray", "10.0.0.1:6379", "cuda")
    assert resolved(cluster="local", replicas=2, device="cpu") == ("ray", "local", "cpu")
    assert resolved(executor="ray") == ("ray", None, "cuda")
    assert resolved() == ("mp", None, "auto")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"ray_address": "local"}, "ray_address is of no use with executor=mp; use executor=ray"),
        ({"ray_resource": "GPU", "executor": "uni"}, "ray_resource is of no use with executor=uni"),
        ({"cluster": "local", "executor": "external"}, "cluster=local and executor=external contradict each other"),
        (
            {"cluster": "local", "executor": "ray", "ray_address": "h:1"},
            "cluster=local and ray_address contradict each other",
        ),
    ],
)
def test_options_that_contradict_are_named(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigError, match=error):
        resolved(**options)


@pytest.mark.parametrize("name", ["cluster", "ray_address"])
@pytest.mark.parametrize(
    "address",
    ["ray://10.0.0.1:10001", "head", "head:", ":6379", "10.0.0.1:http", "head:0", "head:65536", "", "file:/x"],
)
def test_an_address_of_another_form_is_refused_with_its_option(name: str, address: str) -> None:
    options = {name: address} if name == "cluster" else {"executor": "ray", name: address}
    with pytest.raises(ConfigError, match=f"^{name}={address!r}: give HOST:PORT of the cluster's head"):
        resolved(**options)


def test_ray_that_is_not_installed_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", missing)
    resolved()
    with pytest.raises(ConfigError, match=r"Ray is not installed .* pip install 'ray<3,>=2.52'"):
        resolved(executor="ray")


@pytest.mark.parametrize("version", ["2.51.2", "3.0.0"])
def test_ray_of_another_version_is_refused(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    with pytest.raises(ConfigError, match=rf"Ray {version} is installed"):
        check_ray()


@pytest.mark.parametrize("version", ["2.52.0", "2.60.0", "2.99.0rc1"])
def test_versions_of_ray_that_are_taken(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    check_ray()
