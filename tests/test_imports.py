"""Imports of the package: no pickler anywhere, modules that do without torch or a web framework, and contracts."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

import radixrt

PACKAGE = Path(radixrt.__file__).parent
PICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}


@cache
def syntax_of(file: Path) -> list[ast.AST]:
    """The nodes of a file's syntax tree."""
    return list(ast.walk(ast.parse(file.read_text())))


def imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Top-level names of every module that a syntax tree imports, wherever the import stands."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
        elif isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            names |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return {name.partition(".")[0] for name in names}


def called(call: ast.Call) -> str:
    """The name of the called function, without the module or object it belongs to."""
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_the_search_for_imports_finds_each_form() -> None:
    source = (
        "def f():\n import pickle as p, os.path\n from dill.source import x\n importlib.import_module('marshal')\n"
        " __import__('cloudpickle')"
    )
    assert imported(ast.walk(ast.parse(source))) == {"pickle", "os", "dill", "marshal", "cloudpickle"}


def test_no_module_imports_a_pickler() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert PACKAGE / "engine" / "process.py" in files
    found = {str(f.relative_to(PACKAGE)): imported(syntax_of(f)) & PICKLERS for f in files}
    assert {name: names for name, names in found.items() if names} == {}


def test_no_module_sends_objects_through_zmq_or_multiprocessing() -> None:
    """`send_pyobj` and multiprocessing's queues and pipes pickle."""
    for file in PACKAGE.rglob("*.py"):
        names = {node.attr for node in syntax_of(file) if isinstance(node, ast.Attribute)}
        assert not names & {"send_pyobj", "recv_pyobj", "send_serialized"}, file
        assert "multiprocessing" not in imported(syntax_of(file)), file


def modules_of(package: str) -> list[str]:
    """Names of all modules of a package."""
    modules = [
        "radixrt." + ".".join(f.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__")
        for f in sorted((PACKAGE / package).rglob("*.py"))
    ]
    assert len(modules) > 4
    return modules


def import_without(modules: list[str], *missing: str) -> None:
    """Import modules in a process where the named modules cannot be imported at all."""
    code = (
        "import importlib, sys\n"
        f"for name in {missing!r}: sys.modules[name] = None\n"
        "for name in sys.argv[1:]: importlib.import_module(name)"
    )
    result = subprocess.run([sys.executable, "-c", code, *modules], capture_output=True, text=True, timeout=240)
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("package", ["scheduler", "mem_cache", "messages", "client"])
def test_packages_that_import_without_torch(package: str) -> None:
    import_without(modules_of(package), "torch")


def test_scheduler_ends_of_parts_import_without_torch() -> None:
    """Only a part's end in the runner may import torch."""
    ends = [module for module in modules_of("parts") if ".runner" not in module]
    assert "radixrt.parts.assembly" in ends
    import_without(ends, "torch")


def test_a_scheduler_starts_without_the_libraries_of_constraints() -> None:
    """On a CPU they are loaded once the engine is ready, because the ModelRunner needs the cores until then."""
    modules = ["engine.process", "executor.multiproc_executor", "parts.assembly", "scheduler.loop"]
    manager = "constrained.compile.grammar_manager"
    libraries = ("llguidance", "tokenizers", "jinja2", "radixrt.constrained.regex", "radixrt.constrained.vocabulary")
    import_without([f"radixrt.{name}" for name in (*modules, manager)], *libraries)


def test_the_contract_of_independent_parts_lists_all_parts() -> None:
    contracts = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    listed = [contract["modules"] for contract in contracts if contract["type"] == "independence"]
    folders = sorted(f.parent.name for f in (PACKAGE / "parts").glob("*/__init__.py"))
    assert listed == [[f"radixrt.parts.{name}" for name in folders]]


@pytest.mark.parametrize("package", ["lang", "chat"])
def test_packages_that_import_without_a_web_framework(package: str) -> None:
    import_without(modules_of(package), "starlette", "uvicorn")
