"""`head_start`: starts the process of a CPU's ModelRunner before the settings of the engine are known.

Importing torch takes the process about a second. Meanwhile, the main process imports the server, finds or converts the
model, and starts the other workers.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from radixrt.config import ExecutorConfig
from radixrt.engine.settings import expected_device
from radixrt.engine.worker_process import WorkerProcess


@contextlib.contextmanager
def head_start(options: ExecutorConfig) -> Iterator[dict[str, WorkerProcess]]:
    """Start the ModelRunner of an engine that has a single one, on a CPU of this machine; do nothing for other engines.

    The kernel ends a worker together with the thread that started it, so only the main thread starts one.

    Yields:
        The started worker by its kind. The supervisor takes the worker out and sends the settings. At the end of the
        block, a worker that nobody has taken is ended.
    """
    early: dict[str, WorkerProcess] = {}
    if _has_single_cpu_runner(options) and threading.current_thread() is threading.main_thread():
        early["runner"] = WorkerProcess("runner", early=True)
    try:
        yield early
    finally:
        for worker in early.values():
            worker.kill()
            worker.close()


def _has_single_cpu_runner(options: ExecutorConfig) -> bool:
    is_single = options.executor == "mp" and options.cluster is None and options.replicas is None
    return is_single and options.tp * options.pp == 1 and expected_device(options) == "cpu"
