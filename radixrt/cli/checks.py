"""Commands that look at something and explain it: `radixrt doctor` at a machine, `radixrt schema` at a constraint."""

from __future__ import annotations

import argparse
import dataclasses

from radixrt.cli.command import Command, above_zero
from radixrt.config import ExecutorConfig
from radixrt.logs import configure_logging


def _add_doctor(parser: argparse.ArgumentParser) -> None:
    for field in dataclasses.fields(ExecutorConfig):
        if field.name in ("device", "attention_backend"):
            flag = "--" + field.name.replace("_", "-")
            text = f"{field.metadata['help']} (default: {field.default})"
            parser.add_argument(flag, choices=field.metadata["choices"], default=field.default, help=text)
    parser.add_argument("--model", metavar="FOLDER", help="look at this model folder too: what it needs, what fits")
    dtypes = ("auto", "float32", "bfloat16", "float16")
    parser.add_argument("--dtype", choices=dtypes, default="auto", help="of the model (default: auto)")
    numbers = ("auto", "none", "fp8", "int8", "int4")
    parser.add_argument("--quantization", choices=numbers, default="auto", help="of the model (default: auto)")
    parser.add_argument("--tp", type=above_zero(int), default=1, help="ranks that share every layer (default: 1)")
    parser.add_argument("--pp", type=above_zero(int), default=1, help="pipeline stages of these (default: 1)")
    parser.add_argument("--text-only", action="store_true", help="of a model that reads images: its text part alone")
    probe_help = "measure the disk of this folder, by a file of 256 MiB that is removed again (for --kv-disk)"
    parser.add_argument("--probe-disk", metavar="FOLDER", help=probe_help)
    roles_help = "look at replicas with these roles too, such as prefill,decode"
    parser.add_argument("--roles", metavar="ROLE,...", help=roles_help)
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")


def _doctor(args: argparse.Namespace) -> int:
    from radixrt.doctor import run

    return run(
        device=args.device,
        attention_backend=args.attention_backend,
        as_json=args.json,
        model=args.model,
        dtype=args.dtype,
        tp=args.tp,
        pp=args.pp,
        quantization=args.quantization,
        text_only=args.text_only,
        disk=args.probe_disk,
        roles=args.roles,
    )


def _add_schema(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser(
        "check",
        help="show whether a constraint is enforced, and which answers it allows",
        description="Show whether a schema is enforced and whether instances of it are accepted. Exit code 0 if "
        "the schema is enforced and every instance is accepted, 1 if not.",
    )
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
        "--key-order", choices=("schema", "any"), default="schema", help="order of the declared keys of an object"
    )
    parser.add_argument(
        "--on-unsupported",
        choices=("error", "ignore"),
        default="error",
        help="refuse or drop keywords that cannot be enforced",
    )
    parser.add_argument("--backend", choices=("auto", "xgrammar", "llguidance"), default="auto", help="mask library")


def _schema(args: argparse.Namespace) -> int:
    configure_logging("warning", "main")
    from radixrt.explain.command import check

    return check(args)


DOCTOR = Command(
    "check this machine for serving, and show how to fix what is missing",
    "Check what this machine has for serving, and show the command that fixes each missing part. Exit code 0 if "
    "serving works with these options, 1 if not.",
    _add_doctor,
    _doctor,
)
SCHEMA = Command(
    "check a schema, a regex or a grammar", "Check constraints of structured output.", _add_schema, _schema
)
