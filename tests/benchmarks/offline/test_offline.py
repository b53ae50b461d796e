"""The offline benchmark: its workloads are those of its description, and its floors what can be counted by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.common.device_rates import H200, Device
from benchmarks.common.engine_options import parse_options
from benchmarks.common.model_shapes import CONFIGS, Shape, made_up_tokenizer, shape_folder, shape_of
from benchmarks.offline import __main__ as offline
from benchmarks.offline.__main__ import PEERS, Result, measure, result_row
from benchmarks.offline.workloads import (
    HIGHEST_ID,
    LOWEST_ID,
    MAKERS,
    Workload,
    floor_of,
    make_workload,
    uncached_floor_of,
)
from radixrt.config import make_config
from radixrt.models.model_config import load_model_spec
from radixrt.tokenizer.tokenizer import Tokenizer

SIZES = {
    "single": (1, 64, 256),
    "decode64": (64, 64 * 512, 64 * 256),
    "prefill": (16, 16 * 8192, 16),
    "shared4k": (256, 256 * 4224, 256 * 64),
    "tree": (512, 512 * 1344, 512 * 32),
    "fork8": (128, 128 * 4296, 128 * 64),
    "chat8": (64, 64 * 360, 64 * 8 * 120),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    workload = make_workload(name, seed=0)
    assert (len(workload.paths), workload.prompt_tokens, workload.output_tokens) == SIZES[name]


def test_mixed_lengths_are_within_their_bounds() -> None:
    workload = make_workload("mixed256", seed=0)
    lengths = [workload.prompt_len(i) for i in range(256)]
    for values in (lengths, workload.outputs):
        assert 100 <= min(values) < 130
        assert 990 < max(values) <= 1024
    assert len(workload.outputs) == 256


@pytest.mark.parametrize("name", MAKERS)
def test_the_seed_decides_the_tokens(name: str) -> None:
    first, again, other = (make_workload(name, seed=seed, scale=0.1).prompts() for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert all(LOWEST_ID <= token <= HIGHEST_ID for prompt in first for token in prompt)


def test_prompts_of_a_tree_share_roots_and_branches() -> None:
    prompts = make_workload("tree", seed=3).prompts()
    assert {len(prompt) for prompt in prompts} == {1344}
    assert len({tuple(prompt[:1024]) for prompt in prompts}) == 8
    assert len({tuple(prompt[:1280]) for prompt in prompts}) == 64
    assert len({tuple(prompt) for prompt in prompts}) == 512
    assert len({tuple(prompt[:1024]) for prompt in prompts[:16]}) > 1  # shuffled


@pytest.mark.parametrize("name", MAKERS)
def test_small_scales_are_still_workloads(name: str) -> None:
    workload = make_workload(name, seed=0, scale=0.001)
    assert workload.prompts()
    assert min(workload.outputs) >= 1


SHAPE = Shape(layer_params=1000, head_params=100, kv_bytes=10, attention_flops=4)
BYTES_ONLY = Device(bytes_per_s=1.0, flops_per_s=1e30)
FLOPS_ONLY = Device(bytes_per_s=1e30, flops_per_s=1.0)


def test_floor_of_one_request() -> None:
    import numpy as np

    workload = Workload("x", [np.zeros(3, np.int32)], [(0,)], [3])
    floor = floor_of(workload, SHAPE, BYTES_ONLY)
    assert (floor.new_tokens, floor.decode_steps) == (3, 2)
    assert floor.prefill_s == SHAPE.weight_bytes(3) == 2200
    assert floor.decode_s == floor.decode_bytes == 2 * 2200 + 10 * (4 + 5)
    floor = floor_of(workload, SHAPE, FLOPS_ONLY)
    assert floor.prefill_s == floor.prefill_flops == 2 * 1000 * 3 + 4 * (1 + 2 + 3) + 2 * 100
    assert floor.decode_s == 2 * (2 * 1100) + 4 * (4 + 5)


def test_floor_counts_shared_tokens_once_and_rows_until_they_end() -> None:
    import numpy as np

    segments = [np.zeros(n, np.int32) for n in (5, 2, 1)]
    workload = Workload("x", segments, [(0, 1), (0, 2)], [2, 3])
    floor = floor_of(workload, SHAPE, BYTES_ONLY)
    assert floor.new_tokens == 8
    assert floor.decode_bytes == 2 * 2200 + 10 * (8 + 2 + 6 + 2)
    flops = floor_of(workload, SHAPE, FLOPS_ONLY).prefill_flops
    assert flops == 2 * 1000 * 8 + 4 * (15 + (6 + 7) + 6) + 2 * 2 * 100


def test_floors_on_an_h200_are_those_of_the_limits() -> None:
    llama = shape_of("llama-3.1-8b")
    assert llama.weight_bytes(1) == llama.weight_bytes(64) == pytest.approx(15.0e9, rel=0.01)
    assert llama.kv_bytes == 131_072
    assert shape_of("qwen3-0.6b").kv_bytes == 114_688
    single = make_workload("single", seed=0)
    assert 250 < single.output_tokens / floor_of(single, llama, H200).seconds < 290
    assert 1.0 < floor_of(make_workload("shared4k", seed=0), llama, H200).seconds < 1.4
    for shape, figures in PEERS.items():
        for name, (vllm, sglang, aim) in figures.items():
            workload = make_workload(name, seed=0)
            assert max(vllm, sglang) < aim < workload.counted_tokens / floor_of(workload, shape_of(shape), H200).seconds


def test_a_mixture_reads_the_experts_that_are_hit() -> None:
    shape = shape_of("qwen3-30b-a3b")
    assert shape.weight_bytes(1) == 2 * (shape.layer_params + shape.head_params) == pytest.approx(6.08e9, rel=0.01)
    assert shape.weight_bytes(64) == pytest.approx(59.6e9, rel=0.01)  # 126 of 128 experts
    assert shape.weight_bytes(4096) == pytest.approx(60.5e9, rel=0.01)
    rates = {"single": 671, "decode64": 4_046, "mixed256": 8_082}
    for name, rate in rates.items():
        workload = make_workload(name, seed=0)
        assert workload.counted_tokens / floor_of(workload, shape, H200).seconds == pytest.approx(rate, rel=0.01)


def test_experts_of_mxfp4_numbers_are_read_as_they_are() -> None:
    shape, larger = shape_of("gpt-oss-20b"), shape_of("gpt-oss-120b")
    assert shape.weight_bytes(10**6) == pytest.approx(12.6e9, rel=0.01)
    assert shape.weight_bytes(1) == pytest.approx(3.7e9, rel=0.01)
    assert larger.weight_bytes(10**6) == pytest.approx(64.0e9, rel=0.01)
    assert shape.kv_bytes == 12 * 2 * 8 * 64 * 2  # half of the layers read a window


@pytest.mark.parametrize(("quantization", "per_weight"), [("fp8", 1), ("int8", 1), ("int4", 0.5)])
def test_quantized_weights_and_fp8_keys_are_read_in_fewer_bytes(quantization: str, per_weight: float) -> None:
    plain = shape_of("llama-3.1-8b")
    shape = shape_of("llama-3.1-8b", {"quantization": quantization, "kv_cache_dtype": "fp8_e4m3"})
    assert shape.kv_bytes == plain.kv_bytes // 2
    assert shape.weight_bytes(1) - 2 * shape.head_params == pytest.approx(per_weight * shape.layer_params, rel=0.2)
    assert plain.weight_bytes(1) == 2 * (plain.layer_params + plain.head_params)


def test_throughput_shapes_have_the_lengths_of_their_names() -> None:
    workload = make_workload("in500-out2000", seed=0, scale=0.01)
    assert (workload.prompt_tokens, workload.output_tokens) == (8 * 5, 8 * 20)


def test_recurrent_layers_read_and_write_a_state_for_each_token() -> None:
    shape = shape_of("qwen3.5-4b")
    assert shape.weight_bytes(1) == pytest.approx(8.4e9, rel=0.01)
    assert (shape.kv_bytes, shape.state_bytes) == (32_768, 51_511_296)
    assert shape_of("lfm2-350m").state_bytes == 40 * 1024
    assert shape_of("qwen3.5-35b-a3b").weight_bytes(10**6) == pytest.approx(69e9, rel=0.01)
    for name, rate in {"single": 495, "decode64": 12_800}.items():
        workload = make_workload(name, seed=0)
        assert workload.counted_tokens / floor_of(workload, shape, H200).seconds == pytest.approx(rate, rel=0.02)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_shape_is_a_model_folder(name: str, tmp_path: Path) -> None:
    folder = shape_folder(name, tmp_path)
    assert folder == shape_folder(name, tmp_path)
    spec = load_model_spec(folder)
    assert spec.decoder is not None
    assert spec.vocab_size > HIGHEST_ID
    assert not list(folder.glob("*.[0-9]*"))


def test_the_made_up_tokenizer_has_every_id_and_reads_any_text(tmp_path: Path) -> None:
    folder = tmp_path / "m"
    folder.mkdir()
    (folder / "tokenizer.json").write_text(made_up_tokenizer(10_240))
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.decoder_family == "byte_level"
    assert tokenizer.vocab_size == 10_240
    assert all(tokenizer.token_bytes(i) for i in range(10_240))
    text = "naïve 東京"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_options_are_read_as_their_types() -> None:
    given = ["max-running-requests=8", "prefix_cache=false", "schedule_conservativeness=2", "kv_cache_tokens=none"]
    options = parse_options([*given, "dtype=float32"])
    assert options == {
        "max_running_requests": 8,
        "prefix_cache": False,
        "schedule_conservativeness": 2.0,
        "kv_cache_tokens": None,
        "dtype": "float32",
    }
    make_config(**options)


@pytest.mark.parametrize("pair", ["page_size", "page_sise=1", "page_size=x", "prefix_cache=1"])
def test_options_that_are_none(pair: str) -> None:
    with pytest.raises(SystemExit, match=pair.partition("=")[0]):
        parse_options([pair])


def test_the_ratio_is_to_the_better_peer() -> None:
    result = Result(
        "llama-3.1-8b", "single", 1, [256] * 3, [1.0, 1.28, 2.0], 256.0, 200.0, {}, [],
    )  # fmt: skip
    assert result_row(result, scaled=False) == [
        "single", "200", "1.28", "1.280", "1.000-2.000", "200", "200", "235", "1.00",
    ]  # fmt: skip
    assert result_row(result, scaled=True)[5:] == ["-"] * 4


def test_the_figure_is_the_median_of_the_runs_own_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    class Engine:
        stats = None
        flushes = 0

        def flush_cache(self) -> None:
            self.flushes += 1

    ran: list[Workload] = []
    monkeypatch.setattr(offline, "run_once", lambda engine, workload, *_: ran.append(workload) or float(len(ran)))
    engine = Engine()
    result = measure(engine, "tiny", "mixed256", runs=3, scale=0.02, seed=0)
    assert len(ran) == 4  # the first warms up
    assert len({tuple(map(tuple, workload.prompts())) for workload in ran}) == 4
    assert engine.flushes == 5
    assert result.seconds == [2.0, 3.0, 4.0]
    assert result.tokens == [workload.output_tokens for workload in ran[1:]]
    rates = sorted(tokens / seconds for tokens, seconds in zip(result.tokens, result.seconds, strict=True))
    assert result.rate == rates[1]
    assert result.first == result.tokens[0] / 2.0
    fresh = measure(engine, "tiny", "mixed256", runs=3, scale=0.02, seed=0, fresh=True)
    assert fresh.seconds == [5.0, 6.0, 7.0]


def test_a_turn_continues_the_answers_before() -> None:
    chat = make_workload("chat8", seed=0, scale=0.05)
    prompts = chat.prompts()
    answers = [[1, 2, i] for i in range(len(prompts))]
    after = chat.next_prompts(1, prompts, answers)
    for i, (prompt, answer, longer) in enumerate(zip(prompts, answers, after, strict=True)):
        assert longer == prompt + answer + chat.segments[chat.turns[0][i]].tolist()


def test_the_floor_of_a_conversation_computes_each_token_once() -> None:
    chat, shape = make_workload("chat8", seed=0), shape_of("tiny")
    floor = floor_of(chat, shape, H200)
    assert floor.new_tokens == 64 * (360 + 7 * (1 + 60))
    assert floor.decode_steps == 8 * 119
    first = floor_of(Workload("chat8", chat.segments, chat.paths, chat.outputs), shape, H200)
    assert first.prefill_flops < floor.prefill_flops
    length, answered = 300 + 8 * 60 + 7 * 120, 7 * 119  # the latter computed by decode steps
    whole = 2 * shape.layer_params * length + shape.attention_flops * length * (length + 1) // 2
    answers = 2 * shape.layer_params * answered
    assert floor.prefill_flops < 64 * (whole - answers + 8 * 2 * shape.head_params)


def test_the_floor_without_a_cache_computes_each_prompt_at_each_turn() -> None:
    shape = shape_of("qwen3.5-4b")
    for name, ratio in (("chat8", 1.97), ("fork8", 4.68), ("single", 1.0)):
        workload = make_workload(name, seed=0)
        floor, uncached = floor_of(workload, shape, H200), uncached_floor_of(workload, shape, H200)
        assert uncached.seconds / floor.seconds == pytest.approx(ratio, abs=0.01)
        if name == "chat8":
            assert uncached.new_tokens == 64 * sum(360 + turn * 180 for turn in range(8))
            assert uncached.decode_s == floor.decode_s


def test_runs_as_a_command(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    command = [sys.executable, "-m", "benchmarks.offline", "--scale", "0.01", "--runs", "1", "--explain"]
    options = ["--set", "executor=uni", "--set", "num_threads=1", "--set", "kv_cache_tokens=8192"]
    result = subprocess.run(
        [*command, *options, "--workloads", "single", "chat8", "--json", str(out)],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "| chat8 " in result.stdout
    assert "floor without cache / floor" in result.stdout
    written = json.loads(out.read_text())
    assert {r["workload"] for r in written["shapes"]["tiny"]["results"]} == {"single", "chat8"}
