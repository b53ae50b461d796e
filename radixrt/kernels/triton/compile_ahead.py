"""Compilation of Triton kernels ahead of their first launch, several at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import triton
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from radixrt.portable import num_cores

MAX_THREADS = 16


@contextlib.contextmanager
def compiling() -> Iterator[list[str]]:
    """Compile and load kernels instead of launching them, for the time of this context and in this process.

    Each launch compiles the kernel for its arguments in a thread, or takes it from Triton's cache on disk, and returns
    at once. At the end of the context all of them are compiled and loaded. The launches compute nothing, so what they
    should have written is undefined.

    Yields:
        A list that holds the names of the kernels after the context, one for each specialization.
    """
    names: list[str] = []
    run = JITFunction.run

    def compile_only(self: JITFunction, *args, grid, warmup, **options):
        return run(self, *args, grid=grid, warmup=True, **options)

    count, device = min(MAX_THREADS, num_cores()), driver.active.get_current_device()
    with ThreadPoolExecutor(count, initializer=driver.active.set_current_device, initargs=(device,)) as threads:
        with triton.AsyncCompileMode(threads) as mode:
            # Triton's launch has this as a parameter, which its callers cannot reach.
            JITFunction.run = compile_only
            try:
                yield names
            finally:
                JITFunction.run = run
            made = list(mode.future_kernels.values())
        kernels = [each.result() for each in made]
        by_signature = {tuple(kernel.src.signature.values()): kernel for kernel in kernels}
        list(threads.map(_compile_launcher, by_signature.values()))
    names.extend(_load(kernel) for kernel in kernels)


def _compile_launcher(kernel: CompiledKernel) -> None:
    """Compile the C function that launches kernels of this signature into Triton's cache on disk.

    The launcher itself is dropped. Triton loads the functions as C extensions that all have the same module name, and
    Python keeps one module object for them: a thread that loads one may get the function that another thread has just
    loaded. So kernels are loaded one after the other.
    """
    driver.active.launcher_cls(kernel.src, kernel.metadata)


def _load(kernel: CompiledKernel) -> str:
    """Load a kernel and its launcher onto the device, so that the first launch need not.

    Raises:
        RuntimeError: the kernel does not fit into this device; the message names the kernel.
    """
    try:
        _ = kernel.run
    except OutOfResources as error:
        raise RuntimeError(f"{kernel.name}: {error}") from error
    return str(kernel.name)
