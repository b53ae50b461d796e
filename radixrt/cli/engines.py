"""Commands that start an engine: `radixrt launch`, `radixrt generate` and `radixrt bench`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import Any

from radixrt.bench.options import add_bench
from radixrt.cli.command import Command
from radixrt.config import SECTIONS, ServerConfig, field_type, make_config
from radixrt.logs import configure_logging


def _add_options(parser: argparse.ArgumentParser, *, server: bool = False) -> None:
    """Add a flag for each field of the config's sections."""
    for title, section in SECTIONS.items():
        if section is ServerConfig and not server:
            continue
        group = parser.add_argument_group(title)
        for field in dataclasses.fields(section):
            kind, _ = field_type(section, field.name)
            flag = "--" + field.name.replace("_", "-")
            given: dict[str, Any] = {"help": field.metadata["help"], "default": field.default, "dest": field.name}
            if kind is bool:
                group.add_argument(flag, action=argparse.BooleanOptionalAction, **given)
            elif field.metadata["choices"]:
                group.add_argument(flag, choices=field.metadata["choices"], **given)
            else:
                group.add_argument(flag, type=kind, metavar=kind.__name__.upper(), **given)


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the engine and the server among the arguments."""
    fields = {field.name for section in SECTIONS.values() for field in dataclasses.fields(section)}
    return {name: value for name, value in vars(args).items() if name in fields}


def _add_launch(parser: argparse.ArgumentParser) -> None:
    _add_options(parser, server=True)


def _launch(args: argparse.Namespace) -> int:
    config = make_config(**_options(args))
    configure_logging(config.server.log_level, "main", format=config.server.log_format)
    from radixrt.server.launch import launch

    return launch(config)


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the prompt; - reads it from standard input")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--system", default=None, help="system message")
    parser.add_argument("--max-tokens", type=int, default=256, help="largest number of tokens to generate")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy decoding")
    _add_options(parser)


def _generate(args: argparse.Namespace) -> int:
    """Stream the answer to a prompt to stdout, and print token counts to stderr if stderr is a terminal."""
    configure_logging("warning", "main")
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    from radixrt.client.answers import raise_for_error
    from radixrt.engine.engine import Engine
    from radixrt.messages.client import ClientRequest, Input, InputRow, TextInput
    from radixrt.messages.parts import ChatPrompt
    from radixrt.messages.request import Envelope
    from radixrt.sampling_params import SamplingParams
    from radixrt.tasks.prompts import new_rid

    sampling = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature).validate()
    with Engine(**{"log_level": "warning", **_options(args)}) as engine:
        info = engine.client.info
        if args.raw or info is None or not info.has_chat_template:
            given: Input = TextInput(prompt)
        else:
            messages = [{"role": "system", "content": args.system}] if args.system else []
            messages.append({"role": "user", "content": prompt})
            given = ChatPrompt(json.dumps(messages).encode())
        request = ClientRequest(Envelope(new_rid()), [InputRow(given)], sampling, stream=True)
        for output in engine.client.stream(request):
            print(output.text, end="", flush=True)
            if output.finish is not None:
                raise_for_error(output.finish)
                usage = output.usage
        print()
        if usage is not None and sys.stderr.isatty():
            print(f"[{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} generated]", file=sys.stderr)
    return 0


def _add_bench(parser: argparse.ArgumentParser) -> None:
    add_bench(parser, _add_options)


def _bench(args: argparse.Namespace) -> int:
    from radixrt.bench.options import run

    return run(args, {} if args.action == "serve" else _options(args))


LAUNCH = Command(
    "start the OpenAI-compatible server",
    "Start the OpenAI-compatible server.",
    _add_launch,
    _launch,
    shows_defaults=True,
)
GENERATE = Command(
    "answer one prompt on the terminal",
    "Answer one prompt on the terminal.",
    _add_generate,
    _generate,
    shows_defaults=True,
)
BENCH = Command(
    "measure a server, or an engine of this process",
    "Measure any OpenAI-compatible server, or an engine of this process, with random prompts, shared prefixes, a "
    "ShareGPT file or a trace file.",
    _add_bench,
    _bench,
)
