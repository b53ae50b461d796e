"""Options of engines whose ranks are on a Ray cluster, and the check that Ray is installed."""

from __future__ import annotations

import dataclasses
import importlib.metadata

from radixrt.config import ExecutorConfig
from radixrt.errors import ConfigError, shown
from radixrt.extras import install_command

OLDEST, TOO_NEW = (2, 52), (3, 0)
"""Versions that work; pyproject.toml has the same range. Token authentication came with 2.52."""


def resolve_cluster(given: ExecutorConfig) -> ExecutorConfig:
    """Return the options with dependent values filled in; the given options if there is no cluster.

    Raises:
        ConfigError: options contradict each other, or Ray is missing.
    """
    options = given
    if given.cluster is not None:
        if given.executor not in ("mp", "ray") or given.ray_address not in (None, given.cluster):
            other = "ray_address" if given.executor == "ray" else f"executor={given.executor}"
            raise ConfigError(f"cluster={given.cluster} and {other} contradict each other; leave one of them out")
        options = dataclasses.replace(given, executor="ray", ray_address=given.cluster)
        check_address("cluster", given.cluster)
    if options.executor != "ray":
        for name in ("ray_address", "ray_resource"):
            if getattr(options, name) is not None:
                raise ConfigError(f"{name} is of no use with executor={options.executor}; use executor=ray")
        return options
    check_address("ray_address", "auto" if options.ray_address is None else options.ray_address)
    check_ray()
    # The ranks compute on the nodes' devices, so this machine's do not matter.
    return dataclasses.replace(options, device="cuda" if options.device == "auto" else options.device)


def check_address(name: str, address: str) -> None:
    """Raise ConfigError if an address of a cluster has another form than the options take.

    Args:
        name: of the option.
    """
    host, _, port = address.rpartition(":")
    if address in ("auto", "local") or (host and "://" not in host and port.isdecimal() and 0 < int(port) < 65536):
        return
    raise ConfigError(
        f"{name}={shown(address)}: give HOST:PORT of the cluster's head (`ray start` prints it), auto for the cluster "
        "of this machine, or local for a new one"
    )


def check_ray() -> None:
    """Raise ConfigError if Ray is missing or has an unsupported version. Does not import Ray."""
    fix = install_command("ray")
    try:
        found = importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        raise ConfigError(f"Ray is not installed on this machine; {fix}, on all nodes") from None
    major, minor = (int(part) for part in found.split(".")[:2])
    if not OLDEST <= (major, minor) < TOO_NEW:
        raise ConfigError(f"Ray {found} is installed, and versions from 2.52 to below 3 are supported; {fix}")
