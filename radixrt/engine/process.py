"""Entry point of the worker processes. `WorkerProcess` runs this module with a kind of worker as its argument and the
settings on stdin.

A worker exits when its main process exits: the main process has the other end of the worker's stdin, and the worker
exits when stdin closes for any reason. The kernel kills a worker that is stopped or stuck. A worker that fails reports
the error to the main process as a JSON line on the original stdout; all other output goes to stderr.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import json
import logging
import math
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import zmq

from radixrt.channel import Inbox, Outbox, TaggedInbox, TaggedOutbox, ZmqInbox, ZmqOutbox
from radixrt.config import Config, make_config
from radixrt.distributed.rank_info import RankInfo, answering_rank, rank_from_environment
from radixrt.engine import assembly
from radixrt.engine.endpoints import MISTAKE, Endpoints, process_name
from radixrt.engine.settings import EngineSettings
from radixrt.errors import ConfigError, ModelLoadError, RadixRTError
from radixrt.heartbeat import Heartbeat, open_heartbeat
from radixrt.logs import configure_logging
from radixrt.messages.client import ToMain, ToTokenizer
from radixrt.messages.fleet import FromReplica, ToRouter
from radixrt.messages.runner import FromRunner, ToRunner
from radixrt.messages.scheduler import SchedulerReady, ToScheduler
from radixrt.parts.tiers.settings import TierSettings
from radixrt.portable import Wake
from radixrt.start_log import StartLog

if TYPE_CHECKING:
    from radixrt.executor.base import Executor


class EpochNotices:
    """Reads the main process's notices from stdin, which inform a ModelRunner that outlives its scheduler of the next
    epoch, and a scheduler of the end of the engine. Exits the process when stdin closes.

    Attributes:
        epoch: current epoch of the supervisor.
        save_s: seconds that a scheduler has for saving prefixes, after which it exits; None until the engine ends.
        ending: set once `save_s` is set.
    """

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.save_s: float | None = None
        self.ending = Wake()
        threading.Thread(target=self._read, name="radixrt-stdin", daemon=True).start()

    def ended(self, epoch: int) -> bool:
        return self.epoch != epoch

    def _read(self) -> NoReturn:
        with contextlib.suppress(OSError, ValueError):
            for line in sys.stdin:
                notice = json.loads(line)
                self.epoch = notice.get("epoch", self.epoch)
                if "save_s" in notice:
                    self.save_s = notice["save_s"]
                    self.ending.set()
        os._exit(0)


@dataclass(frozen=True)
class WorkerSetup:
    """Configuration and place of one worker process.

    Attributes:
        rank: rank of a ModelRunner; unused in other processes.
        replica: number of the replica that the process belongs to, if there are replicas.
        heartbeat: this process's heartbeat; the main process expects the first beat after `loaded`.
        start_log: start log of this process, in its first phase.
        tiers: memory of the group's tiers besides the KV pool; None without.
        has_torch: `load_torch` was called.
    """

    config: Config
    settings: EngineSettings
    endpoints: Endpoints
    context: zmq.Context[Any]
    rank: int
    replica: int | None
    notices: EpochNotices
    heartbeat: Heartbeat
    start_log: StartLog
    tiers: TierSettings | None
    has_torch: bool

    def loaded(self) -> None:
        """Begin the main loop: report progress from now on."""
        # Exclude all objects that exist after start-up from garbage collection. Do not collect before: the first
        # requests may be waiting, and a collection takes a ModelRunner a tenth of a second to free a megabyte.
        gc.freeze()
        gc.enable()
        self.start_log.ready()
        self.heartbeat.expect(self.config.recovery.hang_timeout_s)


def run_tokenizer(setup: WorkerSetup) -> NoReturn:
    from radixrt.tokenizer.loop import serve

    endpoints, context, epoch = setup.endpoints, setup.context, setup.notices.epoch
    inbox: ZmqInbox[ToTokenizer] = ZmqInbox(context, endpoints.of("tokenizer", epoch), ToTokenizer)
    core = "scheduler" if setup.config.executor.replicas is None else "router"
    to_scheduler: ZmqOutbox[ToScheduler] = ZmqOutbox(context, endpoints.of(core, epoch))
    to_main: ZmqOutbox[ToMain] = ZmqOutbox(context, endpoints.of("main", epoch))
    setup.start_log.begin("tokenizer")
    worker = assembly.make_tokenizer(
        setup.config, setup.settings, to_scheduler, to_main, threaded=True, image_folder=endpoints.images
    )
    setup.loaded()
    serve(worker, inbox, setup.heartbeat)


def run_router(setup: WorkerSetup) -> NoReturn:
    from radixrt.router.loop import RouterLoop
    from radixrt.router.placement import Placement
    from radixrt.router.router import Router

    config, endpoints, context, epoch = setup.config, setup.endpoints, setup.context, setup.notices.epoch
    inbox: ZmqInbox[ToRouter] = ZmqInbox(context, endpoints.of("router", epoch), ToRouter)
    replies: TaggedInbox[FromReplica] = TaggedInbox(context, endpoints.replies(epoch), FromReplica)
    to_tokenizer: ZmqOutbox[ToTokenizer] = ZmqOutbox(context, endpoints.of("tokenizer", epoch))
    scheduler = config.scheduler
    router = Router(
        context_length=setup.settings.context_length,
        request_timeout_s=scheduler.request_timeout_s,
        max_queue_wait_s=scheduler.max_queue_wait_s,
        max_queued_requests=scheduler.max_queued_requests,
        stall_s=config.recovery.replica_stall_s,
        seed=config.executor.random_seed,
        first_epoch=(epoch << 32) + 1,
        placement=Placement(moves=config.cache.kv_host_gib > 0),
    )
    loop = RouterLoop(
        router,
        inbox,
        replies,
        to_tokenizer,
        lambda endpoint: TaggedOutbox(context, endpoint),
        epoch=epoch,
        chunked_prefill_size=scheduler.chunked_prefill_size,
        max_gap_s=scheduler.max_gap_s,
    )
    setup.loaded()
    loop.serve(setup.heartbeat.beat)


def run_scheduler(setup: WorkerSetup) -> NoReturn:
    epoch = setup.notices.epoch
    inbox, outbox, socket = _scheduler_channels(setup, epoch)
    executor = _make_executor(setup, epoch)
    setup.start_log.begin("scheduler")
    config = setup.config
    if setup.replica is not None:
        # The router refuses requests that would wait too long. A replica accepts every request that the router sends.
        scheduler = dataclasses.replace(config.scheduler, max_queue_wait_s=math.inf)
        config = dataclasses.replace(config, scheduler=scheduler)
    loop = assembly.make_scheduler_loop(
        config,
        setup.settings,
        executor,
        inbox,
        outbox,
        socket,
        epoch=epoch,
        tiers=setup.tiers,
        image_links=setup.endpoints.image_links,
    )
    loop.wake_by(setup.notices.ending.fileno())
    setup.loaded()
    while (save_s := setup.notices.save_s) is None:
        loop.run_once(wait=True)
        setup.heartbeat.beat()
    loop.save(save_s)
    os._exit(0)


def _scheduler_channels(setup: WorkerSetup, epoch: int) -> tuple[Inbox[ToScheduler], Outbox[ToTokenizer], Any]:
    """Inbox and outbox of the scheduler, and the socket to wait for."""
    endpoints, context = setup.endpoints, setup.context
    if setup.replica is None:
        inbox: ZmqInbox[ToScheduler] = ZmqInbox(context, endpoints.of("scheduler", epoch), ToScheduler)
        return inbox, ZmqOutbox(context, endpoints.of("tokenizer", epoch)), inbox.socket
    from radixrt.scheduler.router_link import RouterLink

    tagged: TaggedInbox[ToScheduler] = TaggedInbox(context, endpoints.of("scheduler", epoch), ToScheduler)
    to_main: ZmqOutbox[SchedulerReady] = ZmqOutbox(context, endpoints.of("main", epoch))
    link = RouterLink(tagged, lambda endpoint: TaggedOutbox(context, endpoint), to_main)
    return link, link, tagged.socket


def _make_executor(setup: WorkerSetup, epoch: int) -> Executor:
    from radixrt.executor.external_executor import ExternalLauncherExecutor
    from radixrt.executor.multiproc_executor import MultiprocExecutor, RankEndpoints
    from radixrt.executor.ray_executor import RayDistributedExecutor

    endpoints, size = setup.endpoints, setup.settings.num_ranks
    answering = answering_rank(size, setup.settings.stages)
    if setup.config.executor.executor == "external":
        return ExternalLauncherExecutor(
            setup.context,
            endpoints.runner(0, epoch),
            endpoints.answers(epoch),
            mask_path=endpoints.masks,
            host=os.environ["MASTER_ADDR"],
            size=size,
            address_file=endpoints.addresses,
        )

    if setup.config.executor.executor == "ray":
        host = endpoints.read_cluster_host(setup.config.executor.start_timeout_s)
        return RayDistributedExecutor(
            setup.context, host=host, size=size, address_file=endpoints.rank_addresses, epoch=epoch, answering=answering
        )

    def of_epoch(epoch: int) -> RankEndpoints:
        return RankEndpoints([endpoints.runner(rank, epoch) for rank in range(size)], endpoints.answers(epoch))

    return MultiprocExecutor(setup.context, of_epoch, epoch=epoch, mask_path=endpoints.masks, answering=answering)


def load_torch(start_log: StartLog) -> None:
    """Import what a ModelRunner needs."""
    start_log.begin("torch")
    import radixrt.parts.reads.runner
    import radixrt.runner.worker  # noqa: F401


def run_runner(setup: WorkerSetup) -> NoReturn:
    from radixrt.runner.cuda_context import begin_context

    if not setup.has_torch:
        if setup.config.executor.device != "cpu" and setup.config.executor.executor != "external":
            begin_context(_local_rank(setup))
        load_torch(setup.start_log)
    from radixrt.runner.step_allowance import StepAllowance
    from radixrt.runner.worker import serve_steps

    config, endpoints, notices = setup.config, setup.endpoints, setup.notices
    epoch = notices.epoch
    inbox, answers = _runner_channels(setup, epoch)
    rank_info = _rank_info(setup, epoch)
    worker = assembly.make_runner_worker(
        config,
        setup.settings,
        answers,
        rank_info,
        mask_path=endpoints.masks,
        progress=setup.heartbeat.beat,
        start_log=setup.start_log,
        tiers=setup.tiers,
    )
    allowance = StepAllowance(
        config.recovery.hang_timeout_s, config.executor.step_timeout_s, compiles=worker.compiles_kernels
    )
    worker.start(setup.heartbeat, allowance)
    setup.loaded()
    while True:
        serve_steps(worker, inbox, setup.heartbeat, allowance, until=functools.partial(notices.ended, epoch))
        # The scheduler was restarted: connect to the new one, with the model and the pools still loaded.
        epoch = notices.epoch
        inbox.close()
        answers.close()
        inbox, answers = _runner_channels(setup, epoch)
        worker.reconnect(answers)


def _runner_channels(setup: WorkerSetup, epoch: int) -> tuple[ZmqInbox[ToRunner], ZmqOutbox[FromRunner]]:
    return (
        ZmqInbox(setup.context, setup.endpoints.runner(setup.rank, epoch), ToRunner),
        ZmqOutbox(setup.context, setup.endpoints.answers(epoch)),
    )


def _rank_info(setup: WorkerSetup, epoch: int) -> RankInfo:
    config, endpoints, settings = setup.config, setup.endpoints, setup.settings
    timeout_s = config.executor.start_timeout_s
    if config.executor.executor == "external":
        from radixrt.engine.external import publish_addresses

        rank_info = rank_from_environment(os.environ, timeout_s, settings.stages)
        publish_addresses(rank_info, endpoints.addresses)
    else:
        size, store = settings.num_ranks, endpoints.ranks(epoch)
        rank_info = RankInfo(
            setup.rank,
            size,
            _local_rank(setup),
            size * (config.executor.replicas or 1),
            store,
            timeout_s,
            stages=settings.stages,
        )
    return dataclasses.replace(rank_info, one_shot=config.executor.all_reduce == "one_shot")


def _local_rank(setup: WorkerSetup) -> int:
    """Return the index of this ModelRunner's device. Replicas use consecutive devices, ordered by their numbers."""
    return (setup.replica or 0) * setup.settings.num_ranks + setup.rank


