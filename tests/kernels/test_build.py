"""The compiled CPU kernels where the cache folder, or the whole disk, takes no file."""

from __future__ import annotations

import os
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from radixrt.kernels import build
from radixrt.kernels.build import KernelUnavailable, load_kernels
from tests.test_private_files import give_to_a_stranger

SMALL = ["--executor", "uni", "--num-threads", "1", "--dtype", "float32", "--kv-cache-tokens", "2048"]


@pytest.fixture
def compiled(cache_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Building is copying the library that this run has already built."""
    load_kernels(cache_folder / "kernels")
    (library,) = (cache_folder / "kernels").glob("cpu-*.so")
    monkeypatch.setattr(build, "_compile", lambda scratch: Path(shutil.copy(library, scratch)))


@pytest.mark.usefixtures("compiled")
def test_kernels_are_kept_for_the_next_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "new" / "kernels"
    load_kernels(folder)
    (kept,) = folder.iterdir()
    assert kept.suffix == ".so"
    assert caplog.messages == []


@pytest.mark.usefixtures("compiled")
def test_a_cache_that_takes_nothing_is_one_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = tmp_path / "file" / "kernels"
    assert load_kernels(folder).radixrt_query_block() > 0
    assert load_kernels(folder).radixrt_max_dim() > 0
    (line,) = caplog.messages
    assert "not kept for the next start" in line
    assert str(folder) in line


@pytest.mark.usefixtures("compiled")
def test_a_library_that_others_could_write_is_not_loaded(tmp_path: Path) -> None:
    folder = tmp_path / "kernels"
    load_kernels(folder)
    (library,) = folder.iterdir()
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, library)] == [0o700, 0o700]
    load_kernels.cache_clear()
    library.write_bytes(b"planted")
    library.chmod(0o777)
    folder.chmod(0o777)
    assert load_kernels(folder).radixrt_query_block() > 0
    assert library.read_bytes() != b"planted"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


@pytest.mark.usefixtures("compiled")
def test_kernels_in_a_strangers_folder_are_built_for_this_process_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "kernels"
    load_kernels(folder)
    (library,) = folder.iterdir()
    load_kernels.cache_clear()
    library.write_bytes(b"planted")
    give_to_a_stranger(folder, monkeypatch)
    assert load_kernels(folder).radixrt_query_block() > 0
    (line,) = caplog.messages
    assert "not kept for the next start" in line
    assert str(folder) in line


def test_a_temporary_folder_that_takes_nothing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build.tempfile, "tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(KernelUnavailable, match=r"temporary folder.*nowhere"):
        load_kernels(tmp_path / "kernels")


def test_generate_on_a_full_disk(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tiny_model("llama")
    arguments = ["generate", "hello", "--raw", "--max-tokens", "4", "--model", str(folder), *SMALL]
    # Python would leave the first 4 KiB of .pyc files beside the sources, which nothing could import any more.
    environment = {**os.environ, "RADIXRT_CACHE": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run(
        [sys.executable, "-m", "radixrt", *arguments], capture_output=True, text=True, timeout=240, env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096)),
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert len(ran.stdout) > 1
    assert ran.stderr.count("\n") == 1, ran.stderr
    assert "attention runs on plain torch operations" in ran.stderr
