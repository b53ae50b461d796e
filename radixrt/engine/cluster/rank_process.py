"""Entry point of a rank that a `NodeAgent` started, with settings on stdin.

The rank connects to the main process of its engine, which sends the addresses of the scheduler. From then on the rank
runs until that connection ends, whether or not Ray still runs. A failure is reported as a JSON line on stdout, as in
`radixrt.engine.process`.
"""

from __future__ import annotations

import dataclasses
import functools
import gc
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import psutil
import zmq

from radixrt.channel import Curve, ZmqInbox, ZmqOutbox
from radixrt.config import Config, make_config
from radixrt.distributed.rank_info import RankInfo
from radixrt.engine import assembly
from radixrt.engine.cluster.lifeline import Lifeline
from radixrt.engine.process import report_errors
from radixrt.engine.settings import EngineSettings, resolve_settings
from radixrt.errors import EngineError, RadixRTError
from radixrt.executor.external_executor import ConnectionWatch
from radixrt.logs import configure_logging
from radixrt.messages.ranks import RankAddresses
from radixrt.messages.runner import FromRunner, StepFailed, ToRunner
from radixrt.models.loading.source import cache_folder
from radixrt.start_log import StartLog

logger = logging.getLogger(__name__)

LAST_WORDS_S = 0.3
"""Seconds between the failure of a rank and its exit, in which ZMQ sends the rank's last message."""


class RankSettings(msgspec.Struct, frozen=True):
    """Settings of one rank, one line of JSON.

    Attributes:
        name: name of the rank in log lines.
        config, settings: options and settings of the engine.
        lifeline: result of `RankLines.of_rank`.
        local_rank, local_size: rank and number of ranks among the ranks of the same agent, which share its devices.
        address: address of the rank's node.
        store_address, store_port: address and port of the ranks' rendezvous.
        store_descriptor: the listening socket of the rendezvous, in the rank that serves the rendezvous.
    """

    name: str
    config: dict[str, Any]
    settings: dict[str, Any]
    lifeline: dict[str, str]
    rank: int
    size: int
    local_rank: int
    local_size: int
    address: str = ""
    store_address: str = ""
    store_port: int = 0
    store_descriptor: int | None = None


def run_rank(given: RankSettings, config: Config) -> NoReturn:
    """Serve as a rank until the main process is gone.

    Raises:
        RadixRTError: the rank cannot start or continue.
    """
    context: zmq.Context[Any] = zmq.Context()
    start_log = StartLog()
    line = Lifeline(context, given.lifeline["endpoint"], given.lifeline["key"])
    addresses = line.addresses(timeout_s=config.executor.start_timeout_s)
    if addresses is None:
        raise EngineError(f"the main process cannot be reached at {given.lifeline['endpoint']}")
    start_log.begin("torch")
    from radixrt.runner.worker import serve_steps

    inbox, answers = _connect(context, addresses, line)
    config, settings = _on_this_machine(config, EngineSettings.from_dict(given.settings))
    worker = assembly.make_runner_worker(
        config, settings, answers, rank_info(given, config, settings.stages), start_log=start_log
    )
    try:
        worker.start()
        gc.freeze()
        gc.enable()
        start_log.ready()
        while True:
            serve_steps(worker, inbox, until=functools.partial(line.ended, addresses.epoch))
            # The scheduler was restarted: connect to the new one, with the model and the pools still loaded.
            addresses = line.addresses(after=addresses.epoch) or addresses
            inbox.close()
            answers.close()
            inbox, answers = _connect(context, addresses, line)
            worker.reconnect(answers)
    except RadixRTError as error:
        answers.send(StepFailed(-1, given.rank, str(error), fatal=True))
        time.sleep(LAST_WORDS_S)
        raise


def _connect(
    context: zmq.Context[Any], addresses: RankAddresses, line: Lifeline
) -> tuple[ZmqInbox[ToRunner], ZmqOutbox[FromRunner]]:
    keys = Curve.make(server=addresses.key.encode())
    inbox: ZmqInbox[ToRunner] = ZmqInbox(context, addresses.steps, ToRunner, bind=False, curve=keys, reconnects=False)
    answers: ZmqOutbox[FromRunner] = ZmqOutbox(context, addresses.answers, curve=keys, reconnects=False)
    watches = [ConnectionWatch(end.socket, accepts=False) for end in (inbox, answers)]
    line.exit_without_scheduler(addresses.epoch, watches)
    return inbox, answers


def rank_info(given: RankSettings, config: Config, stages: int = 1) -> RankInfo:
    """Return the rank's `RankInfo`, and configure torch.distributed to use this node's address in the cluster.

    Args:
        stages: pipeline stages of the model.
    """
    os.environ.update(MASTER_ADDR=given.store_address, MASTER_PORT=str(given.store_port))
    if (interface := interface_of(given.address)) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", interface)
    return RankInfo(
        rank=given.rank,
        size=given.size,
        local_rank=given.local_rank,
        local_size=given.local_size,
        store_descriptor=given.store_descriptor,
        timeout_s=config.executor.start_timeout_s,
        one_shot=config.executor.all_reduce == "one_shot",
        stages=stages,
    )


def interface_of(address: str) -> str | None:
    """Return the name of the network interface with this address; None if there is none."""
    for name, entries in psutil.net_if_addrs().items():
        if any(entry.family in (socket.AF_INET, socket.AF_INET6) and entry.address == address for entry in entries):
            return str(name)
    return None


def _on_this_machine(config: Config, settings: EngineSettings) -> tuple[Config, EngineSettings]:
    """Replace the main process's paths by paths of this machine. A model that is not at the same path here is looked
    up, downloaded or converted again."""
    kernels = str(cache_folder() / "kernels")
    if Path(settings.folder).exists():
        return config, dataclasses.replace(settings, kernel_cache=kernels)
    config, own = resolve_settings(config, show_progress=False)
    return config, dataclasses.replace(settings, folder=own.folder, kernel_cache=kernels)


def main() -> NoReturn:
    gc.disable()  # see radixrt.engine.process
    given = msgspec.json.decode(sys.stdin.readline(), type=RankSettings)
    with report_errors(given.name):
        config = make_config(**given.config)
        configure_logging(config.server.log_level, given.name, format=config.server.log_format)
        run_rank(given, config)


if __name__ == "__main__":
    main()
