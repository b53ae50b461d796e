"""`Launcher`, without the processes that it starts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from radixrt.config import make_config
from radixrt.engine.launcher import Launcher
from radixrt.engine.settings import resolve_settings


@pytest.mark.parametrize(("replicas", "has_router"), [(None, False), (1, True), (2, True)])
def test_one_replica_has_a_router_if_it_is_asked_for(
    replicas: int | None, has_router: bool, tiny_model: Callable[[str], Path]
) -> None:
    config = make_config(model=str(tiny_model("llama")), device="cpu", replicas=replicas)
    launcher = Launcher(*resolve_settings(config, show_progress=False))
    try:
        assert (launcher.replicas is not None) == has_router
    finally:
        launcher.close()
