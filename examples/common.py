"""Code that the examples share: common options, the folder of their output, and the line about reuse at the end."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import radixrt as rt

DATA = Path(__file__).parent / "data"
OUTPUT = Path(__file__).parent / "output"  # in .gitignore


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of every example, to which some examples add."""
    made = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    made.add_argument("--model", help="folder, hub id or GGUF file to run in this process; default: the embedded model")
    made.add_argument(
        "--url", "--base-url", dest="base_url", help="run on this radixrt server instead, e.g. http://127.0.0.1:30000"
    )
    return made


@contextmanager
def backend(args: argparse.Namespace) -> Iterator[None]:
    """Run the programs inside the block on the backend that the options name. An error of radixrt, e.g. that a model
    reads no pictures, ends the example with its message."""
    try:
        if args.base_url:
            rt.set_default_backend(args.base_url)
            yield
        else:
            with rt.Engine(model=args.model, log_level="warning") as engine:
                rt.set_default_backend(engine)
                yield
    except rt.RadixRTError as error:
        raise SystemExit(f"{type(error).__name__}: {error}") from None


def output(name: str) -> Path:
    """Return the path of a file in the folder of output, which is made."""
    OUTPUT.mkdir(exist_ok=True)
    return OUTPUT / name


def reuse(*states: rt.State) -> str:
    """Return one line about the calls, prompt tokens and cached tokens of some runs."""
    used = [state.usage for state in states]
    return reuse_line(
        sum(u.calls for u in used), sum(u.prompt_tokens for u in used), sum(u.cached_tokens for u in used)
    )


def reuse_line(calls: int, prompt: int, cached: int) -> str:
    return (
        f"reuse: {calls} calls, {prompt} prompt tokens, {cached} of them from the cache ({cached / max(prompt, 1):.0%})"
    )
