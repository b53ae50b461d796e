"""The command line. Heavy modules are imported only by the commands that need them."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from radixrt._version import __version__
from radixrt.bench.options import add_bench
from radixrt.config import SECTIONS, ExecutorConfig, ServerConfig, field_type, make_config
from radixrt.errors import ConfigError, RadixRTError
from radixrt.logs import configure_logging
from radixrt.suggestions import command_meant, option_meant


class _Parser(argparse.ArgumentParser):
    """Parser that reports an error in one line, without the long usage text."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="radixrt", description="An inference engine for structured, multi-call programs.")
    parser.add_argument("--version", action="version", version=f"radixrt {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    launch = commands.add_parser(
        "launch", help="start the OpenAI-compatible server", description="Start the OpenAI-compatible server.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    _add_options(launch, server=True)

    generate = commands.add_parser(
        "generate", help="answer one prompt on the terminal", description="Answer one prompt on the terminal.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    _add_generate(generate)

    chat = commands.add_parser(
        "chat", help="chat on the terminal with any OpenAI-compatible server",
        description="Chat on the terminal with any server that has OpenAI's API: answers stream, /help lists the "
        "commands, Ctrl-C ends an answer, Ctrl-D leaves. From a pipe, each line is a message.",
    )  # fmt: skip
    _add_chat(chat)

    bench = commands.add_parser(
        "bench", help="measure a server, or an engine of this process",
        description="Measure any OpenAI-compatible server, or an engine of this process, with random prompts, shared "
        "prefixes, a ShareGPT file or a trace file.",
    )  # fmt: skip
    add_bench(bench, lambda parser: _add_options(parser, server=False))

    doctor = commands.add_parser(
        "doctor", help="check this machine for serving, and show how to fix what is missing",
        description="Check what this machine has for serving, and show the command that fixes each missing part. "
        "Exit code 0 if serving works with these options, 1 if not.",
    )  # fmt: skip
    _add_doctor(doctor)

    replay = commands.add_parser(
        "replay", help="send a trace of programs to a server as a load",
        description="Send the calls of a trace (rt.trace) to a server, with the same arrivals and each call after "
        "those that it depends on, and print recorded and replayed figures side by side. Exit code 1 if calls failed.",
    )  # fmt: skip
    _add_replay(replay)

    _add_tree(commands)

    replicas = commands.add_parser(
        "replicas", help="list, add, drain or remove replicas of a running server",
        description="List, add, drain or remove replicas of a server that was started with --replicas. A replica that "
        "is drained gets no new requests until it is resumed; one that is removed is drained first.",
    )  # fmt: skip
    _add_replicas(replicas)

    _add_schema(commands)
    return parser


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "add", "drain", "resume", "remove"))
    parser.add_argument("replica", nargs="?", type=int, help="number of the replica to drain, resume or remove")
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="the server (default: %(default)s)")
    parser.add_argument("--api-key", help="an admin's API key, if the server has keys; default: RADIXRT_API_KEY")
    parser.add_argument(
        "--timeout-s", type=float, metavar="S",
        help="remove: what is open after S seconds goes on elsewhere; default: the requests' own timeout",
    )  # fmt: skip


def _add_generate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("prompt", help="the prompt; - reads it from standard input")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without the chat template")
    parser.add_argument("--system", default=None, help="system message")
    parser.add_argument("--max-tokens", type=int, default=256, help="largest number of tokens to generate")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy decoding")
    _add_options(parser, server=False)


def _add_chat(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url", default="http://127.0.0.1:30000/v1", help="base URL of the server (default: %(default)s)"
    )
    parser.add_argument("--model", help="the model to request; default: the first that the server lists")
    parser.add_argument(
        "--api-key", help="default: OPENAI_API_KEY of the environment for api.openai.com, RADIXRT_API_KEY for others"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--schema", metavar="FILE", help="JSON schema that the answers satisfy")
    parser.add_argument("--max-tokens", type=_above_zero(int), metavar="N", help="default: the server's")
    parser.add_argument("--temperature", type=float, help="default: the server's")


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    for field in dataclasses.fields(ExecutorConfig):
        if field.name in ("device", "attention_backend"):
            flag = "--" + field.name.replace("_", "-")
            text = f"{field.metadata['help']} (default: {field.default})"
            parser.add_argument(flag, choices=field.metadata["choices"], default=field.default, help=text)
    parser.add_argument("--model", metavar="FOLDER", help="look at this model folder too: what it needs, what fits")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="of the model (default: auto)")
    parser.add_argument("--tp", type=_above_zero(int), default=1, help="ranks that share every layer (default: 1)")
    parser.add_argument("--pp", type=_above_zero(int), default=1, help="pipeline stages of these (default: 1)")
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", help="the JSON lines that rt.trace wrote")
    parser.add_argument("--base-url", required=True, help="a radixrt server, or any with OpenAI's /v1/completions")
    parser.add_argument("--model", help="the model to request; default: the first that the server lists")
    parser.add_argument("--api-key", help="the server's API key, if it has one")
    parser.add_argument(
        "--speed", type=_above_zero(float), default=1.0,
        help="factor on the recorded speed; inf sends each call as soon as its dependencies are answered (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--concurrency", type=_above_zero(int), metavar="N", help="largest number of open calls (default: no limit)"
    )
    parser.add_argument(
        "--send", choices=("auto", "ids", "text"), default="auto",
        help="prompts as token ids or as text; auto: ids to a radixrt server with the trace's tokenizer, else text",
    )  # fmt: skip
    parser.add_argument(
        "--plain", action="store_true", help="send plain completions, without program hints, even to a radixrt server"
    )


