"""Commands that are clients of a running server: `radixrt chat`, `replay`, `tree`, `replicas` and
`calibrate`."""

from __future__ import annotations

import argparse
import os

from radixrt.cli.command import Command, above_zero, add_server, seconds
from radixrt.errors import ConfigError

SERVER = "http://127.0.0.1:30000"
"""The server that `radixrt launch` starts by default."""


def _admin_key(args: argparse.Namespace) -> str | None:
    return args.api_key or os.environ.get("RADIXRT_API_KEY")


def _add_chat(parser: argparse.ArgumentParser) -> None:
    add_server(parser, f"{SERVER}/v1")
    parser.add_argument("--model", help="the model to request; default: the first that the server lists")
    parser.add_argument(
        "--api-key", help="default: OPENAI_API_KEY of the environment for api.openai.com, RADIXRT_API_KEY for others"
    )
    parser.add_argument("--system", metavar="TEXT", help="system message")
    parser.add_argument("--schema", metavar="FILE", help="JSON schema that the answers satisfy")
    parser.add_argument("--max-tokens", type=above_zero(int), metavar="N", help="default: the server's")
    parser.add_argument("--temperature", type=float, help="default: the server's")


def _chat(args: argparse.Namespace) -> int:
    from radixrt.terminal_chat.command import chat

    return chat(
        args.url,
        args.model,
        args.api_key,
        system=args.system,
        schema=args.schema,
        max_tokens=args.max_tokens,
        temperature=args.temperature,
    )


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("trace", help="the JSON lines that rt.trace wrote")
    add_server(parser)
    parser.add_argument("--model", help="the model to request; default: the first that the server lists")
    parser.add_argument("--api-key", help="the server's API key, if it has one")
    parser.add_argument(
        "--speed",
        type=above_zero(float),
        default=1.0,
        help="factor on the recorded speed; inf sends each call as soon as its dependencies are answered (default: 1)",
    )
    parser.add_argument(
        "--concurrency", type=above_zero(int), metavar="N", help="largest number of open calls (default: no limit)"
    )
    parser.add_argument(
        "--send",
        choices=("auto", "ids", "text"),
        default="auto",
        help="prompts as token ids or as text; auto: ids to a radixrt server with the trace's tokenizer, else text",
    )
    parser.add_argument(
        "--plain", action="store_true", help="send plain completions, without program hints, even to a radixrt server"
    )


def _replay(args: argparse.Namespace) -> int:
    from radixrt.lang.observe.replay import command

    return command(
        args.trace,
        args.url,
        api_key=args.api_key,
        model=args.model,
        speed=args.speed,
        concurrency=args.concurrency,
        send=args.send,
        plain=args.plain,
    )


def _add_tree(parser: argparse.ArgumentParser) -> None:
    add_server(parser, SERVER)
    parser.add_argument("--api-key", help="an admin's API key, if the server has keys; default: RADIXRT_API_KEY")
    parser.add_argument("--replica", type=int, metavar="N", help="the replica whose tree it is; default: the first one")
    parser.add_argument("--once", action="store_true", help="print the tree and end")


def _tree(args: argparse.Namespace) -> int:
    from radixrt.live_tree.command import show_tree

    return show_tree(args.url, _admin_key(args), replica=args.replica, once=args.once)


def _add_replicas(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=("list", "add", "drain", "resume", "remove"))
    parser.add_argument("replica", nargs="?", type=int, help="number of the replica to drain, resume or remove")
    add_server(parser, SERVER)
    parser.add_argument("--api-key", help="an admin's API key, if the server has keys; default: RADIXRT_API_KEY")
    parser.add_argument(
        "--timeout-s",
        type=seconds,
        metavar="S",
        help="remove: what is open after S seconds goes on elsewhere; default: the requests' own timeout",
    )


def _replicas(args: argparse.Namespace) -> int:
    from radixrt.cli.replicas import change_replicas

    named = args.action in ("drain", "resume", "remove")
    if named == (args.replica is None):
        missing = f"radixrt replicas {args.action} needs the number of a replica, e.g. radixrt replicas drain 1"
        raise ConfigError(missing if named else f"radixrt replicas {args.action} takes no number of a replica")
    if args.timeout_s is not None and args.action != "remove":
        raise ConfigError(f"--timeout-s is of no use with radixrt replicas {args.action}; remove alone waits")
    return change_replicas(args.url, args.action, args.replica, api_key=_admin_key(args), timeout_s=args.timeout_s)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "examples",
        metavar="FILE.jsonl",
        help="bodies of /v1/systemone, a line each, with the right answers",
    )
    add_server(parser, SERVER)
    parser.add_argument("--api-key", help="the server's API key, if it has one; default: RADIXRT_API_KEY")
    parser.add_argument(
        "--concurrency", type=above_zero(int), metavar="N", default=16, help="largest number of open requests"
    )
    parser.add_argument("--write", metavar="FILE", help="file for the temperature, for --decision-temperature FILE")


def _calibrate(args: argparse.Namespace) -> int:
    from radixrt.calibrate.command import calibrate

    return calibrate(args.examples, args.url, _admin_key(args), concurrency=args.concurrency, write=args.write)


CHAT = Command(
    "chat on the terminal with any OpenAI-compatible server",
    "Chat on the terminal with any server that has OpenAI's API: answers stream, /help lists the commands, Ctrl-C "
    "ends an answer, Ctrl-D leaves. From a pipe, each line is a message.",
    _add_chat,
    _chat,
)
REPLAY = Command(
    "send a trace of programs to a server as a load",
    "Send the calls of a trace (rt.trace) to a server, with the same arrivals and each call after those that it "
    "depends on, and print recorded and replayed figures side by side. Exit code 1 if calls failed.",
    _add_replay,
    _replay,
)
TREE = Command(
    "show the radix tree of a server, live",
    "Show the radix tree of a server in the terminal, until Ctrl-C; into a pipe, once. What a browser shows at /ui.",
    _add_tree,
    _tree,
    shows_defaults=True,
)
CALIBRATE = Command(
    "fit the temperature of a server's decisions to examples",
    "Ask a server the questions of a file with their right answers, fit the temperature at which confidences come "
    "true, and print accuracy and expected calibration error (ECE) before and after.",
    _add_calibrate,
    _calibrate,
    shows_defaults=True,
)
REPLICAS = Command(
    "list, add, drain or remove replicas of a running server",
    "List, add, drain or remove replicas of a server that was started with --replicas. A replica that is drained gets "
    "no new requests until it is resumed, and keeps its processes and its cache; one that is removed is drained, then "
    "stopped for good.",
    _add_replicas,
    _replicas,
)
