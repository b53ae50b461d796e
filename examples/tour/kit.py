"""Code that the scripts of the tour share: their options, their output, and the data that they work on."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import openai

import radixrt as rt

OUTPUT = Path(__file__).parents[1] / "output"  # in .gitignore


def output(name: str) -> Path:
    """Return the path of a file in the folder of output, which is made."""
    OUTPUT.mkdir(exist_ok=True)
    return OUTPUT / name


def _arguments(doc: str | None, size: int, url: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--size", type=int, default=size, help="number of items that are worked on")
    parser.add_argument(
        "--url", "--base-url", dest="base_url", default=url, help="a radixrt server, e.g. http://127.0.0.1:30000"
    )
    if url is None:
        parser.add_argument("--model", help="folder, hub id or GGUF file to run in this process")
    return parser.parse_args()


def main(run: Callable[[int], Any], doc: str | None, size: int) -> None:
    """Run a script in the language: on an engine of its own, or on a server."""
    args = _arguments(doc, size, None)
    if args.base_url:
        rt.set_default_backend(args.base_url)
        show(run(args.size))
        return
    with rt.Engine(model=args.model, log_level="warning") as engine:
        rt.set_default_backend(engine)
        show(run(args.size))


def plain(run: Callable[[openai.AsyncOpenAI, str, int], Awaitable[Any]], doc: str | None, size: int) -> None:
    """Run a script with the plain OpenAI client on a server."""
    args = _arguments(doc, size, "http://127.0.0.1:30000")
    show(asyncio.run(with_client(run, args.base_url, args.size)))


async def with_client(run: Callable[[openai.AsyncOpenAI, str, int], Awaitable[Any]], url: str, size: int) -> Any:
    """Return the result of a script with the plain OpenAI client on a server."""
    async with openai.AsyncOpenAI(base_url=url.removesuffix("/v1") + "/v1", api_key="none", timeout=600.0) as client:
        model = (await client.models.list()).data[0].id
        return await run(client, model, size)


def show(result: Any) -> None:
    """Print what a script returns."""
    for line in result if isinstance(result, list) else [result]:
        print(line)


sys.path.append(str(Path(__file__).parent))  # `data` and `kit`, also for the scripts in plain/