def _add_tree(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "tree", help="show the radix tree of a server, live",
        description="Show the radix tree of a server in the terminal, until Ctrl-C; into a pipe, once. What a browser "
        "shows at /ui.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--base-url", default="http://127.0.0.1:30000", help="the server")
    parser.add_argument("--api-key", help="an admin's API key, if the server has keys; default: RADIXRT_API_KEY")
    parser.add_argument("--once", action="store_true", help="print the tree and end")


def _above_zero(kind: type[int] | type[float]) -> Callable[[str], float]:
    def read(text: str) -> float:
        value = kind(text)
        if not value > 0:
            raise argparse.ArgumentTypeError(f"must be above 0, not {text}")
        return value

    read.__name__ = kind.__name__  # the name that argparse prints
    return read


def _add_schema(commands: argparse._SubParsersAction[_Parser]) -> None:
    parser = commands.add_parser(
        "schema", help="check a schema, a regex or a grammar", description="Check constraints of structured output."
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser(
        "check", help="show whether a constraint is enforced, and which answers it allows",
        description="Show whether a schema is enforced and whether instances of it are accepted. Exit code 0 if "
        "the schema is enforced and every instance is accepted, 1 if not.",
    )  # fmt: skip
    _add_schema_check(check)


def _add_schema_check(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files", nargs="*", metavar="FILE", help="the schema, then instances of it; with --regex or --ebnf, texts"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--regex", metavar="PATTERN", help="check this regular expression instead of a schema")
    what.add_argument("--ebnf", metavar="FILE", help="check the grammar in this file instead of a schema")
    what.add_argument(
        "--jsonl",
        metavar="FILE",
        help='check many: each line is a schema, or {"schema": ..., "tests": [{"data", "valid"}]}',
    )
    parser.add_argument("--model", help="model whose tokenizer is used: folder or hub id; default: the embedded one")
    parser.add_argument(
        "--whitespace", type=int, default=0, help="largest number of whitespace characters where JSON allows them"
    )
    parser.add_argument(
        "--closed", action="store_true", help="allow no undeclared properties unless the schema mentions them"
    )
    parser.add_argument(
        "--formats", choices=("assert", "annotate"), default="assert", help="enforce `format`, or ignore it"
    )
    parser.add_argument(
        "--on-unsupported",
        choices=("error", "ignore"),
        default="error",
        help="refuse or drop keywords that cannot be enforced",
    )
    parser.add_argument("--backend", choices=("auto", "xgrammar", "llguidance"), default="auto", help="mask library")


def _add_options(parser: argparse.ArgumentParser, *, server: bool) -> None:
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
    fields = {field.name for section in SECTIONS.values() for field in dataclasses.fields(section)}
    return {name: value for name, value in vars(args).items() if name in fields}


def _launch(args: argparse.Namespace) -> int:
    config = make_config(**_options(args))
    configure_logging(config.server.log_level, "main", format=config.server.log_format)
    from radixrt.server.launch import launch

    return launch(config)


def _generate(args: argparse.Namespace) -> int:
    """Stream the answer to one prompt to stdout, and its token counts to stderr if that is a terminal."""
    configure_logging("warning", "main")
    prompt = sys.stdin.read() if args.prompt == "-" else args.prompt
    from radixrt.client.answers import raise_for_error
    from radixrt.client.requests import new_rid
    from radixrt.engine.engine import Engine
    from radixrt.messages.client import GenerateReq
    from radixrt.messages.parts import ChatPrompt
    from radixrt.sampling_params import SamplingParams

    sampling = SamplingParams(max_tokens=args.max_tokens, temperature=args.temperature).validate()
    with Engine(**{"log_level": "warning", **_options(args)}) as engine:
        info = engine.client.info
        if args.raw or info is None or not info.has_chat_template:
            request = GenerateReq(new_rid(), sampling, prompt=prompt, stream=True)
        else:
            messages = [{"role": "system", "content": args.system}] if args.system else []
            messages.append({"role": "user", "content": prompt})
            request = GenerateReq(new_rid(), sampling, chat=ChatPrompt(json.dumps(messages).encode()), stream=True)
        for output in engine.client.stream(request):
            print(output.text, end="", flush=True)
            if output.finish is not None:
                raise_for_error(output.finish)
                usage = output.usage
        print()
        if usage is not None and sys.stderr.isatty():
            print(f"[{usage.prompt_tokens} prompt tokens, {usage.completion_tokens} generated]", file=sys.stderr)
    return 0


def _chat(args: argparse.Namespace) -> int:
    from radixrt.terminal_chat.command import chat

    return chat(
        args.url, args.model, args.api_key, system=args.system, schema=args.schema, max_tokens=args.max_tokens,
        temperature=args.temperature,
    )  # fmt: skip


def _bench(args: argparse.Namespace) -> int:
    from radixrt.bench.options import run

    return run(args, {} if args.action == "serve" else _options(args))


def _doctor(args: argparse.Namespace) -> int:
    from radixrt.doctor import run

    return run(
        device=args.device, attention_backend=args.attention_backend, as_json=args.json, model=args.model,
        dtype=args.dtype, tp=args.tp, pp=args.pp,
    )  # fmt: skip


def _replay(args: argparse.Namespace) -> int:
    from radixrt.lang.observe.replay import command

    return command(
        args.trace, args.base_url, api_key=args.api_key, model=args.model, speed=args.speed,
        concurrency=args.concurrency, send=args.send, plain=args.plain,
    )  # fmt: skip


def _replicas(args: argparse.Namespace) -> int:
    from radixrt.replica_command import change_replicas

    named = args.action in ("drain", "resume", "remove")
    if named == (args.replica is None):
        missing = f"radixrt replicas {args.action} needs the number of a replica, e.g. radixrt replicas drain 1"
        raise ConfigError(missing if named else f"radixrt replicas {args.action} takes no number of a replica")
    key = args.api_key or os.environ.get("RADIXRT_API_KEY")
    return change_replicas(args.url, args.action, args.replica, api_key=key, timeout_s=args.timeout_s)


def _tree(args: argparse.Namespace) -> int:
    from radixrt.live_tree.command import show_tree

    return show_tree(args.base_url, args.api_key or os.environ.get("RADIXRT_API_KEY"), once=args.once)


def _schema(args: argparse.Namespace) -> int:
    configure_logging("warning", "main")
    from radixrt.explain.command import check

    return check(args)


COMMANDS: dict[str, Callable[[argparse.Namespace], int]] = {
    "launch": _launch,
    "generate": _generate,
    "chat": _chat,
    "bench": _bench,
    "doctor": _doctor,
    "replay": _replay,
    "tree": _tree,
    "replicas": _replicas,
    "schema": _schema,
}


def _parse(parser: argparse.ArgumentParser, argv: Sequence[str]) -> argparse.Namespace:
    """Parse a command line. What is not known exits with code 2 and a line with the name that was probably meant."""
    command = next((word for word in argv if not word.startswith("-")), None)
    if command is not None and command not in COMMANDS and (meant := command_meant(command, COMMANDS)):
        parser.error(f"there is no command {command!r}; did you mean radixrt {meant}?")
    args, unknown = parser.parse_known_args(argv)
    if not unknown:
        return args
    flags = [word.partition("=")[0] for word in unknown if word.startswith("--")]
    if flags:
        why = "; ".join(_flag_meant(flag, args) for flag in flags)
    else:  # the first word that is left, as other engines take the model
        model = f"; did you mean --model {unknown[0]}?" if hasattr(args, "model") else ""
        why = f"unexpected {unknown[0]!r}{model}"
    prog = f"radixrt {args.command}"
    return parser.exit(2, f"{prog}: {why} (see {prog} --help)\n")


def _flag_meant(flag: str, args: argparse.Namespace) -> str:
    """Say that there is no such flag, and which one was probably meant."""
    known = [name for name in vars(args) if name != "command"]
    meant = option_meant(flag.removeprefix("--").replace("-", "_"), known)
    if meant is None:
        return f"there is no option {flag}"
    option, value = meant[0].replace("_", "-"), meant[1]
    if isinstance(value, bool):
        return f"there is no option {flag}; did you mean --{option if value else f'no-{option}'}?"
    return f"there is no option {flag}; did you mean --{option}{'' if value is None else f' {value}'}?"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; a mistake of the user's or a missing part is one line on stderr and exit code 2."""
    args = _parse(build_parser(), sys.argv[1:] if argv is None else argv)
    try:
        return COMMANDS[args.command](args)
    except RadixRTError as error:
        print(f"radixrt: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the answer is gone, as in `radixrt generate ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # so that flushing the rest at exit does not fail again
        return 141


if __name__ == "__main__":
    sys.exit(main())
