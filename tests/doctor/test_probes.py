"""The doctor on this machine: real processes, and probes that fail in every way."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from radixrt.doctor import probes
from radixrt.doctor.probes import Prober, ask_child
from radixrt.kernels.prebuilt import FOLDER
from radixrt.kernels.threads import pick_threads
from tests.tiny_models import make_tiny_model


def doctor(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "radixrt", "doctor", *arguments], capture_output=True, text=True, timeout=240,
        env={**os.environ, **environment},
    )  # fmt: skip


def test_on_the_cpu_of_this_machine() -> None:
    result = doctor("--device", "cpu", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    said = json.loads(result.stdout)
    facts = said["facts"]
    assert said["works"] is True
    assert facts["torch"].startswith("2.")
    assert facts["cores"] >= 1
    assert facts["memory_total"] > facts["memory_free"] > 0
    assert facts["cpu_kernels"] == ""
    assert facts["kernel_features"]
    assert facts["kernels_prebuilt"] is FOLDER.is_dir()
    assert facts["threads"] == pick_threads(None)
    assert facts["packages"]["numpy"] is not None
    assert facts["unknown"] == {}


def test_a_model_with_the_bandwidth_of_this_machine(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "m", "llama")
    result = doctor("--device", "cpu", "--model", str(path), "--quantization", "int8", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    facts = json.loads(result.stdout)["facts"]
    assert facts["bandwidth"]["cpu"] > 1e8
    assert (facts["checkpoint"], facts["model"]["scheme"]) == ("", "int8 rows")
    assert 0 < facts["model"]["step_bytes"] < facts["model"]["weight_bytes"]
    assert facts["unknown"] == {}


def test_as_text_and_with_no_cache_folder(tmp_path: Path) -> None:
    # Without a compiler, so that no kernels are compiled for that folder.
    result = doctor("--device", "cpu", RADIXRT_CACHE=str(tmp_path / "none" / "yet"), PATH=str(tmp_path), CXX="")
    assert result.returncode == 0
    assert f"{tmp_path / 'none' / 'yet' / 'grammars'}: compiled grammars, 0.0 MiB" in result.stdout
    assert "Serving works here, on the CPU." in result.stdout


def test_what_was_asked_for_and_cannot_work_is_exit_code_1() -> None:
    result = doctor("--device", "cpu", "--attention-backend", "flashinfer")
    assert result.returncode == 1
    assert "error: the attention backend flashinfer needs a CUDA device" in result.stdout
    assert "Serving does not work here as asked for." in result.stdout


def test_a_wrong_option_is_one_line() -> None:
    result = doctor("--device", "tpu")
    assert (result.returncode, result.stdout) == (2, "")
    assert "--device" in result.stderr


def test_without_a_path_no_tool_is_found_and_the_doctor_still_answers(tmp_path: Path) -> None:
    result = doctor("--device", "cpu", "--json", PATH=str(tmp_path), CXX="", RADIXRT_CACHE=str(tmp_path / "cache"))
    facts = json.loads(result.stdout)["facts"]
    assert facts["compiler"] is None
    assert "no C++ compiler" in facts["cpu_kernels"]
    assert facts["installer"] is None
    assert result.returncode == 0


# --- probes that fail ---


def test_a_probe_that_raises_is_unknown() -> None:
    prober = Prober()

    def fails() -> int:
        raise OSError("no such thing")

    assert prober.ask("x", fails, 7) == 7
    assert prober.ask("y", lambda: 8, 7) == 8
    assert prober.unknown == {"x": "OSError: no such thing"}


CHILD = """
import json, os, sys, time
for name in sys.argv[1:]:
    print("a library says hello")
    if name == "crashes":
        os.kill(os.getpid(), 11)
    if name == "exits":
        os._exit(3)
    if name == "hangs":
        time.sleep(600)
    print(json.dumps({"probe": name, "version": "1"}), flush=True)
"""


@pytest.fixture
def fake_child(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "child.py"
    script.write_text(CHILD)
    start = subprocess.Popen

    def popen(command: list[str], **options: object) -> object:
        # Only the child that begins with the hanging probe is ended, be the machine as slow as it may.
        monkeypatch.setattr(probes, "CHILD_TIMEOUT_S", 0.5 if command[4] == "hangs" else 240.0)
        return start([command[0], str(script), *command[4:]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(probes.subprocess, "Popen", popen)


def test_a_child_says_one_line_for_each_library() -> None:
    unknown: dict[str, str] = {}
    answers = ask_child(["msgspec", "no-such-package"], unknown)
    assert answers == {"msgspec": {}, "no-such-package": {"missing": True}}
    assert unknown == {}


@pytest.mark.usefixtures("fake_child")
def test_a_probe_that_ends_its_process_costs_only_its_own_answer() -> None:
    unknown: dict[str, str] = {}
    answers = ask_child(["a", "crashes", "b", "exits", "hangs", "c"], unknown)
    assert answers == {name: {"version": "1"} for name in "abc"}
    assert unknown == {
        "crashes": "the probing process was ended by signal 11",
        "exits": "the probing process ended with 3",
        "hangs": "the probing process was ended by signal 9",
    }


def test_everything_fails_and_there_are_still_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> object:
        raise RuntimeError("broken")

    for name in ("_cpu", "_memory", "_driver", "_tool", "_caches", "_version", "_flashinfer_folder", "ask_child"):
        monkeypatch.setattr(probes, name, broken)
    facts = probes.gather(device="auto", attention_backend="auto")
    assert {"CPU", "memory", "driver", "nvcc", "C++", "libraries", "numpy"} <= set(facts.unknown)


def test_a_driver_by_nvidia_smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '580.65.06, NVIDIA H200, 143771 MiB'\necho '580.65.06, NVIDIA H200, 143771 MiB'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert probes._driver() == ("580.65.06", ("NVIDIA H200, 143771 MiB",) * 2)


def test_versions_of_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "cuda" / "bin"
    folder.mkdir(parents=True)
    nvcc = folder / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.48'\n")
    nvcc.chmod(0o755)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    found = probes._tool(["nvcc"], [str(folder)], r"release ([\d.]+)")
    assert found is not None
    assert (found.path, found.version) == (str(nvcc), "13.0")
    assert probes._tool(["no-such-tool"], [str(folder)]) is None


def test_sizes_and_what_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "x.so").write_bytes(b"12345")
    (tmp_path / "a" / "y.txt").write_bytes(b"123")
    assert probes._size(tmp_path) == 8
    assert probes._size(tmp_path, suffix=".so") == 5
    assert probes._size(tmp_path / "none") == 0
    assert probes._writable(tmp_path / "none" / "yet")
    assert not probes._writable(tmp_path / "a" / "x.so")
