"""Common parts of the calls of `Engine`: their outputs, and a progress bar."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from radixrt.client.answers import Chunk, Completion, as_chunk, as_completion
from radixrt.client.collector import OutputCollector
from radixrt.client.requests import Job
from radixrt.messages.client import RequestOutput


def completion_of(job: Job, output: RequestOutput | None) -> Completion:
    """Return the whole answer of a call.

    Args:
        output: result of the call's collector.
    """
    assert output is not None
    return as_completion(output, job.reader, job.request.input_ids)


def chunk_of(job: Job, collector: OutputCollector, output: RequestOutput) -> Chunk:
    """Return one increment of a streamed call."""
    whole = collector.add(output)
    return as_chunk(output, None if whole is None else completion_of(job, whole))


@contextlib.contextmanager
def progress_bar(total: int, wanted: bool | None) -> Iterator[Any]:
    """Show the progress of a call. With `wanted` None, show it for several completions if stderr is a terminal."""
    from tqdm import tqdm

    hidden = None if wanted is None and total > 1 else not wanted  # None: tqdm hides it where there is no terminal
    with tqdm(total=total, desc="generate", unit="completion", disable=hidden) as bar:
        yield bar
