"""Device time of calls in a CUDA graph, so that launching costs nothing."""

from collections.abc import Callable
from statistics import median

import torch


def graph_us(
    run: Callable[[], object], *, calls: int = 1, replays: int = 15, capture_error_mode: str = "global"
) -> float:
    """Microseconds of one call among `calls` in a graph: the median of `replays` replays.

    Args:
        capture_error_mode: as in `torch.cuda.graph`; "thread_local" where other threads use the device meanwhile.
    """
    for _ in range(3):
        run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode=capture_error_mode):
        for _ in range(calls):
            run()
    graph.replay()
    found = []
    for _ in range(replays):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) * 1e3 / calls)
    return median(found)
