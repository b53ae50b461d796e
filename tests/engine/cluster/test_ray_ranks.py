"""Ranks of an epoch as the supervisor sees them, without a cluster: nothing is left of those that are gone."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zmq

from radixrt.config import make_config
from radixrt.engine.cluster.ray_ranks import rank_options, start_ranks
from radixrt.engine.process_group import ProcessGroup
from radixrt.engine.settings import resolve_settings
from tests.server_process import wait_for


def descriptors() -> list[str]:
    return sorted(os.listdir("/proc/self/fd"))


def test_ranks_that_are_gone_hold_no_descriptors(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    config, settings = resolve_settings(
        make_config(model=str(tiny_model("llama")), executor="ray", ray_address=address, device="cpu", tp=2),
        show_progress=False,
    )
    kinds = ("runner-0", "runner-1")
    context: zmq.Context[Any] = zmq.Context.instance()
    before = descriptors()
    ranks = start_ranks(context, config, settings, ProcessGroup(kinds, str(tmp_path)), kinds, epoch=0)
    assert wait_for(lambda: all(rank.is_dead for rank in ranks.values()))
    assert f"ray_address={address}: nothing listens there" in ranks["runner-0"].describe_exit()
    for rank in ranks.values():  # as the supervisor does: all are killed, then closed
        rank.kill()
    for rank in ranks.values():
        rank.close()
    assert descriptors() == before


def test_what_travels_through_ray_has_nothing_of_the_http_server() -> None:
    """Whoever reads Ray's traffic learns no API key, and no file that holds one."""
    config = make_config(api_key="a secret", ssl_keyfile="/key.pem", tp=2, log_level="debug")
    sent = rank_options(config)
    assert sent["tp"] == 2
    assert sent["log_level"] == "debug"
    assert not {"a secret", "/key.pem"} & set(sent.values())
    assert make_config(**sent).executor == config.executor
