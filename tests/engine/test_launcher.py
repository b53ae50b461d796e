"""`Launcher`, without the processes that it starts, and interrupted while it starts them."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixrt.config import make_config
from radixrt.engine import replica_set
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


def test_an_interrupt_while_a_replica_is_made_leaves_nothing_behind(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted(replica_set.Supervisor):
        """A supervisor with its sockets and threads, which nobody has got yet when the signal comes."""

        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(replica_set, "Supervisor", Interrupted)
    config = make_config(model=str(tiny_model("llama")), device="cpu", replicas=2)
    launcher = Launcher(*resolve_settings(config, show_progress=False))
    with pytest.raises(KeyboardInterrupt):
        launcher.start()
    assert not Path(launcher.folder).exists()
    assert "radixrt-receive" not in [thread.name for thread in threading.enumerate()]
