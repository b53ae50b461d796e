"""A wheel of `make wheel` in an environment without a compiler: it generates text with the kernels that it brings."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ("radixrt", "pyproject.toml", "setup.py", "Makefile", "README.md", "LICENSE", "default-model.txt")
PROMPT = "What is the capital of France?"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment with the wheel, and with the libraries of this environment, but not radixrt."""
    source, made = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("environment")
    for name in SOURCE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    # With this value pip builds in this environment, and downloads nothing. It must not find radixrt on PYTHONPATH.
    building = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    building["PIP_NO_BUILD_ISOLATION"] = "false"
    command = ["make", "wheel", f"BIN={Path(sys.executable).parent}"]
    built = subprocess.run(command, cwd=source, env=building, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (source / "dist").glob("radixrt-*.whl")
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    assert not wheel.name.endswith("-any.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(made)], check=True)
    python = str(made / "bin" / "python")
    install = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, str(wheel)], check=True, env=building)
    (site,) = made.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib"))  # of radixrt it has at most a finder, not used
    return made / "bin"


@pytest.fixture
def run(environment: Path, tmp_path: Path) -> Run:
    """Runs the installed command where no compiler is on the PATH, with an empty cache."""

    def run(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        variables = {name: value for name, value in os.environ.items() if name not in ("CXX", "PYTHONPATH")}
        variables |= {"PATH": str(environment), "RADIXRT_CACHE": str(tmp_path / "cache")}
        command = [str(environment / "radixrt"), *arguments]
        return subprocess.run(command, check=check, cwd=tmp_path, env=variables, capture_output=True, text=True)

    return run


@pytest.mark.timeout(1800)  # six libraries are compiled, in two minutes of processor time
def test_the_embedded_model_answers_by_prebuilt_kernels(run: Run, tmp_path: Path) -> None:
    ran = run("generate", PROMPT, "--max-tokens", "12", "--dtype", "bfloat16")
    assert ran.stdout.strip() == "The capital of France is Paris."
    assert ran.stderr == ""
    assert not list((tmp_path / "cache").rglob("*.so"))


@pytest.mark.timeout(1800)
def test_without_libraries_for_the_machine_the_warning_names_the_fix(run: Run, environment: Path) -> None:
    (folder,) = environment.parent.glob("lib/python*/site-packages/radixrt/kernels/prebuilt")
    hidden = folder.rename(folder.with_name("hidden"))
    try:
        report = json.loads(run("doctor", "--json", "--device", "cpu", check=False).stdout)
    finally:
        hidden.rename(folder)
    (finding,) = [each for each in report["findings"] if "CPU kernels" in each["what"]]
    assert "no C++ compiler was found" in finding["what"]
    assert "make wheel" in finding["what"]