RUN: dict[str, Callable[[WorkerSetup], NoReturn]] = {
    "tokenizer": run_tokenizer,
    "router": run_router,
    "scheduler": run_scheduler,
    "runner": run_runner,
}


@contextlib.contextmanager
def report_errors(name: str) -> Iterator[None]:
    """Redirect stdout to stderr; report an exception as one JSON line on the original stdout, and end the process.

    The exit code is MISTAKE where an option or the model is at fault, else 1.
    """
    error_report = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    code = 1
    try:
        yield
        return
    except RadixRTError as error:
        code = MISTAKE if isinstance(error, (ConfigError, ModelLoadError)) else 1
        error_report.write(json.dumps(f"{error}") + "\n")
    except Exception as error:
        logging.exception("the %s stopped on a defect", name)
        error_report.write(json.dumps(f"{type(error).__name__}: {error}") + "\n")
    error_report.flush()
    os._exit(code)  # not sys.exit: library threads and unsent messages must not keep a failed worker alive


def _read_message() -> dict[str, Any]:
    """Read a message of the main process; exit where stdin is closed."""
    line = sys.stdin.readline()
    if not line:
        sys.exit()
    message: dict[str, Any] = json.loads(line)
    return message


def main(kind: str) -> None:
    gc.disable()  # until all is loaded: a quarter of the time of importing torch would be garbage collection
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the main process decides
    with report_errors(kind):
        start_log = StartLog()
        given = _read_message()
        has_torch = "early" in given
        if has_torch:  # the settings follow
            load_torch(start_log)
            start_log.begin("settings")
            given = _read_message()
        replica: int | None = given["replica"]
        config = make_config(**given["config"])
        settings = EngineSettings.from_dict(given["settings"])
        configure_logging(config.server.log_level, process_name(kind, replica), format=config.server.log_format)
        base, _, rank = kind.partition("-")
        setup = WorkerSetup(
            config,
            settings,
            Endpoints(given["folder"]),
            zmq.Context(),
            int(rank or 0),
            replica,
            EpochNotices(given["epoch"]),
            open_heartbeat(Endpoints(given["folder"]).heartbeats, given["slot"]),
            start_log,
            None if given["tiers"] is None else TierSettings(**given["tiers"]),
            has_torch=has_torch,
        )
        RUN[base](setup)


if __name__ == "__main__":
    main(sys.argv[1])
