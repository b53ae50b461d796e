"""Probes whose imports may crash the process: `python -m radixrt.doctor.child PROBE ...` prints a JSON line for each.

If PROBES does not have a name, the probe imports the module of that name; a name that ends with `=FOLDER` is a probe of
FOLDER_PROBES. A line has the field "probe", and "error" if the import or the probe failed.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

MODULES = {"flashinfer-python": "flashinfer", "pyzmq": "zmq"}
"""Packages whose module has another name."""
READ_BYTES = {"cpu": 1 << 28, "cuda": 1 << 30}
READS = 5
"""Reads of a buffer, the fastest of which counts."""


def probe_torch() -> dict[str, Any]:
    import torch

    answer: dict[str, Any] = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": []}
    if torch.version.cuda is None:
        return answer
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
        for i in range(torch.cuda.device_count()):
            about = torch.cuda.get_device_properties(i)
            free, total = torch.cuda.mem_get_info(i)
            gpu = {"name": about.name, "major": about.major, "minor": about.minor, "total": total, "free": free}
            answer["gpus"].append(gpu)
    except Exception as error:
        answer["gpus"] = []
        answer["cuda_error"] = f"{type(error).__name__}: {error}".partition("\n")[0][:300]
    return answer


def probe_cpu_kernels() -> dict[str, Any]:
    """Loads the compiled CPU kernels, after building them where they are not in the cache."""
    from radixrt.kernels.build import load_kernels
    from radixrt.kernels.prebuilt import FOLDER, kernel_features
    from radixrt.models.loading.source import cache_folder

    library = load_kernels(cache_folder() / "kernels")
    return {"prebuilt": FOLDER in Path(library._name).parents, "features": kernel_features(library)}


def probe_bandwidth() -> dict[str, Any]:
    """Measures the bytes a second at which all threads of the CPU, and the current GPU, read their memory."""
    import torch

    answer: dict[str, Any] = {}
    with torch.inference_mode():
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            buffer = torch.ones(READ_BYTES[device] // 4, dtype=torch.float32, device=device)
            buffer.sum().item()
            seconds = []
            for _ in range(READS):
                started = time.perf_counter()
                buffer.sum().item()
                seconds.append(time.perf_counter() - started)
            answer[device] = int(buffer.nbytes / min(seconds))
    return answer


def probe_checkpoint(folder: str) -> dict[str, Any]:
    """Compares the tensors in a folder with the tensors that the model has according to config.json: names, shapes."""
    from radixrt.errors import RadixRTError
    from radixrt.models.loading.weights import check_checkpoint

    try:
        check_checkpoint(Path(folder))
    except RadixRTError as error:
        return {"problem": str(error)}
    return {"problem": ""}


PROBES: dict[str, Callable[[], dict[str, Any]]] = {
    "torch": probe_torch,
    "CPU kernels": probe_cpu_kernels,
    "memory bandwidth": probe_bandwidth,
}
FOLDER_PROBES: dict[str, Callable[[str], dict[str, Any]]] = {"checkpoint": probe_checkpoint}


def probe(name: str) -> dict[str, Any]:
    """The answer of one probe; "missing" in place of an error where the package itself is not installed."""
    module = MODULES.get(name, name)
    kind, _, folder = name.partition("=")
    try:
        if name in PROBES:
            return PROBES[name]()
        if kind in FOLDER_PROBES:
            return FOLDER_PROBES[kind](folder)
        importlib.import_module(module)
        return {}
    except Exception as error:
        if isinstance(error, ModuleNotFoundError) and error.name in (module, "torch"):
            return {"missing": True}
        return {"error": f"{type(error).__name__}: {error}".strip()[:300]}


def main(names: list[str]) -> None:
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    for name in names:
        with contextlib.suppress(BrokenPipeError):
            answers.write(json.dumps({"probe": name, **probe(name)}) + "\n")
            answers.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
