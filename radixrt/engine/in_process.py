"""`InProcessEngine`: tokenizer, scheduler and runner in one thread of the caller's process.

The components and messages are those of the multi-process engine. Meant for notebooks, debugging and tests.
"""

from __future__ import annotations

import logging
import queue
import threading

from radixrt.channel import LocalChannel
from radixrt.client.engine_client import EngineClient
from radixrt.config import Config
from radixrt.engine import assembly
from radixrt.engine.endpoints import Endpoints
from radixrt.engine.engine_folder import EngineFolder, remove_stale_folders
from radixrt.engine.settings import EngineSettings
from radixrt.engine.tier_memory import SAVE_S, TierMemory, open_tiers
from radixrt.errors import ConfigError, EngineError, ModelLoadError
from radixrt.executor.uniproc_executor import UniProcExecutor
from radixrt.messages.client import ToMain, ToTokenizer
from radixrt.messages.runner import FromRunner
from radixrt.messages.scheduler import ToScheduler

logger = logging.getLogger(__name__)


class _ThreadInbox:
    """Queue of the client's messages, which the engine's thread reads."""

    def __init__(self) -> None:
        self.messages: queue.SimpleQueue[ToTokenizer | None] = queue.SimpleQueue()

    def send(self, message: ToTokenizer) -> None:
        self.messages.put(message)

    def close(self) -> None:
        self.messages.put(None)


class _ToClient:
    """Outbox of the tokenizer that passes messages directly to the client."""

    def __init__(self) -> None:
        self.client: EngineClient | None = None

    def send(self, message: ToMain) -> None:
        if self.client is not None:
            self.client.dispatch(message)

    def close(self) -> None: ...


class InProcessEngine:
    """Engine in one thread, with the interface of `Launcher`.

    Args:
        encode: encode and decode every message, as between processes; for tests.
    """

    replicas = None

    def __init__(self, config: Config, settings: EngineSettings, *, encode: bool = False) -> None:
        self._config = config
        self._settings = settings
        self._encode = encode
        self._folder: EngineFolder | None = None
        self._tiers: TierMemory | None = None
        if config.cache.kv_host_gib or settings.vision is not None:
            remove_stale_folders()
            self._folder = EngineFolder()
        if config.cache.kv_host_gib and self._folder is not None:
            self._tiers = open_tiers(config, settings, Endpoints(self._folder.path))
        self._inbox = _ThreadInbox()
        self.client = EngineClient(self._inbox)
        self._thread = threading.Thread(target=self._run, name="radixrt-engine", daemon=True)
        self._stopping = False
        self._no_save = False

    @property
    def pids(self) -> dict[str, int]:
        return {}

    def start(self) -> EngineClient:
        """Start the thread and wait until the engine is ready; raises EngineError if the model cannot be loaded."""
        self._thread.start()
        while not self.client.ready.wait(0.02):
            if (failure := self.client.failure) is not None:
                self.close()
                raise EngineError(failure)
        return self.client

    def close(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._inbox.close()
        try:
            self._thread.join()
        except KeyboardInterrupt:
            self._no_save = True
            self._thread.join()
        self.client.fail("the engine was shut down")
        if self._tiers is not None:
            self._tiers.close()
        if self._folder is not None:
            self._folder.remove()

    def _run(self) -> None:
        try:
            self._serve()
        except (ConfigError, ModelLoadError) as error:
            self.client.fail(str(error))
        except Exception as error:
            logger.exception("the engine stopped")
            self.client.fail(f"{type(error).__name__}: {error}")

    def _serve(self) -> None:
        def channel(kind: object) -> LocalChannel:  # type: ignore[type-arg]
            return LocalChannel(kind if self._encode else None)

        to_main = _ToClient()
        to_main.client = self.client
        to_scheduler = channel(ToScheduler)
        to_tokenizer = channel(ToTokenizer)
        answers = channel(FromRunner)
        tiers = None if self._tiers is None else self._tiers.settings
        executor = UniProcExecutor(
            assembly.make_runner_worker(self._config, self._settings, answers, tiers=tiers),
            answers,
            encode=self._encode,
        )
        images = "" if self._folder is None else Endpoints(self._folder.path).images
        tokenizer = assembly.make_tokenizer(self._config, self._settings, to_scheduler, to_main, image_folder=images)
        loop = assembly.make_scheduler_loop(
            self._config, self._settings, executor, to_scheduler, to_tokenizer, tiers=tiers
        )
        busy = True
        while not self._stopping:
            while (message := self._next(wait=not busy)) is not None:
                tokenizer.handle(message)
                busy = True
            busy = loop.run_once(wait=False)
            while (reply := to_tokenizer.recv()) is not None:
                tokenizer.handle(reply)
                busy = True
        if tiers is not None and tiers.disk:
            loop.save(SAVE_S, lambda: self._no_save)
        loop.close()
        executor.close()

    def _next(self, *, wait: bool) -> ToTokenizer | None:
        try:
            return self._inbox.messages.get(block=wait, timeout=0.05)
        except queue.Empty:
            return None
