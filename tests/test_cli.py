"""The command line as a user meets it: real processes, their output and their exit codes."""

from __future__ import annotations

import gc
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import radixrt
from radixrt.cli import _parse, build_parser, main
from radixrt.cli.engines import _options

HEAVY = {
    "torch",
    "transformers",
    "tokenizers",
    "numpy",
    "msgspec",
    "zmq",
    "starlette",
    "uvicorn",
    "huggingface_hub",
    "xgrammar",
    "llguidance",
    "pydantic",
    "jsonschema",
    "jinja2",
}
SMALL = ["--executor", "uni", "--num-threads", "1", "--dtype", "float32", "--kv-cache-tokens", "2048"]


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "radixrt", *arguments], input=stdin, capture_output=True, text=True, timeout=240
    )


def run_here(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> subprocess.CompletedProcess[str]:
    """The same in this process, for commands that end before they generate anything."""
    try:
        code: object = main(arguments)
    except SystemExit as ended:
        code = ended.code
    assert isinstance(code, int)
    out, err = capfd.readouterr()
    return subprocess.CompletedProcess(arguments, code, out, err)


def one_line(result: subprocess.CompletedProcess[str]) -> str:
    """The only line on stderr of a command that refused to run."""
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.startswith("radixrt")
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


# --- help, version, imports ---


@pytest.mark.parametrize("command", [[], ["launch"], ["generate"], ["doctor"], ["schema"], ["schema", "check"]])
def test_help_imports_nothing_heavy(command: list[str]) -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "radixrt", *command, "--help"],
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert result.returncode == 0
    assert result.stdout.startswith("usage: radixrt")
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in result.stderr.splitlines()}
    assert "radixrt" in imported
    assert not imported & HEAVY


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import sys, radixrt; print(*{name.partition('.')[0] for name in sys.modules})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240, check=True)
    assert "radixrt" in result.stdout.split()
    assert not set(result.stdout.split()) & HEAVY


