"""Flags of `radixrt bench`, named as in `vllm bench`, and the options that the commands make from the flags."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import replace

DATASETS = ("random", "shared-prefix", "sharegpt", "trace")
WIDE = argparse.ArgumentDefaultsHelpFormatter


def add_bench(
    parser: argparse.ArgumentParser,
    add_engine_options: Callable[[argparse.ArgumentParser], None],
    add_server: Callable[[argparse.ArgumentParser, str], None],
) -> None:
    """Add the actions of `radixrt bench`.

    Args:
        add_engine_options: adds the flags of an Engine.
        add_server: adds the flags of a client, with a default URL.
    """
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    serve = actions.add_parser(
        "serve", help="measure a server", formatter_class=WIDE,
        description="Send requests to any server with OpenAI's API and print what `vllm bench serve` prints. Exit "
        "code 1 if requests failed.",
    )  # fmt: skip
    add_server(serve, "http://127.0.0.1:30000/v1")
    _add_serve(serve)
    _add_dataset(serve, num_prompts=100)
    throughput = actions.add_parser(
        "throughput", help="measure an engine of this process with all requests at once", formatter_class=WIDE,
        description="Generate for all requests at once, offline, and print requests and tokens per second.",
    )  # fmt: skip
    _add_dataset(throughput, num_prompts=100)
    latency = actions.add_parser(
        "latency", help="measure how long an engine of this process takes for one batch", formatter_class=WIDE,
        description="Generate for one batch after another, offline, each with new prompts, and print how long a batch "
        "takes.",
    )  # fmt: skip
    latency.add_argument("--batch-size", type=_count, default=8, metavar="N", help="requests of a batch")
    latency.add_argument("--num-iters", type=_count, default=10, metavar="N", help="batches that are measured")
    latency.add_argument("--num-iters-warmup", type=_count, default=1, metavar="N", help="batches before these")
    _add_dataset(latency, num_prompts=None)
    for offline in (throughput, latency):
        offline.add_argument(
            "--ignore-eos", action=argparse.BooleanOptionalAction, default=True, help="answers have their full length"
        )
        offline.add_argument("--save-result", metavar="FILE", help="write the figures as JSON")
        add_engine_options(offline)


def _add_serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", help="the model to request; None: the first that the server lists")
    parser.add_argument(
        "--api-key", help="None: OPENAI_API_KEY of the environment for api.openai.com, RADIXRT_API_KEY for others"
    )
    parser.add_argument(
        "--backend", choices=("openai", "openai-chat"), default="openai", help="/completions, or /chat/completions"
    )
    parser.add_argument(
        "--request-rate", type=_rate, default=None, metavar="R",
        help="requests per second on average, at random intervals (Poisson); inf: all at once; None: inf, and for a "
        "trace its own times",
    )  # fmt: skip
    parser.add_argument("--max-concurrency", type=_count, metavar="N", help="largest number of open requests")
    parser.add_argument(
        "--ignore-eos", action=argparse.BooleanOptionalAction, default=True,
        help="answers have their full length; OpenAI's own servers do not understand it",
    )  # fmt: skip
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy decoding")
    parser.add_argument(
        "--time-limit", type=_positive, default=600.0, metavar="S",
        help="seconds after which what is not answered has failed",
    )  # fmt: skip
    parser.add_argument("--save-result", metavar="FILE", help="write the figures as JSON, named as vLLM names them")


def _add_dataset(parser: argparse.ArgumentParser, num_prompts: int | None) -> None:
    group = parser.add_argument_group("dataset")
    group.add_argument("--dataset-name", choices=DATASETS, default="random", help="kind of prompts")
    group.add_argument(
        "--dataset-path", metavar="FILE", help="the ShareGPT file (JSON) or trace (Mooncake's JSON lines)"
    )
    if num_prompts is not None:
        group.add_argument(
            "--num-prompts", type=_count, default=num_prompts, metavar="N", help="largest number of requests"
        )
    group.add_argument(
        "--random-input-len", type=_count, default=1024, metavar="N",
        help="tokens of a prompt; of shared-prefix, those behind the prefix",
    )  # fmt: skip
    group.add_argument("--random-output-len", type=_count, default=128, metavar="N", help="tokens of an answer")
    group.add_argument("--shared-prefix-len", type=_count, default=1024, metavar="N", help="tokens of a prefix")
    group.add_argument("--num-prefixes", type=_count, default=1, metavar="N", help="number of prefixes")
    group.add_argument(
        "--sharegpt-output-len", type=_count, metavar="N", help="tokens of an answer; None: as long as the file's"
    )
    group.add_argument(
        "--max-input-len", type=_count, metavar="N",
        help="cut longer prompts of a trace to so many tokens, and leave out those of a ShareGPT file",
    )  # fmt: skip
    group.add_argument("--trace-speed", type=_positive, default=1.0, metavar="X", help="factor on a trace's arrivals")
    group.add_argument("--seed", type=int, default=0, help="of prompts and of arrivals")


def run(args: argparse.Namespace, engine_options: dict[str, object]) -> int:
    """Run an action of `radixrt bench`; return its exit code."""
    from radixrt.bench.datasets import DatasetOptions

    dataset = DatasetOptions(
        name=args.dataset_name, path=args.dataset_path, input_len=args.random_input_len,
        num_prompts=args.batch_size if args.action == "latency" else args.num_prompts,
        output_len=args.random_output_len, prefix_len=args.shared_prefix_len, num_prefixes=args.num_prefixes,
        sharegpt_output_len=args.sharegpt_output_len, max_input_len=args.max_input_len, trace_speed=args.trace_speed,
        seed=args.seed,
    )  # fmt: skip
    if args.action == "serve":
        from radixrt.bench.load import LoadOptions
        from radixrt.bench.serve import serve

        rate = None if args.request_rate is None or math.isinf(args.request_rate) else args.request_rate
        if args.request_rate == math.inf:
            dataset = replace(dataset, trace_speed=math.inf)
        options = LoadOptions(
            chat=args.backend == "openai-chat", rate=rate, max_concurrency=args.max_concurrency,
            ignore_eos=args.ignore_eos, temperature=args.temperature, limit_s=args.time_limit, seed=args.seed,
        )  # fmt: skip
        return serve(args.url, args.model, args.api_key, dataset, options, args.save_result)
    from radixrt.bench.offline import latency, throughput

    if args.action == "throughput":
        return throughput(dataset, engine_options, ignore_eos=args.ignore_eos, save_result=args.save_result)
    return latency(
        dataset, engine_options, batches=args.num_iters, warmup=args.num_iters_warmup, ignore_eos=args.ignore_eos,
        save_result=args.save_result,
    )  # fmt: skip


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return number


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"must be above 0 and finite, not {text}")
    return number


def _rate(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"must be above 0, or inf, not {text}")
    return number


_count.__name__, _positive.__name__, _rate.__name__ = "int", "float", "float"  # the names that argparse prints
