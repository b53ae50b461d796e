"""Options of the host tier and the disk tier: defaults, and checks against the machine and the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from radixrt.config import CacheConfig, Config
from radixrt.config.roles import parse_roles
from radixrt.errors import ConfigError, shown
from radixrt.models.loading.source import cache_folder
from radixrt.private_files import is_trusted

GIB = 2**30
PERSIST_HOST_GIB = 4.0
PERSIST_PART = 0.25
"""Largest part of the free memory that `persist` gives to a host tier, and `roles` to all of them."""
DISK_GIB = 16.0
CGROUPS = Path("/sys/fs/cgroup")


def check_tiers(config: Config) -> None:
    """Raise ConfigError if options of the tiers contradict one another or other options."""
    cache = config.cache
    if cache.kv_disk_gib and cache.kv_disk is None and not cache.persist:
        raise ConfigError(
            f"kv_disk_gib={cache.kv_disk_gib:g} needs a folder; name it by kv_disk, or use persist for the default one"
        )
    wanted = "persist" if cache.persist else f"kv_disk={shown(cache.kv_disk)}" if cache.kv_disk is not None else ""
    if cache.kv_disk is not None and not cache.kv_host_gib and not cache.persist:
        raise ConfigError(
            f"{wanted} needs host memory, by way of which keys and values go to disk; add kv_host_gib=4, for example"
        )
    wanted = f"kv_host_gib={cache.kv_host_gib:g}" if cache.kv_host_gib else wanted
    wanted = f"roles={shown(config.executor.roles)}" if _needs_moves(config) else wanted
    if wanted and not cache.prefix_cache:
        raise ConfigError(
            f"{wanted} keeps or moves prefixes of the prefix cache, and prefix_cache is off; leave one of them out"
        )
    if wanted and config.executor.executor in ("ray", "external"):
        raise ConfigError(
            f"{wanted} needs ranks that the engine starts on this machine; use executor=mp or uni, not "
            f"{config.executor.executor}"
        )


def with_tiers(config: Config) -> Config:
    """Return the config with values for all options of the tiers, `persist` replaced by the options that it stands for,
    a host tier for `roles`, and a `kv_disk` that exists.

    Raises:
        ConfigError: the machine's memory or the folder does not allow the tiers.
    """
    cache = config.cache
    if not cache.persist and not cache.kv_host_gib and not _needs_moves(config):
        return config
    free, replicas = available_memory(), config.executor.replicas or 1
    if cache.persist:
        cache = dataclasses.replace(
            cache,
            persist=False,
            kv_host_gib=cache.kv_host_gib or min(PERSIST_HOST_GIB, PERSIST_PART * free / GIB),
            kv_disk=cache.kv_disk or str(default_folder()),
        )
    elif not cache.kv_host_gib:
        cache = dataclasses.replace(cache, kv_host_gib=roles_host_gib(free, replicas))
    if cache.kv_host_gib * replicas * GIB > free:
        each = "" if replicas == 1 else f" for each of {replicas} replicas"
        raise ConfigError(
            f"kv_host_gib={cache.kv_host_gib:g}{each} is more than the memory that is free here, {free / GIB:.1f} GiB; "
            "lower it"
        )
    if cache.kv_disk is not None:
        folder = _own_folder(cache)
        cache = dataclasses.replace(cache, kv_disk=str(folder), kv_disk_gib=cache.kv_disk_gib or DISK_GIB)
    return dataclasses.replace(config, cache=cache)


def roles_host_gib(free: int, replicas: int) -> float:
    """Return the size of the host tier that `roles` gives to each replica, in GiB.

    Args:
        free: bytes that processes can still allocate.
    """
    return min(PERSIST_HOST_GIB, PERSIST_PART * free / GIB / replicas)


def _needs_moves(config: Config) -> bool:
    """Return True if prefixes go from replicas that compute prompts to replicas that answer."""
    return "prefill" in parse_roles(config.executor.roles)


def default_folder() -> Path:
    """Return the folder of `persist`: `kv` in the folder of the user's caches."""
    return cache_folder() / "kv"


def _own_folder(cache: CacheConfig) -> Path:
    """Return the absolute path of `kv_disk`, which is made if it is missing."""
    folder, given = Path(cache.kv_disk or "").expanduser().absolute(), f"kv_disk={shown(cache.kv_disk)}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_own = is_trusted(folder)
    except FileExistsError:
        raise ConfigError(f"{given} is no folder; name a folder") from None
    except OSError as error:
        raise ConfigError(f"{given} cannot be used: {error.strerror}; name another folder") from None
    if not is_own:
        raise ConfigError(
            f"{given} belongs to another user, or others can write to it, and could change answers; name a folder of "
            f"this user alone, such as {folder / 'radixrt-kv'}"
        )
    return folder


def available_memory() -> int:
    """Return the bytes of memory that processes can still allocate: free memory of the machine, or less if a control
    group limits this process."""
    import psutil

    return min([int(psutil.virtual_memory().available), *_group_limits()])


def _group_limits() -> Iterator[int]:
    """Yield what each limited control group of this process has left. Memory of cached files counts as free."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":  # version 1
            base, limit, used, kept = CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_"
        elif not controllers:  # version 2
            base, limit, used, kept = CGROUPS, "memory.max", "memory.current", ""
        else:
            continue
        folder = base / path.lstrip("/")
        for each in [folder, *folder.parents]:
            if not each.is_relative_to(base):
                break
            if (left := _left(each, limit, used, (f"{kept}active_file", f"{kept}inactive_file"))) is not None:
                yield left


def _left(group: Path, limit: str, used: str, cached: tuple[str, ...]) -> int | None:
    """Return the bytes that a control group may still allocate; None without a limit."""
    try:
        most, taken = int((group / limit).read_text()), int((group / used).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        return max(0, most - taken + sum(int(stat.get(name, 0)) for name in cached))
    except (OSError, ValueError):  # no such file, or "max"
        return None
