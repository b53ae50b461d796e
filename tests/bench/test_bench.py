"""`radixrt bench`: datasets have the lengths that were asked for, figures are right, failures are counted and shown."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from radixrt.bench.datasets import DatasetOptions, Ruler, calibrated, calibration_texts, make_requests
from radixrt.bench.load import read_events
from radixrt.bench.result import Outcome, block, errors, percentile, summarize
from radixrt.cli import main

RULER = Ruler(tokens_per_word=1.0, tokens_per_character=0.25, overhead=4.0)
SMALL = ["--executor", "uni", "--num-threads", "1", "--dtype", "float32", "--kv-cache-tokens", "2048"]


# --- figures ---


def test_the_block_has_the_words_and_the_order_of_vllms() -> None:
    outcomes = [
        Outcome(10.0, [10.1, 10.2, 10.4], 10.4, prompt_tokens=30, output_tokens=4),
        Outcome(10.2, [10.5], 10.5, prompt_tokens=10, output_tokens=1),
        Outcome(10.3, [10.4], 12.0, prompt_tokens=10, output_tokens=9, error="HTTP 400: too long"),
    ]
    text = block(summarize(outcomes, 2.0), rate=2.5, max_concurrency=4)
    assert [line.rstrip() for line in text.splitlines()] == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     2",
        "Failed requests:                         1",
        "Maximum request concurrency:             4",
        "Request rate configured (RPS):           2.50",
        "Benchmark duration (s):                  2.00",
        "Total input tokens:                      40",
        "Total generated tokens:                  5",
        "Request throughput (req/s):              1.00",
        "Output token throughput (tok/s):         2.50",
        "Peak output token throughput (tok/s):    5.00",
        "Peak concurrent requests:                3.00",
        "Total token throughput (tok/s):          22.50",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          200.00",
        "Median TTFT (ms):                        200.00",
        "P99 TTFT (ms):                           298.00",
        "-----Time per Output Token (excl. 1st token)------",
        "Mean TPOT (ms):                          100.00",
        "Median TPOT (ms):                        100.00",
        "P99 TPOT (ms):                           100.00",
        "---------------Inter-token Latency----------------",
        "Mean ITL (ms):                           150.00",
        "Median ITL (ms):                         150.00",
        "P99 ITL (ms):                            199.00",
        "==================================================",
    ]
    assert errors(outcomes) == ["1 failed: HTTP 400: too long"]


def read(*events: object) -> Outcome:
    outcome = Outcome(9.5, end=20.0)
    read_events([(10.0 + i, json.dumps(event)) for i, event in enumerate(events)] + [(15.0, "[DONE]")], outcome)
    return outcome


def test_answers_of_openais_routes_and_of_generate() -> None:
    def delta(**fields: str) -> dict[str, object]:
        return {"choices": [{"index": 0, "delta": fields}], "usage": None}

    usage = {"prompt_tokens": 20, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 12}}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]}
    chat = read(delta(role="assistant", content=""), delta(content="a"), delta(content="b"), last, {"usage": usage})
    assert chat == Outcome(9.5, [11.0, 12.0], 20.0, prompt_tokens=20, cached_tokens=12, output_tokens=5, text="ab")
    assert (chat.ttft, chat.tpot) == (1.5, 0.25)

    counts = {"prompt_tokens": 3, "completion_tokens": 2, "cached_tokens": 1, "queue_s": 0.5}
    first = {"text": "", "output_ids": [7], "meta_info": {"id": "r", "finish_reason": None}}
    native = read(first, {"text": "c", "output_ids": [8], "meta_info": counts})
    assert native == Outcome(
        9.5, [10.0, 11.0], 20.0, prompt_tokens=3, cached_tokens=1, output_tokens=2, text="c", queue_s=0.5
    )


def test_answers_without_usage_or_with_an_error() -> None:
    assert read({"choices": [{"text": "a"}]}).error == "the server told no usage"
    assert read({"error": {"message": "full"}}).error == "{'message': 'full'}"


def test_percentiles_lie_between_the_nearest_values() -> None:
    assert [percentile([4.0, 1.0, 3.0], percent) for percent in (0, 25, 50, 100)] == [1.0, 2.0, 3.0, 4.0]


# --- datasets ---


def test_random_prompts_and_shared_prefixes() -> None:
    options = DatasetOptions(num_prompts=6, input_len=24, output_len=7)
    random = make_requests(options, RULER)
    assert [(len(r.prompt.split()), r.output_len, r.at) for r in random] == [(20, 7, None)] * 6
    assert len({request.prompt for request in random}) == 6
    assert random == make_requests(options, RULER)

    shared = make_requests(
        DatasetOptions("shared-prefix", num_prompts=4, input_len=8, prefix_len=50, num_prefixes=2), RULER
    )
    heads = [request.prompt.split()[:50] for request in shared]
    assert heads[0] == heads[2] != heads[1] == heads[3]
    assert {len(request.prompt.split()) for request in shared} == {54}


def test_a_ruler_counts_as_the_model_does() -> None:
    texts = calibration_texts(0)
    words = [len(text.split()) for text in texts]
    ruler = calibrated(texts, (2 * words[0] + 5, 2 * words[1] + 5))
    assert (ruler.tokens_per_word, ruler.overhead) == (2.0, 5.0)
    assert len(ruler.words("x", 100).split()) == 50


def test_a_trace_keeps_prefixes_and_times(tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    lines = [(2000, 1030, [1, 2, 3]), (500, 600, [1, 9])]
    file.write_text("".join(
        json.dumps({"timestamp": at, "input_length": length, "output_length": 3, "hash_ids": ids}) + "\n"
        for at, length, ids in lines
    ))  # fmt: skip
    first, second = make_requests(DatasetOptions("trace", str(file), trace_speed=2.0), RULER)
    assert (first.at, second.at) == (0.0, 0.75)
    assert [len(request.prompt.split()) for request in (first, second)] == [596, 1026]
    assert first.prompt.split()[:512] == second.prompt.split()[:512]
    assert first.prompt.split()[512:520] != second.prompt.split()[512:520]
    cut = make_requests(DatasetOptions("trace", str(file), max_input_len=100), RULER)
    assert [len(request.prompt.split()) for request in cut] == [96, 96]


def test_sharegpt_conversations_of_a_usable_length(tmp_path: Path) -> None:
    file = tmp_path / "chats.json"
    talks = [("a" * 40, "b" * 80), ("short", "b" * 80), ("a" * 4 * 1025, "b" * 80), ("c" * 400, "d" * 40)]
    file.write_text(json.dumps([{"conversations": [{"value": text} for text in talk]} for talk in talks] + [
        {"conversations": [{"value": "nobody answered this one"}]}
    ]))  # fmt: skip
    made = make_requests(DatasetOptions("sharegpt", str(file)), RULER)
    assert sorted((len(request.prompt), request.output_len) for request in made) == [(40, 20), (400, 10)]
    fixed = make_requests(DatasetOptions("sharegpt", str(file), sharegpt_output_len=5, max_input_len=50), RULER)
    assert [(len(request.prompt), request.output_len) for request in fixed] == [(40, 5)]


# --- the commands ---


def test_serve_measures_a_server(server_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "result.json"
    shape = ["--random-input-len", "40", "--random-output-len", "5", "--num-prompts", "6"]
    load = ["--request-rate", "100", "--max-concurrency", "2", "--save-result", str(file)]
    assert main(["bench", "serve", "--url", server_url, *shape, *load]) == 0
    captured = capsys.readouterr()
    assert "Successful requests:                     6 " in captured.out
    result = json.loads(file.read_text())
    assert (result["completed"], result["failed"], result["total_output_tokens"]) == (6, 0, 30)
    assert 0.8 * 240 < result["total_input_tokens"] < 1.2 * 240
    assert 1 <= result["max_concurrent_requests"] <= 2
    assert result["mean_ttft_ms"] > 0
    assert result["mean_itl_ms"] > 0

    shape = ["--backend", "openai-chat", "--random-input-len", "9000", "--num-prompts", "2"]
    assert main(["bench", "serve", "--url", server_url, *shape]) == 1
    captured = capsys.readouterr()
    assert "Failed requests:                         2 " in captured.out
    assert "failed: HTTP 400" in captured.err
    assert "context length" in captured.err

    shape = ["--random-input-len", "10", "--random-output-len", "8000", "--num-prompts", "3", "--max-concurrency", "1"]
    assert main(["bench", "serve", "--url", server_url, *shape, "--time-limit", "0.5"]) == 1
    captured = capsys.readouterr()
    assert "3 failed: no answer within the limit of 0.5 s" in captured.err
    assert "Peak concurrent requests:                1.00" in captured.out


def run(*arguments: str) -> str:
    """Run `radixrt bench` in a process of its own, and return what it prints."""
    command = [sys.executable, "-m", "radixrt", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout


def test_engines_without_a_server(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    engine = ["--model", str(tiny_model("llama")), *SMALL, "--random-input-len", "20", "--random-output-len", "4"]
    file = tmp_path / "result.json"
    out = run("throughput", *engine, "--num-prompts", "5", "--save-result", str(file))
    assert "Total num output tokens:  20" in out
    assert json.loads(file.read_text())["num_requests"] == 5
    counts = ["--batch-size", "2", "--num-iters", "3", "--num-iters-warmup", "1", "--save-result", str(file)]
    out = run("latency", *engine, *counts)
    assert out.startswith("Avg latency: ")
    assert "99% percentile latency: " in out
    assert len(json.loads(file.read_text())["latencies"]) == 3


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--url", "http://127.0.0.1:1"], ["http://127.0.0.1:1/v1", "does not answer"]),
        (["--dataset-name", "trace"], ["trace", "--dataset-path"]),
        (["--dataset-name", "trace", "--dataset-path", "/nowhere"], ["/nowhere", "cannot be read"]),
        (["--dataset-name", "sharegpt", "--dataset-path", __file__], [__file__, "ShareGPT"]),
        (["--save-result", "/nowhere/at/all"], ["--save-result", "/nowhere/at/all"]),
        (["--num-prompts", "0"], ["--num-prompts", "at least 1"]),
        (["--request-rate", "0"], ["--request-rate", "above 0"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_line(
    server_url: str, arguments: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main(["bench", "serve", "--url", server_url, *arguments])
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert all(text in error for text in named)
