"""The worker processes: `python -m radixrt.engine.worker KIND`, started by the launcher with its settings on stdin.

A worker lives exactly as long as its launcher: the launcher holds the other end of its stdin, and when that closes,
however the launcher ended, the worker removes the socket folder and exits. Its last words, if it fails, go to the
launcher as one JSON line on the original stdout; everything else that prints goes to stderr.
"""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import zmq

from radixrt.channel import ZmqInbox, ZmqOutbox
from radixrt.config import Config, make_config
from radixrt.engine import parts
from radixrt.engine.settings import EngineSettings
from radixrt.errors import RadixRTError
from radixrt.messages import (
    FromRunner,
    ToMain,
    ToRunner,
    ToScheduler,
    ToTokenizer,
)

IDLE_BEFORE_WORK_S = 0.02
"""How long a runner must have had nothing to do before it does what can wait."""

NAMES = {"tokenizer": "tokenizer", "scheduler": "scheduler", "runner": "ModelRunner"}


class Endpoints:
    """The ipc:// addresses of one engine, all within its private folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def of(self, name: str) -> str:
        return f"ipc://{self.folder}/{name}"

    @property
    def masks(self) -> str:
        """File that the scheduler and the runners map for grammar masks."""
        return f"{self.folder}/masks"


def run_tokenizer(config: Config, settings: EngineSettings, endpoints: Endpoints, context: zmq.Context[Any]) -> None:
    inbox: ZmqInbox[ToTokenizer] = ZmqInbox(context, endpoints.of("tokenizer"), ToTokenizer)
    to_scheduler: ZmqOutbox[ToScheduler] = ZmqOutbox(context, endpoints.of("scheduler"))
    to_main: ZmqOutbox[ToMain] = ZmqOutbox(context, endpoints.of("main"))
    worker = parts.make_tokenizer(config, settings, to_scheduler, to_main)
    _settle()
    while True:
        message = inbox.recv(None)
        if message is not None:
            worker.handle(message)


def run_scheduler(config: Config, settings: EngineSettings, endpoints: Endpoints, context: zmq.Context[Any]) -> None:
    from radixrt.executor.multiproc_executor import MultiprocExecutor

    inbox: ZmqInbox[ToScheduler] = ZmqInbox(context, endpoints.of("scheduler"), ToScheduler)
    to_tokenizer: ZmqOutbox[ToTokenizer] = ZmqOutbox(context, endpoints.of("tokenizer"))
    executor = MultiprocExecutor(
        context, [endpoints.of("runner-0")], endpoints.of("answers"),
        mask_path=endpoints.masks, max_rows=config.scheduler.max_running_requests,
    )  # fmt: skip
    ready = executor.wait_ready(config.executor.start_timeout_s)
    loop = parts.make_scheduler_loop(config, settings, ready, executor, inbox, to_tokenizer, inbox.socket)
    _settle()
    while True:
        loop.run_once(wait=True)


def run_runner(config: Config, settings: EngineSettings, endpoints: Endpoints, context: zmq.Context[Any]) -> None:
    inbox: ZmqInbox[ToRunner] = ZmqInbox(context, endpoints.of("runner-0"), ToRunner)
    answers: ZmqOutbox[FromRunner] = ZmqOutbox(context, endpoints.of("answers"))
    worker = parts.make_runner_worker(config, settings, answers, mask_path=endpoints.masks)
    worker.start()
    _settle()
    idle_work = True
    while True:
        # While the device owes an answer this spins: whichever comes first, the answer or a message, is taken at once.
        message = inbox.recv(0.0 if worker.is_waiting else IDLE_BEFORE_WORK_S if idle_work else None)
        if message is not None:
            worker.handle(message)
        elif worker.is_waiting:
            worker.answer_ready()
        else:
            idle_work = worker.idle_work()


def _settle() -> None:
    """What exists after start-up lives as long as the process: the garbage collector need not walk it again."""
    gc.collect()
    gc.freeze()


RUN: dict[str, Callable[[Config, EngineSettings, Endpoints, zmq.Context[Any]], None]] = {
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
    last_words = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    line = sys.stdin.readline()
    if not line:
        return 0
    given = json.loads(line)
    config = make_config(**given["config"])
    settings = EngineSettings(**{**given["settings"], "eos_ids": tuple(given["settings"]["eos_ids"])})
    logging.basicConfig(
        level=config.server.log_level.upper(), format=f"%(asctime)s %(levelname)s {NAMES[kind]}: %(message)s"
    )
    threading.Thread(target=_exit_with_launcher, args=(given["folder"],), daemon=True).start()
    try:
        RUN[kind](config, settings, Endpoints(given["folder"]), zmq.Context())
    except RadixRTError as error:
        last_words.write(json.dumps(f"{error}") + "\n")
    except Exception as error:
        logging.exception("the %s stopped on a defect", NAMES[kind])
        last_words.write(json.dumps(f"{type(error).__name__}: {error}") + "\n")
    last_words.flush()
    os._exit(1)  # not sys.exit: threads of libraries and unsent messages must not keep a failed worker alive


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
