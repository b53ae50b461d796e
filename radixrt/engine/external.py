"""Ranks started by torchrun or SLURM. Every rank runs the same command. Rank 0 becomes the engine, whose children are
the worker processes; every other rank becomes a ModelRunner that exits when rank 0 is gone.

Rank 0's ModelRunner writes the scheduler's addresses, and the key that the scheduler demands, into the store of
torch.distributed's rendezvous.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import zmq

from radixrt.channel import Curve, ZmqInbox, ZmqOutbox
from radixrt.config import Config
from radixrt.distributed.rank_info import RankInfo, rank_from_environment
from radixrt.engine.settings import EngineSettings, resolve_settings
from radixrt.errors import EngineError, RadixRTError
from radixrt.logs import configure_logging
from radixrt.messages.runner import FromRunner, StepFailed, ToRunner

if TYPE_CHECKING:
    from radixrt.executor.external_executor import ConnectionWatch

logger = logging.getLogger(__name__)

STORE_KEY = "radixrt/scheduler"
LAST_WORDS_S = 0.3
"""Seconds between the failure of a rank and its exit, in which ZMQ sends the rank's last message."""


def is_other_rank(config: Config) -> bool:
    """Return True if the launcher gave this process a rank above 0, so that it is a ModelRunner of rank 0's engine.

    Raises:
        ConfigError: executor=external, and the environment does not say which rank this is.
    """
    executor = config.executor
    if executor.executor != "external":
        return False
    return rank_from_environment(os.environ, executor.start_timeout_s, executor.pp).known_as != 0


def publish_addresses(rank_info: RankInfo, path: str) -> None:
    """Publish the scheduler's addresses to the other ranks. Called by rank 0's ModelRunner.

    Args:
        path: file to which the scheduler writes its addresses; waits for the file.

    Raises:
        EngineError: the scheduler did not write the file in time, or there is no store.
    """
    from radixrt.distributed.parallel import launcher_store

    deadline = time.monotonic() + rank_info.timeout_s
    while not Path(path).exists():
        if time.monotonic() > deadline:
            raise EngineError(
                f"the scheduler did not open its ports within {rank_info.timeout_s:g} s (start_timeout_s)"
            )
        time.sleep(0.01)
    launcher_store(rank_info).set(STORE_KEY, Path(path).read_text(encoding="utf-8"))


def serve_rank(config: Config) -> NoReturn:
    """Serve as a rank above 0 until rank 0 is gone, then exit the process: with code 0, or 2 if this rank failed."""
    rank_info = rank_from_environment(os.environ, config.executor.start_timeout_s, config.executor.pp)
    server, name = config.server, f"ModelRunner {rank_info.known_as}"
    configure_logging(server.log_level, name, format=server.log_format, force=True)
    try:
        _run(*resolve_settings(config, show_progress=False), rank_info)
        os._exit(0)
    except RadixRTError as error:
        print(f"radixrt: {error}", file=sys.stderr, flush=True)
        os._exit(2)


def _run(config: Config, settings: EngineSettings, rank_info: RankInfo) -> None:
    from radixrt.distributed.parallel import launcher_store
    from radixrt.engine import assembly
    from radixrt.executor.external_executor import ConnectionWatch
    from radixrt.runner.worker import serve_steps

    store = launcher_store(rank_info)
    try:
        store.wait([STORE_KEY])
    except RuntimeError as error:
        raise EngineError(f"rank 0 did not say where its scheduler is: {error}") from error
    addresses = json.loads(store.get(STORE_KEY))
    context: zmq.Context[Any] = zmq.Context()
    keys = Curve.make(server=addresses["key"].encode())
    inbox: ZmqInbox[ToRunner] = ZmqInbox(
        context, addresses["ranks"][str(rank_info.known_as)], ToRunner, bind=False, curve=keys
    )
    answers: ZmqOutbox[FromRunner] = ZmqOutbox(context, addresses["answers"], curve=keys)
    for number in (signal.SIGINT, signal.SIGTERM):  # the launcher signals every rank; rank 0 decides when to stop
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(
        target=_exit_with_scheduler, args=(ConnectionWatch(inbox.socket, accepts=False),), daemon=True
    ).start()
    rank_info = dataclasses.replace(rank_info, one_shot=config.executor.all_reduce == "one_shot")
    worker = assembly.make_runner_worker(config, settings, answers, rank_info)
    try:
        worker.start()
    except RadixRTError as error:
        answers.send(StepFailed(-1, rank_info.known_as, str(error), fatal=True))
        time.sleep(LAST_WORDS_S)
        raise
    logger.info("rank %d of %d is ready", rank_info.known_as, rank_info.size)
    try:
        serve_steps(worker, inbox)
    except RadixRTError:
        time.sleep(LAST_WORDS_S)
        raise


def _exit_with_scheduler(watch: ConnectionWatch) -> None:
    while not watch.lost():
        watch.socket.poll()
    os._exit(0)