def test_every_public_name_of_the_package_exists() -> None:
    for name in radixrt.__all__:
        assert getattr(radixrt, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Engines'"):
        _ = radixrt.Engines


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"radixrt {radixrt.__version__}\n"


def test_a_model_that_a_worker_refuses_is_one_line_without_its_process(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = shutil.copytree(tiny_model("llama"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "intermediate_size": 224}))
    result = run("generate", "hi", "--model", str(folder), "--dtype", "float32", "--kv-cache-tokens", "2048")
    assert one_line(result) == (
        f"radixrt: the tensors in {folder} do not fit its config.json; of another shape: "
        "model.layers.0.mlp.down_proj.weight [64, 112] instead of [64, 224] and 8 more\n"
    )


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert re.search(r"^ +launch +start the OpenAI-compatible server$", out, re.MULTILINE)
    assert re.search(r"^ +generate +answer one prompt on the terminal$", out, re.MULTILINE)
    assert re.search(r"^ +doctor +check this machine for serving", out, re.MULTILINE)
    assert re.search(r"^ +schema +check a schema, a regex or a grammar$", out, re.MULTILINE)


def test_names_of_vllm_and_sglang_are_aliases() -> None:
    line = "serve -tp 2 some/model --max-model-len=9 --max-num-seqs 3 --disable-radix-cache --enforce-eager --seed 5"
    options = _options(_parse(build_parser(), line.split()))
    ours = "launch some/model --tp 2 --context-length 9 --max-running-requests 3 --no-prefix-cache --random-seed 5"
    assert options == _options(_parse(build_parser(), [*ours.split(), "--cuda-graph", "off"]))
    assert options["tp"] == 2
    vllm = ["serve", "--no-enable-prefix-caching", "--disable-log-stats", "--disable-overlap-schedule", "--dp", "2"]
    options = _options(_parse(build_parser(), vllm))
    given = {"prefix_cache": False, "log_stats_interval_s": 0.0, "max_inflight_steps": 1, "replicas": 2}
    assert options.items() >= given.items()


# --- mistakes: exit code 2 and one line that names the culprit ---


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], ["COMMAND"]),
        (["frobnicate"], ["'frobnicate'", "launch", "generate"]),
        (["start", "some/model"], ["'start'", "did you mean radixrt launch?"]),
        (["lauch"], ["'lauch'", "did you mean radixrt launch?"]),
        (["launch", "--no-such-flag"], ["no option --no-such-flag"]),
        (["serve", "--no-such-flag"], ["radixrt launch: there is no option --no-such-flag"]),
        (
            ["launch", "--rope-scaling", "x", "--enable-lora"],
            ["no option --rope-scaling: the model", "no option --enable-lora: LoRA"],
        ),
        (["launch", "--gpu-memory-utilization", "0.9"], ["no option --gpu-memory-utilization: --memory-fraction is"]),
        (["launch", "--hf-config-path", "x", "--page-size", "many", "-tp"], ["'many'", "no option --hf-config-path"]),
        (["launch", "--max-model-len", "many"], ["--max-model-len", "'many'"]),
        (["doctor", "--tensor-parallel-size", "2"], ["no option --tensor-parallel-size; did you mean --tp?"]),
        (["launch", "some/model", "--model", "another"], ["some/model", "another", "one model"]),
        (["launch", "some/model", "another"], ["unexpected 'another'", "'some/model'"]),
        (["generate", "a prompt", "some/model"], ["did you mean --model some/model?"]),
        (["launch", "--page-size", "many"], ["--page-size", "'many'"]),
        (["launch", "--page-size"], ["--page-size"]),
        (["launch", "--page-size", "0"], ["page_size", "at least 1", "0"]),
        (["launch", "--port", "70000"], ["port", "65535"]),
        (["launch", "--dtype", "int4"], ["--dtype", "'int4'", "bfloat16"]),
        (["launch", "--memory-fraction", "nan"], ["memory_fraction", "finite"]),
        (["launch", "--step-timeout-s", "inf"], ["step_timeout_s", "finite"]),
        (["doctor", "--device", "tpu"], ["--device", "'tpu'"]),
        (["generate"], ["prompt"]),
        (["generate", "hello", "--port", "80"], ["--port"]),
        (["generate", "hello", "--max-tokens", "x"], ["--max-tokens", "'x'"]),
        (["tree", "--base-url", "http://127.0.0.1:1"], ["http://127.0.0.1:1", "does not answer"]),
        (["tree", "--base-url", "nowhere"], ["--url must be like", "'nowhere'"]),
        (["tree", "--cacert", "missing.pem"], ["--cacert missing.pem", "No such file"]),
        (["chat", "--url", "http://127.0.0.1:1/v1"], ["http://127.0.0.1:1/v1", "does not answer", "radixrt launch"]),
        (["chat", "--url", "nowhere"], ["--url", "'nowhere'"]),
        (["chat", "--schema", "/nowhere/s.json"], ["/nowhere/s.json", "cannot be read"]),
        (["schema"], ["ACTION"]),
        (["schema", "chek"], ["'chek'", "check"]),
        (["schema", "check"], ["--regex", "--jsonl"]),
        (["schema", "check", "/nowhere/s.json"], ["/nowhere/s.json", "cannot be read"]),
        (["schema", "check", "--jsonl", "/nowhere/s.jsonl"], ["/nowhere/s.jsonl", "cannot be read"]),
        (["schema", "check", "--jsonl", "a", "b.json"], ["--jsonl", "leave out the other files"]),
        (["schema", "check", "--regex", "a", "--ebnf", "b"], ["--regex", "--ebnf"]),
        (["schema", "check", "--regex", "a", "--whitespace", "1000"], ["whitespace", "1000"]),
        (["schema", "check", "--regex", "a", "--model", "/nowhere/at/all"], ["/nowhere/at/all"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_wrong_command_line(arguments: list[str], named: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert all(text in one_line(run_here(arguments, capfd)) for text in named)


@pytest.mark.parametrize(
    "arguments", [["generate", "hi", "--prompt", "x"], ["replay", "t", "--url", "http://a", "--trace", "x"]]
)
def test_a_positional_argument_is_no_option_to_mean(
    arguments: list[str], capfd: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    refused = one_line(run_here(arguments, capfd))
    assert f"there is no option {arguments[-2]}" in refused
    assert f"mean {arguments[-2]}?" not in refused


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["hello", "--max-tokens", "0"], ["max_tokens", "at least 1"]),
        (["hello", "--temperature", "-1"], ["temperature", "-1.0"]),
        (["hello", "--kv-cache-tokens", "8", "--page-size", "16"], ["kv_cache_tokens", "page_size"]),
        (["hello", "--model", "/nowhere/at/all"], ["/nowhere/at/all"]),
    ],
    ids=lambda value: " ".join(value),
)
def test_generate_with_a_wrong_value(arguments: list[str], named: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert all(text in one_line(run_here(["generate", *arguments], capfd)) for text in named)


def test_a_port_in_use_is_found_before_the_model(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        refused = one_line(run_here(["launch", "--port", str(port), "--model", "/nowhere/at/all"], capfd))
    assert f"cannot listen on 127.0.0.1 port {port}: the port is in use" in refused
    assert "choose another --port" in refused
    assert gc.isenabled(), "a refused launch leaves garbage collection as it was"


def test_a_wrong_value_in_a_process_of_its_own() -> None:
    assert "max_tokens" in one_line(run("generate", "hello", "--max-tokens", "0"))


@pytest.fixture(scope="module")
def folder(tiny_model: Callable[[str], Path]) -> str:
    return str(tiny_model("llama"))


def test_a_prompt_that_cannot_be_served(folder: str, capfd: pytest.CaptureFixture[str]) -> None:
    result = run_here(["generate", "", "--raw", "--model", folder, *SMALL], capfd)
    assert "prompt must hold at least one token" in one_line(result)


# --- radixrt generate ---


@pytest.fixture(scope="module")
def answer(folder: str) -> Iterator[Callable[[str, int], str]]:
    """Return the text with which an engine of this process continues another, and the end of the line."""
    options = {"executor": "uni", "num_threads": 1, "dtype": "float32", "kv_cache_tokens": 2048}
    with radixrt.Engine(folder, show_progress=False, **options) as engine:
        yield lambda text, most: engine.generate(text, {"max_tokens": most, "temperature": 0}).text + "\n"


def test_generate_streams_the_engines_own_answer(folder: str, answer: Callable[[str, int], str]) -> None:
    result = run("generate", "The capital of France", "--raw", "--max-tokens", "12", "--model", folder, *SMALL)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == answer("The capital of France", 12)


def test_generate_reads_standard_input_and_renders_the_chat_template(
    folder: str, answer: Callable[[str, int], str]
) -> None:
    arguments = ["--max-tokens", "12", "--model", folder, *SMALL]
    chat = run("generate", "-", "--system", "Be brief.", *arguments, stdin="What is it?")
    rendered = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is it?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (chat.returncode, chat.stderr) == (0, "")
    assert len(chat.stdout) > 1
    assert chat.stdout == answer(rendered, 12)


def test_generate_in_processes_of_its_own(folder: str, answer: Callable[[str, int], str]) -> None:
    arguments = ["--max-tokens", "4", "--model", folder, *SMALL, "--executor", "mp"]
    apart = run("generate", "hello", *arguments)
    assert (apart.returncode, apart.stderr) == (0, "")
    assert apart.stdout == answer("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n", 4)


def generating(folder: Path) -> subprocess.Popen[bytes]:
    """`radixrt generate` in the middle of a long answer."""
    arguments = ["--temperature", "1", "--model", str(folder), *SMALL, "--kv-cache-tokens", "8192"]
    process = subprocess.Popen(
        [sys.executable, "-m", "radixrt", "generate", "hello", "--max-tokens", "8000", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        # As in a terminal: a suite that runs in the background hands an ignored SIGINT down to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    assert process.stdout.read(1), process.communicate()
    return process


@pytest.fixture
def endless_model(tmp_path: Path) -> Path:
    """A model that never ends its answer, so that there is time to go away."""
    from tests.tiny_models import make_tiny_model

    folder = make_tiny_model(tmp_path / "endless", "llama", max_position_embeddings=8192)
    for name in ("config.json", "generation_config.json"):
        text = re.sub(r'"eos_token_id": (\d+|\[[^]]*\])', '"eos_token_id": null', (folder / name).read_text())
        (folder / name).write_text(text)
    return folder


def test_a_reader_that_goes_away_ends_generate_without_a_traceback(endless_model: Path) -> None:
    process = generating(endless_model)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.wait(120) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


def test_an_interrupt_ends_generate_without_a_traceback(endless_model: Path) -> None:
    process = generating(endless_model)
    os.kill(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=120)
    assert (process.returncode, errors) == (130, b"")
