"""The worker processes: `python -m radixrt.engine.process KIND`, started by the launcher with its settings on stdin.

A worker exits when its launcher does: the launcher holds the other end of the worker's stdin, and when that closes, for
any reason, the worker removes the socket folder and exits. A worker that fails reports the error to the launcher as one
JSON line on the original stdout; all other output goes to stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import json
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import zmq

from radixrt.channel import ZmqInbox, ZmqOutbox
from radixrt.config import Config, make_config
from radixrt.distributed.rank_info import RankInfo, rank_from_environment
from radixrt.engine import assembly
from radixrt.engine.settings import EngineSettings
from radixrt.errors import RadixRTError
from radixrt.logs import configure_logging
from radixrt.messages.client import ToMain, ToTokenizer
from radixrt.messages.runner import FromRunner, ToRunner
from radixrt.messages.scheduler import ToScheduler

if TYPE_CHECKING:
    from radixrt.executor.base import Executor

NAMES = {"tokenizer": "tokenizer", "scheduler": "scheduler", "runner": "ModelRunner"}


def process_kinds(config: Config, settings: EngineSettings) -> list[str]:
    """Kinds of the processes to start: the keys of `NAMES`, with a rank for runners if there are several."""
    if settings.tp == 1:
        return list(NAMES)
    here = 1 if config.executor.executor == "external" else settings.tp
    return ["tokenizer", "scheduler", *(f"runner-{rank}" for rank in range(here))]


def process_name(kind: str) -> str:
    """Return the display name of a process, e.g. "ModelRunner 1"."""
    base, _, rank = kind.partition("-")
    return f"{NAMES[base]} {rank}".rstrip()


class Endpoints:
    """Addresses (ipc://) and files of one engine, all in its private folder.

    Those of runners belong to one epoch, a life of all ranks: nothing of an earlier rank reaches its successor.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def of(self, name: str) -> str:
        return f"ipc://{self.folder}/{name}"

    def runner(self, rank: int, epoch: int) -> str:
        """Inbox of a rank."""
        return self.of(f"runner-{rank}.{epoch}")

    def answers(self, epoch: int) -> str:
        """Inbox of the scheduler for the ranks."""
        return self.of(f"answers.{epoch}")

    @property
    def masks(self) -> str:
        """File that the scheduler and the runners map to share grammar masks."""
        return f"{self.folder}/masks"

    def ranks(self, epoch: int) -> str:
        """File of the rendezvous of this machine's runners."""
        return f"{self.folder}/ranks.{epoch}"

    @property
    def addresses(self) -> str:
        """File with the scheduler's addresses for ranks that were started externally."""
        return f"{self.folder}/addresses"


def run_tokenizer(
    config: Config, settings: EngineSettings, endpoints: Endpoints, context: zmq.Context[Any], rank: int,
    epoch: int,
) -> None:  # fmt: skip
    inbox: ZmqInbox[ToTokenizer] = ZmqInbox(context, endpoints.of("tokenizer"), ToTokenizer)
    to_scheduler: ZmqOutbox[ToScheduler] = ZmqOutbox(context, endpoints.of("scheduler"))
    to_main: ZmqOutbox[ToMain] = ZmqOutbox(context, endpoints.of("main"))
    worker = assembly.make_tokenizer(config, settings, to_scheduler, to_main)
    _settle()
    while True:
        message = inbox.recv(None)
        if message is not None:
            worker.handle(message)


def run_scheduler(
    config: Config, settings: EngineSettings, endpoints: Endpoints, context: zmq.Context[Any], rank: int,
    epoch: int,
) -> None:  # fmt: skip
    inbox: ZmqInbox[ToScheduler] = ZmqInbox(context, endpoints.of("scheduler"), ToScheduler)
    to_tokenizer: ZmqOutbox[ToTokenizer] = ZmqOutbox(context, endpoints.of("tokenizer"))
    executor = _make_executor(config, settings, endpoints, context, epoch)
    ready = executor.wait_ready(config.executor.start_timeout_s)
    loop = assembly.make_scheduler_loop(config, settings, ready, executor, inbox, to_tokenizer, inbox.socket)
    _settle()
    while True:
        loop.run_once(wait=True)


def _make_executor(
    config: Config, settings: EngineSettings, endpoints: Endpoints, context: zmq.Context[Any], epoch: int
) -> Executor:
    from radixrt.executor.external_executor import ExternalLauncherExecutor
    from radixrt.executor.multiproc_executor import MultiprocExecutor, RankEndpoints

    max_rows = config.scheduler.max_running_requests
    if config.executor.executor == "external":
        return ExternalLauncherExecutor(
            context, endpoints.runner(0, epoch), endpoints.answers(epoch), mask_path=endpoints.masks,
            max_rows=max_rows, host=os.environ["MASTER_ADDR"], size=settings.tp, address_file=endpoints.addresses,
        )  # fmt: skip

    def of_epoch(epoch: int) -> RankEndpoints:
        return RankEndpoints([endpoints.runner(rank, epoch) for rank in range(settings.tp)], endpoints.answers(epoch))

    return MultiprocExecutor(context, of_epoch, epoch=epoch, mask_path=endpoints.masks, max_rows=max_rows)


def run_runner(
    config: Config, settings: EngineSettings, endpoints: Endpoints, context: zmq.Context[Any], rank: int,
    epoch: int,
) -> None:  # fmt: skip
    from radixrt.runner.worker import serve_steps

    inbox: ZmqInbox[ToRunner] = ZmqInbox(context, endpoints.runner(rank, epoch), ToRunner)
    answers: ZmqOutbox[FromRunner] = ZmqOutbox(context, endpoints.answers(epoch))
    timeout_s = config.executor.start_timeout_s
    if config.executor.executor == "external":
        from radixrt.engine.external import publish_addresses

        rank_info = rank_from_environment(os.environ, timeout_s)
        publish_addresses(rank_info, endpoints.addresses)
    else:
        rank_info = RankInfo(rank, settings.tp, rank, settings.tp, endpoints.ranks(epoch), timeout_s)
    rank_info = dataclasses.replace(rank_info, one_shot=config.executor.all_reduce == "one_shot")
    worker = assembly.make_runner_worker(config, settings, answers, rank_info, mask_path=endpoints.masks)
    worker.start()
    _settle()
    serve_steps(worker, inbox)


def _settle() -> None:
    """Exclude all objects that exist after start-up from garbage collection."""
    gc.collect()
    gc.freeze()


RUN: dict[str, Callable[[Config, EngineSettings, Endpoints, zmq.Context[Any], int, int], None]] = {
    "tokenizer": run_tokenizer,
    "scheduler": run_scheduler,
    "runner": run_runner,
}


def _exit_with_launcher(folder: str) -> None:
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def main(kind: str) -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the launcher decides
    error_report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    line = sys.stdin.readline()
    if not line:
        return 0
    given = json.loads(line)
    name = process_name(kind)
    config = make_config(**given["config"])
    settings = EngineSettings(**{**given["settings"], "eos_ids": tuple(given["settings"]["eos_ids"])})
    configure_logging(config.server.log_level, name)
    threading.Thread(target=_exit_with_launcher, args=(given["folder"],), daemon=True).start()
    base, _, rank = kind.partition("-")
    try:
        RUN[base](config, settings, Endpoints(given["folder"]), zmq.Context(), int(rank or 0), given["epoch"])
    except RadixRTError as error:
        error_report.write(json.dumps(f"{error}") + "\n")
    except Exception as error:
        logging.exception("the %s stopped on a defect", name)
        error_report.write(json.dumps(f"{type(error).__name__}: {error}") + "\n")
    error_report.flush()
    os._exit(1)  # not sys.exit: library threads and unsent messages must not keep a failed worker alive


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
