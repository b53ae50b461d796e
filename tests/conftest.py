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
from tests.tiny_models import make_tiny_model

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["HF_HUB_OFFLINE"] = "1"
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

LONGEST = (
    "tests/process/test_chaos.py",
    "tests/equivalence/test_constrained.py",
    "tests/process/test_restarts.py",
    "tests/process/test_replicas.py",
    "tests/examples/test_programs.py",
    "tests/kernels/test_triton_tensor_parallel.py",
    "tests/server/test_pooling_servers.py",
    "tests/clients/test_replay.py",
    "tests/process/test_ray.py",
    "tests/server/openai_client/test_errors.py",
    "tests/server/openai_client/test_chats.py",
    "tests/server/test_messages_client.py",
    "tests/process/test_tensor_parallel.py",
    "tests/equivalence/test_smollm2.py",
    "tests/examples/test_language_doc.py",
    "tests/process/test_supervision.py",
    "tests/equivalence/test_tiny_models.py",
    "tests/equivalence/test_hybrid.py",
    "tests/server/test_structured_client.py",
    "tests/server/test_responses_client.py",
    "tests/server/test_tool_tokens.py",
    "tests/process/test_runner_recovery.py",
    "tests/kernels/test_triton_compiles.py",
    "tests/server/test_mutated_requests.py",
    "tests/constrained/compile/test_hostile_constraints.py",
    "tests/constrained/compile/test_workers.py",
    "tests/equivalence/test_tensor_parallel.py",
    "tests/equivalence/test_pipeline.py",
    "tests/test_cli.py",
    "tests/process/test_load.py",
    "tests/process/test_observability.py",
    "tests/doctor/test_probes.py",
    "tests/scheduler/test_overload.py",
    "tests/lang/backends/test_endpoint.py",
    "tests/lang/backends/test_default.py",
    "tests/constrained/test_maskbench.py",
    "tests/runner/test_narrowed_steps.py",
    "tests/examples/test_extract.py",
    "tests/engine/test_engine.py",
    "tests/engine/test_step_walk.py",
    "tests/examples/test_one_request.py",
    "tests/lang/backends/test_openai.py",
    "tests/equivalence/test_narrowed.py",
    "tests/scheduler/test_state_machine.py",
    "tests/equivalence/test_scoring.py",
    "tests/equivalence/test_embedding.py",
    "tests/constrained/schema/test_equivalence.py",
    "tests/equivalence/test_cascade.py",
    "tests/server/test_run.py",
    "tests/benchmarks/soak/test_soak.py",
    "tests/engine/test_skip_tokenizer.py",
    "tests/process/test_keys_and_tls.py",
    "tests/mem_cache/test_radix_cache_model.py",
    "tests/constrained/tags/test_tools.py",
    "tests/explain/test_command.py",
    "tests/lang/observe/test_replay.py",
    "tests/runner/test_memory.py",
    "tests/constrained/test_fuzz.py",
    "tests/lang/core/test_token_state.py",
    "tests/constrained/backends/test_rust_regex.py",
    "tests/models/loading/test_gguf.py",
    "tests/constrained/regex/test_algebra.py",
)
"""The slowest test files. Workers run them first, so that none is left for the end, when other workers are idle."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--mutated-requests", type=int, default=300, help="requests of tests/server/test_mutated_requests.py"
    )


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
def two_threads() -> Iterator[None]:
    """torch and the compiled kernels compute on two threads, whatever the machine has and earlier tests have left."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


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
