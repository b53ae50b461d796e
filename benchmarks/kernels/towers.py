"""Rate of vision towers with dummy weights: seconds of an image, operations a second, and the share of the peak.

    python -m benchmarks.kernels.towers [--device cuda] [--shape qwen3-vl-2b] [--size 1024x1024] [--attention cudnn]

Operations are those of the matrix products (`VisionSpec.flops`). On CUDA the peak is `--peak`, in TFLOP/s of bfloat16,
by default that of H100 and H200; elsewhere shares are of the rate that a GEMM of two square matrices has here. Images
are encoded one after the other without a wait between them, as in a step; the least time of several rounds counts.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from benchmarks.common.machine import facts
from benchmarks.common.model_shapes import shape_folder
from benchmarks.common.tables import table
from benchmarks.common.vision_shapes import VISION_CONFIGS
from radixrt.layers.ops import LayerOps
from radixrt.models.loading.source import cache_folder
from radixrt.models.model_config import load_model_spec
from radixrt.models.vision.load import load_tower
from radixrt.models.vision.tower import VisionTower
from radixrt.runner.runner_config import make_ops

ATTENTION: dict[str, SDPBackend | None] = {
    "default": None,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
SIZES = ((256, 256), (512, 512), (1024, 1024), (768, 1280), (2048, 2048))
PEAK_TFLOPS = 989.0
HEADER = ["shape", "pixels", "patches", "positions", "attention", "ms an image", "TFLOP", "TFLOP/s", "share, %"]


def measure(
    tower: VisionTower, size: tuple[int, int], *, images: int, rounds: int, attention: str
) -> tuple[float, float]:
    """Return the seconds of an image, and those of the host alone, which launches its kernels."""
    device = tower.patches.weight.device
    pixels = torch.randint(0, 256, (*size, 3), dtype=torch.uint8, device=device)
    best, launched = float("inf"), float("inf")
    with _backend(attention):
        tower.encode(pixels)
        _wait(device)
        for _ in range(rounds):
            started = time.perf_counter()
            for _ in range(images):
                tower.encode(pixels)
            launched = min(launched, (time.perf_counter() - started) / images)
            _wait(device)
            best = min(best, (time.perf_counter() - started) / images)
    return best, launched


def waits(tower: VisionTower, size: tuple[int, int]) -> bool:
    """Return True if the host waits for a CUDA device while it encodes an image."""
    pixels = torch.zeros(*size, 3, dtype=torch.uint8, device="cuda")
    tower.encode(pixels)  # loads kernels, for which the host does wait
    torch.cuda.set_sync_debug_mode("error")
    try:
        tower.encode(pixels)
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def error_of(tower: VisionTower, shape: str, device: str) -> float:
    """Return the difference of an image's rows from those of a float32 tower of plain torch, relative to the rows."""
    side = tower.spec.image_size or 256
    pixels = torch.randint(0, 256, (side, side, 3), dtype=torch.uint8, device=device)
    expected = make_tower(shape, device, "float32").encode(pixels)
    return float((tower.encode(pixels).float() - expected).norm() / expected.norm())


def gemm_rate(device: str, dtype: torch.dtype) -> float:
    """Return the operations a second of a product of two square matrices."""
    side = 8192 if device == "cuda" else 1024
    matrix = torch.randn(side, side, device=device).to(dtype)
    times = []
    for _ in range(7):
        _wait(torch.device(device))
        started = time.perf_counter()
        matrix @ matrix
        _wait(torch.device(device))
        times.append(time.perf_counter() - started)
    return 2 * side**3 / min(times)


def _backend(attention: str) -> AbstractContextManager[object]:
    backend = ATTENTION[attention]
    return contextlib.nullcontext() if backend is None else sdpa_kernel(backend)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def make_tower(
    shape: str, device: str, dtype: str, ops: LayerOps | None = None, root: Path | None = None
) -> VisionTower:
    """Return the tower of one of `VISION_CONFIGS`, with dummy weights.

    Args:
        root: where its folder is written, see `shape_folder`.
    """
    folder = shape_folder(shape, root)
    return load_tower(folder, load_model_spec(folder), dtype=dtype, device=device, load_format="dummy", ops=ops)


def rows_of(tower: VisionTower, shape: str, options: argparse.Namespace, peak: float) -> list[list[str]]:
    """Return the lines of the table of one tower."""
    found = []
    only = tower.spec.image_size
    for size in options.size if only is None else [(only, only)]:
        height, width = size
        positions = tower.spec.grid(height, width)
        for attention in options.attention:
            flops = tower.spec.flops(height, width)
            images = max(1, min(16, int(2e13 / flops))) if options.device == "cuda" else 1
            try:
                took, launched = measure(tower, size, images=images, rounds=options.rounds, attention=attention)
            except RuntimeError as error:
                print(f"{shape} {height} x {width}, {attention}: {str(error).splitlines()[0]}")
                continue
            rate, count = flops / took, positions[0] * positions[1]
            of_host = f" ({1e3 * launched:.2f} to launch)" if options.device == "cuda" else ""
            found.append([
                shape, f"{height} x {width}", str(count * tower.spec.merge**2), str(count), attention,
                f"{1e3 * took:.2f}{of_host}", f"{flops / 1e12:.2f}", f"{rate / 1e12:.3g}", f"{100 * rate / peak:.0f}",
            ])  # fmt: skip
    return found


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--shape", nargs="+", choices=sorted(VISION_CONFIGS), default=sorted(VISION_CONFIGS))
    parser.add_argument("--size", nargs="+", type=_size, default=SIZES, help="height x width in pixels, e.g. 512x768")
    parser.add_argument("--attention", nargs="+", choices=sorted(ATTENTION), default=["default"])
    parser.add_argument("--peak", type=float, default=PEAK_TFLOPS, help="TFLOP/s of a CUDA device")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, help="on a CPU; default: as torch chooses")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    print(facts(), torch.cuda.get_device_name() if options.device == "cuda" else "")
    dtype = getattr(torch, options.dtype)
    rate = gemm_rate(options.device, dtype)
    print(f"a GEMM of two square matrices: {rate / 1e12:.3g} TFLOP/s")
    peak = 1e12 * options.peak if options.device == "cuda" else rate
    kernels = cache_folder() / "kernels"
    ops = make_ops(
        "auto", torch.device(options.device), kernels, dependent_launch=False, threads=torch.get_num_threads()
    )
    lines = []
    for shape in options.shape:
        tower = make_tower(shape, options.device, options.dtype, ops)
        if options.device == "cuda" and waits(tower, (tower.spec.image_size or 512,) * 2):
            print(f"{shape}: the host waits for the device while it encodes")
        print(f"{shape}: rows differ by {error_of(tower, shape, options.device):.2%} from float32")
        lines += rows_of(tower, shape, options, peak)
    print(table(HEADER, lines))


def _size(text: str) -> tuple[int, int]:
    height, _, width = text.partition("x")
    return int(height), int(width)


if __name__ == "__main__":
    main()
