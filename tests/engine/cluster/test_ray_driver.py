"""Joining a cluster: addresses that are none, and tokens."""

from __future__ import annotations

import logging
import socket
import sys
import types

import pytest

from radixrt.engine.cluster import ray_driver
from radixrt.engine.cluster.ray_driver import (
    POLL_S,
    STOP_S,
    Driver,
    DriverSettings,
    Spawn,
    check_reachable,
    connect_again,
    own_cluster_environment,
    warn_without_token,
)
from radixrt.errors import ConfigError


def test_an_address_where_something_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        check_reachable(f"127.0.0.1:{server.getsockname()[1]}", "cluster")


def test_an_address_where_nothing_listens_is_refused_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConfigError, match=rf"^cluster=127\.0\.0\.1:{port}: nothing listens there"):
        check_reachable(f"127.0.0.1:{port}", "cluster")


def test_nothing_waits_within_ray_for_longer_than_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is blocked in Ray's wait while Ray shuts down crashes."""
    limits: list[float] = []

    def wait(pending: list[object], *, num_returns: int, timeout: float) -> tuple[list[object], list[object]]:
        limits.append(timeout)
        return [], pending

    fake = types.SimpleNamespace(wait=wait, shutdown=lambda: None)
    monkeypatch.setitem(sys.modules, "ray", fake)  # type: ignore[arg-type]
    driver = Driver(DriverSettings("auto", [1], "GPU", 60.0))
    driver._running["a call that never returns"] = Spawn("rank", 0, "rank", {})
    assert driver.reports() == []
    driver.stop()
    assert limits == [POLL_S, STOP_S]
    assert max(limits) <= 2.0


def test_a_cluster_of_ones_own_has_a_new_token() -> None:
    """Whoever reaches Ray's ports runs code, and Ray does not ask for a token by itself."""
    first, second = own_cluster_environment({}), own_cluster_environment({})
    assert first["RAY_AUTH_MODE"] == "token"
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert first["RAY_AUTH_TOKEN"] != second["RAY_AUTH_TOKEN"]


def test_the_users_own_choice_of_a_token_stays() -> None:
    assert own_cluster_environment({"RAY_AUTH_TOKEN": "mine"})["RAY_AUTH_TOKEN"] == "mine"
    assert own_cluster_environment({"RAY_AUTH_MODE": "disabled"})["RAY_AUTH_MODE"] == "disabled"


def test_a_cluster_without_a_token_is_joined_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        warn_without_token({"RAY_AUTH_MODE": "token"})
        assert not caplog.records
        warn_without_token({})
    assert "RAY_AUTH_MODE=token" in caplog.text


def test_a_cluster_that_was_there_before_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = DriverSettings("10.0.0.1:6379", [1], "GPU", 60.0, waits_for_cluster=True)
    answers = iter([ConfigError("nothing listens there"), ConfigError("nothing listens there"), None])

    def connect(address: str, option: str) -> str:
        if (error := next(answers)) is not None:
            raise error
        return address

    monkeypatch.setattr(ray_driver, "connect", connect)
    monkeypatch.setattr(ray_driver, "RETRY_S", 0.0)
    assert connect_again(settings) == "10.0.0.1:6379"


def test_a_cluster_that_does_not_come_back_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(ConfigError, match="nothing listens there"):
        connect_again(DriverSettings(f"127.0.0.1:{port}", [1], "GPU", 0.0, waits_for_cluster=True))
