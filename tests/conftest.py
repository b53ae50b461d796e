"""Fixtures of the whole suite: an isolated cache folder, tiny models, and one real server on the embedded model."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.server_process import ServerProcess
from tests.tiers import LONGEST, ROOT, TIERS, tier_of
from tests.tiny_models import make_tiny_model

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
# Workers import nothing from the current folder. Those of the suite's own are found here.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
# Read when torch is loaded, which nothing has done yet. A step's threads wait for each other hundreds of times; were
# they to spin meanwhile, as is the default, they would take the cores from this suite's other processes.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each worker has a core; where threads are tested, the test says so

# The suite imports radixrt in hundreds of processes and its own 330 files in each worker. Where bytecode is not to be
# written, as in many containers, each of them would compile every module again: a third of a server's start.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Collecting makes millions of objects that live as long as the session; the collector would visit all of them again
# and again. It runs during the tests, over what they have made, and not as often as by default.
gc.disable()
GC_THRESHOLDS = (50_000, 10, 10)

# How fast a machine draws or checks an example is no verdict.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--mutated-pictures", type=int, default=2000, help="pictures of tests/process/test_mutated_pictures.py"
    )
    parser.addoption(
        "--mutated-requests", type=int, default=300, help="requests of tests/server/test_mutated_requests.py"
    )
    parser.addoption("--tier", choices=TIERS, help="collect only the tests of one tier (tests/tiers.py)")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `--tier`, a file of the other tier is not even imported."""
    tier = config.getoption("--tier")
    if tier is None or not collection_path.match("test_*.py"):
        return None
    return True if tier_of(collection_path.relative_to(ROOT).as_posix()) != tier else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In a worker of pytest-xdist, the longest files first; one by one, the order stays that of the tree."""
    if hasattr(config, "workerinput"):
        rank = {file: i for i, file in enumerate(LONGEST)}
        items.sort(key=lambda item: rank.get(item.nodeid.partition("::")[0], len(LONGEST)))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """$TMPDIR of this process and those it starts: what engines put there is seen by no other run or worker."""
    tmp_path_factory.getbasetemp()  # made where the user's $TMPDIR says, and kept
    folder = Path(tempfile.mkdtemp(prefix="suite-"))  # a short path, for it is part of the sockets' paths
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TMPDIR", str(folder))
        patch.setattr(tempfile, "tempdir", None)
        yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Converted models and compiled kernels of this run, apart from the user's. RADIXRT_TEST_CACHE keeps them.

    The workers of pytest-xdist share it, as servers of one user do.
    """
    kept = os.environ.get("RADIXRT_TEST_CACHE")
    base = tmp_path_factory.getbasetemp()
    run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = Path(kept) if kept else run / "radixrt-cache"
    folder.mkdir(parents=True, exist_ok=True)
    before = os.environ.get("RADIXRT_CACHE")
    os.environ["RADIXRT_CACHE"] = str(folder)
    yield folder
    if before is None:
        del os.environ["RADIXRT_CACHE"]
    else:
        os.environ["RADIXRT_CACHE"] = before


@pytest.fixture
def two_threads(cache_folder: Path) -> Iterator[None]:
    """torch and the compiled kernels compute on two threads, whatever the machine has and earlier tests have left."""
    import torch

    from radixrt.kernels.build import load_kernels
    from radixrt.kernels.threads import max_threads, set_threads

    library = load_kernels(cache_folder / "kernels")
    before = torch.get_num_threads(), max_threads(library)
    torch.set_num_threads(2)
    set_threads(library, 2)
    yield
    torch.set_num_threads(before[0])
    set_threads(library, before[1])


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny random model by kind (the tuples of tests/tiny_models), made once."""
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = make_tiny_model(tmp_path_factory.mktemp("models") / kind, kind)
        return made[kind]

    return get


@pytest.fixture(scope="session")
def server(cache_folder: Path) -> Iterator[ServerProcess]:
    """One real server on the embedded model, in float32 so that its output is known."""
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
