"""Creation of the CUDA context while torch is being imported, because both take about a second."""

from __future__ import annotations

import ctypes
import os
import threading


def begin_context(index: int) -> None:
    """Begin to create the primary context of a device in a thread; torch uses the context later. Without a driver, or
    without the device, the call has no effect.

    Args:
        index: index of the device among the devices visible to this process.
    """
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")  # as torch does before it creates the context
    threading.Thread(target=_create, args=(index,), name="radixrt-cuda", daemon=True).start()


def _create(index: int) -> None:
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return
    device, context = ctypes.c_int(), ctypes.c_void_p()
    if cuda.cuInit(0) == 0 and cuda.cuDeviceGet(ctypes.byref(device), index) == 0:
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
