"""The commands `radixrt bench throughput` and `radixrt bench latency`: an Engine of this process, without a server."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from radixrt.bench.datasets import BenchRequest, DatasetOptions, Ruler, calibrated, calibration_texts, make_requests
from radixrt.bench.result import percentile
from radixrt.bench.serve import save, writable
from radixrt.engine.engine import Engine
from radixrt.logs import configure_logging
from radixrt.tasks.generate import Completion

PERCENTILES = (10, 25, 50, 75, 90, 99)


def throughput(
    dataset: DatasetOptions, engine_options: Mapping[str, Any], *, ignore_eos: bool, save_result: str | None
) -> int:
    """Generate for all requests at once and print requests and tokens per second; return the exit code.

    Raises:
        ConfigError, ModelLoadError, EngineError: an option, the dataset or the model is wrong, or the engine failed.
        RequestError: a request does not fit the engine; the other requests are aborted.
    """
    file = None if save_result is None else writable(save_result)
    with _engine(engine_options) as engine:
        requests = make_requests(dataset, _ruler(engine, dataset.seed))
        start = time.perf_counter()
        completions = _generate(engine, requests, ignore_eos, progress=True)
        seconds = time.perf_counter() - start
    read = sum(completion.usage.prompt_tokens for completion in completions)
    written = sum(completion.usage.completion_tokens for completion in completions)
    result = {
        "elapsed_time": seconds,
        "num_requests": len(requests),
        "total_num_tokens": read + written,
        "requests_per_second": len(requests) / seconds,
        "tokens_per_second": (read + written) / seconds,
        "output_tokens_per_second": written / seconds,
        "total_cached_tokens": sum(completion.usage.cached_tokens for completion in completions),
    }
    print(
        f"Throughput: {result['requests_per_second']:.2f} requests/s, "
        f"{result['tokens_per_second']:.2f} total tokens/s, "
        f"{result['output_tokens_per_second']:.2f} output tokens/s"
    )
    print(f"Total num prompt tokens:  {read}\nTotal num output tokens:  {written}")
    if file is not None:
        save(file, result)
    return 0


def latency(
    dataset: DatasetOptions, engine_options: Mapping[str, Any], *, batches: int, warmup: int, ignore_eos: bool,
    save_result: str | None,
) -> int:  # fmt: skip
    """Generate for one batch after another and print how long a batch takes; return the exit code.

    Args:
        dataset: `num_prompts` is the number of requests in a batch. Each batch has different prompts, so that no prompt
            is cached; a file with too few prompts is repeated.

    Raises:
        As `throughput`.
    """
    file = None if save_result is None else writable(save_result)
    size, rounds = dataset.num_prompts, warmup + batches
    times: list[float] = []
    with _engine(engine_options) as engine:
        requests = make_requests(replace(dataset, num_prompts=size * rounds), _ruler(engine, dataset.seed))
        for number in tqdm(range(rounds), desc="batches", unit="batch"):
            batch = [requests[(number * size + n) % len(requests)] for n in range(size)]
            start = time.perf_counter()
            _generate(engine, batch, ignore_eos, progress=False)
            if number >= warmup:
                times.append(time.perf_counter() - start)
    result: dict[str, Any] = {
        "avg_latency": sum(times) / len(times),
        "latencies": times,
        "percentiles": {str(percent): percentile(times, percent) for percent in PERCENTILES},
    }
    print(f"Avg latency: {result['avg_latency']} seconds")
    for percent, value in result["percentiles"].items():
        print(f"{percent}% percentile latency: {value} seconds")
    if file is not None:
        save(file, result)
    return 0


def _engine(options: Mapping[str, Any]) -> Engine:
    configure_logging("warning", "main")
    return Engine(**{"log_level": "warning", **options})


def _ruler(engine: Engine, seed: int) -> Ruler:
    short, long = calibration_texts(seed)
    return calibrated((short, long), (len(engine.tokenize(short)), len(engine.tokenize(long))))


def _generate(
    engine: Engine, requests: Sequence[BenchRequest], ignore_eos: bool, *, progress: bool
) -> list[Completion]:
    params = [{"max_tokens": request.output_len, "temperature": 0.0, "ignore_eos": ignore_eos} for request in requests]
    made = engine.generate([request.prompt for request in requests], params, progress=progress)
    return made if isinstance(made, list) else [made]
