"""What the whole suite shares: an isolated cache folder, tiny models, and one real server on the embedded model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.tiny_models import make_tiny_model

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Converted models and compiled kernels of this run, apart from the user's. RADIXRT_TEST_CACHE keeps them."""
    kept = os.environ.get("RADIXRT_TEST_CACHE")
    folder = Path(kept) if kept else tmp_path_factory.mktemp("radixrt-cache")
    before = os.environ.get("RADIXRT_CACHE")
    os.environ["RADIXRT_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["RADIXRT_CACHE"]
    else:
        os.environ["RADIXRT_CACHE"] = before


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny random model by kind (llama, mistral, qwen2, qwen3), made once."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = make_tiny_model(tmp_path_factory.mktemp("models") / kind, kind)
        return made[kind]

    return get


class ServerProcess:
    """`radixrt launch` as a user runs it, on a free port."""

    def __init__(self, *arguments: str) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "radixrt", "launch", "--port", "0", *arguments],
            stderr=subprocess.PIPE,
            text=True,
            env=dict(os.environ),
        )
        self.url = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"is ready on (http://\S+)", line)
            if found:
                self.url = found.group(1)

    def wait_ready(self, timeout_s: float = 120) -> ServerProcess:
        deadline = time.monotonic() + timeout_s
        while not self.url:
            assert self.process.poll() is None, "the server did not start:\n" + "".join(self.lines)
            assert time.monotonic() < deadline, "the server is not ready:\n" + "".join(self.lines)
            time.sleep(0.05)
        return self

    def stop(self) -> int:
        """SIGTERM, and its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise


@pytest.fixture(scope="session")
def server(cache_folder: Path) -> Iterator[ServerProcess]:
    """One real server on the embedded model, in float32 so that what it says is known."""
    server = ServerProcess("--dtype", "float32", "--kv-cache-tokens", "16384", "--check-invariants").wait_ready()
    yield server
    code = server.stop()
    assert code == 0, "".join(server.lines[-50:])


@pytest.fixture(scope="session")
def server_url(server: ServerProcess) -> str:
    return server.url


@pytest.fixture(scope="session")
def model_name() -> str:
    return "smollm2-135m-instruct"
