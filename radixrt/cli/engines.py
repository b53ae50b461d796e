"""Commands that start an engine: `radixrt launch`, `radixrt generate` and `radixrt bench`."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from radixrt.bench.options import add_bench
from radixrt.cli.command import Command, add_server
from radixrt.config import DEFAULT_MODEL, HOMES, SECTIONS, ServerConfig, field_type, make_config
from radixrt.errors import ConfigError
from radixrt.logs import configure_logging
from radixrt.peer_options import SAME_OPTIONS, nearest_value, same_value


def _add_options(parser: argparse.ArgumentParser, *, server: bool = False) -> None:
    """Add a flag for each field of the config's sections, with the names of vLLM and SGLang as aliases."""
    for title, section in SECTIONS.items():
        if section is ServerConfig and not server:
            continue
        group = parser.add_argument_group(title)
        for field in dataclasses.fields(section):
            kind, _ = field_type(section, field.name)
            taken = parser._option_string_actions  # `radixrt bench` has a --seed of its own
            peers = {f"--{name.replace('_', '-')}": value for name, (ours, value) in SAME_OPTIONS.items()
                     if ours == field.name and not name.startswith("no_")}  # fmt: skip
            aliases = [alias for alias, value in peers.items() if _is_open(value) and alias not in taken]
            flags = ["--" + field.name.replace("_", "-"), *aliases]
            given: dict[str, Any] = {"help": field.metadata["help"], "default": field.default, "dest": field.name}
            if kind is bool:
                group.add_argument(*flags, action=argparse.BooleanOptionalAction, **given)
            elif field.metadata["choices"]:
                read = _reader_of_choices(field.name, field.metadata["choices"])
                group.add_argument(*flags, type=read, choices=field.metadata["choices"], **given)
            else:
                group.add_argument(*flags, type=kind, metavar=kind.__name__.upper(), **given)
            for alias, value in peers.items():
                if not _is_open(value):
                    hidden = {"action": "store_const", "const": value, "help": argparse.SUPPRESS}
                    group.add_argument(alias, **{**given, **hidden})


def _reader_of_choices(option: str, choices: Sequence[str]) -> Callable[[str], object]:
    """Return the `type` of an option with choices, which accepts the values of vLLM and SGLang too."""

    def read(text: str) -> object:
        if (value := same_value(option, text)) not in choices and (nearest := nearest_value(option, text)):
            raise argparse.ArgumentTypeError(f"invalid choice: {text!r} (choose from {', '.join(choices)}){nearest}")
        return value

    return read


def _is_open(value: object) -> bool:
    """Return True if the name of a peer's option leaves the value to the command line."""
    return value is None or value is True


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the engine and the server among the arguments."""
    return {name: value for name, value in vars(args).items() if name in HOMES}


def _add_launch(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("named_model", metavar="MODEL", nargs="?", help="the same as --model")
    parser.add_argument("--config", metavar="FILE", help="TOML file with options, over which those given here prevail")
    _add_options(parser, server=True)


def _launch(args: argparse.Namespace) -> int:
    if args.named_model is not None:
        if args.model not in (DEFAULT_MODEL, args.named_model):
            raise ConfigError(f"one model is served, and two are named: {args.named_model} and --model {args.model}")
        args.model = args.named_model
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
    add_bench(parser, _add_options, add_server)


def _bench(args: argparse.Namespace) -> int:
    from radixrt.bench.options import run

    return run(args, {} if args.action == "serve" else _options(args))


LAUNCH = Command(
    "start the OpenAI-compatible server",
    "Start the OpenAI-compatible server; `radixrt serve` does the same.",
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
