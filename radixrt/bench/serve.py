"""The command `radixrt bench serve`: a load on any OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tqdm import tqdm

from radixrt.bench.datasets import BenchRequest, DatasetOptions, Ruler, calibrated, calibration_texts, make_requests
from radixrt.bench.load import LoadOptions, run_load
from radixrt.bench.result import Outcome, block, errors, summarize
from radixrt.errors import ConfigError
from radixrt.openai_api import OpenAIServer, find_server


def serve(
    url: str, model: str | None, api_key: str | None, dataset: DatasetOptions, options: LoadOptions,
    save_result: str | None = None,
) -> int:  # fmt: skip
    """Send a dataset to a server and print the figures; return the exit code, 1 if requests failed.

    Raises:
        ConfigError: the server does not answer or refuses, or the dataset or the result's file is wrong.
    """
    file = None if save_result is None else writable(save_result)
    server = find_server(url, model, api_key)
    requests = make_requests(dataset, _ruler(server, options))
    print(f"{len(requests)} requests of {dataset.name} to {server.model} on {server.url}", file=sys.stderr)
    with tqdm(total=len(requests), desc="requests", unit="request") as bar:
        duration, outcomes = asyncio.run(run_load(server, options, requests, _advancing(bar)))
    figures = summarize(outcomes, duration)
    print(block(figures, rate=options.rate, max_concurrency=options.max_concurrency))
    if cached := figures["total_cached_tokens"]:
        print(f"radixrt bench: {cached} input tokens were in the server's cache", file=sys.stderr)
    for line in errors(outcomes):
        print(f"radixrt bench: {line}", file=sys.stderr)
    if file is not None:
        about = {
            "date": datetime.now(UTC).strftime("%Y%m%d-%H%M%S"),
            "backend": "openai-chat" if options.chat else "openai",
            "base_url": server.url,
            "model_id": server.model,
            "dataset": asdict(dataset),
            "num_prompts": len(requests),
            "request_rate": "inf" if options.rate is None else options.rate,
            "max_concurrency": options.max_concurrency,
            "ignore_eos": options.ignore_eos,
        }
        save(file, about | figures | {"errors": [outcome.error or "" for outcome in outcomes]})
    return 1 if figures["failed"] else 0


def writable(name: str) -> Path:
    """Return the path of a result, whose folder is there before anything is measured.

    Raises:
        ConfigError: it is not.
    """
    path = Path(name).expanduser()
    if not path.parent.is_dir() or path.is_dir():
        raise ConfigError(f"--save-result {name} is not a file in a folder that exists")
    return path


def save(file: Path, result: dict[str, Any]) -> None:
    """Write a result as JSON.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file} cannot be written: {error.strerror}") from None


def _ruler(server: OpenAIServer, options: LoadOptions) -> Ruler:
    """Have the server count the tokens of two texts in requests for a single token. A server that does not answer
    such requests is reported here."""
    texts = calibration_texts(options.seed)
    single = replace(options, rate=None, max_concurrency=1, limit_s=min(options.limit_s, 120.0))
    _, outcomes = asyncio.run(run_load(server, single, [BenchRequest(text, 1) for text in texts]))
    for outcome in outcomes:
        if outcome.error is not None:
            raise ConfigError(f"the first request to {server.url} failed: {outcome.error}")
    return calibrated(texts, (outcomes[0].prompt_tokens, outcomes[1].prompt_tokens))


def _advancing(bar: Any) -> Callable[[Outcome], None]:
    """Return a callback for each outcome, which moves the bar on and shows how many requests failed."""
    failed = 0

    def advance(outcome: Outcome) -> None:
        nonlocal failed
        if outcome.error is not None:
            failed += 1
            bar.set_postfix(failed=failed, refresh=False)
        bar.update()

    return advance
