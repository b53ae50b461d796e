"""The command `radixrt calibrate`: fits the temperature of a server's decisions to examples with right answers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import httpx

from radixrt.calibrate.examples import Line, examples_of, read_lines
from radixrt.calibrate.fit import NUM_FOLDS, Example, Quality, best_temperature, held_out_quality, quality
from radixrt.errors import ConfigError
from radixrt.openai_api import CONNECT_TIMEOUT_S, error_message, no_answer, server_root, tls_context

FEWEST = 20
"""Fewer examples do not determine a temperature."""


def calibrate(
    path: str, url: str, api_key: str | None, *, concurrency: int, write: str | None = None, out: TextIO | None = None
) -> int:
    """Ask the server at `url` all questions of the file, print what the best temperature changes, and return the exit
    code.

    Args:
        concurrency: largest number of open requests.
        write: file for the temperature, which the option decision_temperature reads.
        out: default: the standard output.

    Raises:
        ConfigError: the file or the server is at fault; says how.
    """
    out = out or sys.stdout
    lines = read_lines(path)
    examples = asyncio.run(_ask(lines, server_root(url), api_key, concurrency))
    if len(examples) < FEWEST:
        raise ConfigError(f"{path} has {len(examples)} answers; at least {FEWEST} are needed to fit a temperature")
    temperature = round(best_temperature(examples), 3)
    rows = {
        "before (temperature 1)": quality(examples, 1.0),
        f"after (temperature {temperature:g})": quality(examples, temperature),
        f"after, held out ({NUM_FOLDS} folds)": held_out_quality(examples),
    }
    print(f"{len(examples)} answers to the questions of {len(lines)} requests", file=out)
    print(_table(rows), file=out)
    if write is None:
        print(f"radixrt launch --decision-temperature {temperature:g}", file=out)
        return 0
    content = {"temperature": temperature, "examples": len(examples), "ece_before": rows["before (temperature 1)"].ece}
    try:
        Path(write).expanduser().write_text(json.dumps(content) + "\n")
    except OSError as error:
        raise ConfigError(f"--write {write}: {error.strerror}") from None
    print(f"radixrt launch --decision-temperature {write}", file=out)
    return 0


async def _ask(lines: Sequence[Line], root: str, api_key: str | None, concurrency: int) -> list[Example]:
    """Return the examples of all lines, in the order of the lines."""
    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    timeout = httpx.Timeout(None, connect=CONNECT_TIMEOUT_S)
    turn = asyncio.Semaphore(concurrency)

    async with httpx.AsyncClient(headers=headers, timeout=timeout, trust_env=False, verify=tls_context()) as client:

        async def ask(line: Line) -> list[Example]:
            async with turn:
                response = await client.post(f"{root}/v1/systemone", json={**line.body, "temperature": 1.0})
            if response.status_code != 200:
                raise ConfigError(f"{line.place}: {error_message(response)}")
            found: dict[str, Any] = response.json()
            return list(examples_of(line, found["answers"]))

        tasks = [asyncio.ensure_future(ask(line)) for line in lines]
        try:
            return [example for found in await asyncio.gather(*tasks) for example in found]
        except httpx.HTTPError as error:
            fix = "start a server with radixrt launch, or name another with --url"
            raise ConfigError(no_answer(root, error, fix)) from None
        finally:
            for task in tasks:
                task.cancel()


def _table(rows: dict[str, Quality]) -> str:
    width = max(map(len, rows))
    head = f"{'':{width}}  accuracy  confidence    ECE     NLL"
    lines = [f"{name:{width}}  {a:8.3f}  {c:10.3f}  {e:5.3f}  {n:6.3f}" for name, (a, c, e, n) in rows.items()]
    return "\n".join([head, *lines])
