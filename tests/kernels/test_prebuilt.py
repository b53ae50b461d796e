"""Kernels that a wheel brings: the level of a processor, the features that it has, libraries of another source."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from radixrt.kernels import build, prebuilt
from radixrt.kernels.build import KernelUnavailable, load_kernels
from radixrt.kernels.prebuilt import AMX, AVX2, AVX512, BF16, LEVELS, VNNI, cpu_features, find_prebuilt, library_name

LEVELS_HERE = LEVELS["x86_64"]


@pytest.fixture
def wheel(cache_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of an installation whose libraries, of all levels, are copies of the library of this machine."""
    load_kernels(cache_folder / "kernels")
    load_kernels.cache_clear()  # a library that has just been compiled has the name of a file that is gone
    library = load_kernels(cache_folder / "kernels")._name
    for level in LEVELS_HERE:
        shutil.copy(library, tmp_path / library_name(level, build.source_hash()))
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.setattr(prebuilt.platform, "machine", lambda: "x86_64")
    load_kernels.cache_clear()
    return tmp_path


@pytest.mark.parametrize(
    ("features", "level"),
    [
        (AMX, "x86-64-amx"),
        (AMX - {"amx_bf16"}, "x86-64-avx512-bf16"),
        (BF16, "x86-64-avx512-bf16"),
        (VNNI, "x86-64-avx512-vnni"),
        (AVX512, "x86-64-v4"),
        (AVX512 - {"avx512vl"}, "x86-64-v3"),
        (AVX2, "x86-64-v3"),
        (AVX2 - {"fma"}, "x86-64"),
        (frozenset(), "x86-64"),
    ],
)
def test_a_processor_gets_the_highest_level_that_it_supports(
    wheel: Path, monkeypatch: pytest.MonkeyPatch, features: frozenset[str], level: str
) -> None:
    monkeypatch.setattr(prebuilt, "cpu_features", lambda library: features)
    found = find_prebuilt(build.source_hash())
    assert found is not None
    assert found.stem.removeprefix(f"cpu-{build.source_hash()}-") == level


def test_prebuilt_kernels_are_loaded_and_nothing_is_compiled(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "_compile", lambda scratch: pytest.fail("compiled"))
    library = load_kernels(tmp_path / "cache")
    assert Path(library._name).parent == wheel
    assert library.radixrt_query_block() > 0
    assert not (tmp_path / "cache").exists()


def test_a_library_of_another_source_is_not_loaded(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in wheel.glob("*.so"):
        library.rename(library.with_name(library.name.replace(build.source_hash(), "0" * 16)))
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    with pytest.raises(KernelUnavailable, match=r"no C\+\+ compiler.*brings no kernels for x86_64.*make wheel"):
        load_kernels(tmp_path / "cache")


def test_every_process_computes_the_same_hash() -> None:
    code = "from radixrt.kernels.build import source_hash; print(source_hash())"
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert ran.stdout.strip() == build.source_hash()


def test_features_are_those_that_linux_reports(cache_folder: Path) -> None:
    reported = Path("/proc/cpuinfo")
    features = cpu_features(load_kernels(cache_folder / "kernels"))
    if LEVELS.get(prebuilt.platform.machine()) == LEVELS_HERE and reported.exists():
        (line, *_) = [line for line in reported.read_text().splitlines() if line.startswith("flags")]
        listed, tiles = AMX & set(line.partition(":")[2].split()), AMX - BF16
        assert features - tiles == listed - tiles
        assert features & tiles in (listed & tiles, frozenset())  # a system may list tiles that it does not save
    else:
        assert features == frozenset()
