"""Makes the table of docs/quantization.md, "Quality": what a model loses when its weights have fewer bits.

Each scheme is compared with bfloat16 weights of the same model. KL is the mean Kullback-Leibler divergence from the
next-token distribution of bfloat16 to the one of the scheme, in nats, over a text; "top 1" is the share of positions at
which both find the same token most probable. The text is Python's own documentation, which every CPython contains
(`pydoc_data.topics`), in windows of 512 tokens at equal distances. It is computed in steps of 512 tokens, as prompts
are, and a part of it in steps of one token, as outputs are, because kernels differ by the number of rows.

Forced answers are questions with four choices, of which the most probable one is taken; "same" is the share of
questions with the choice of bfloat16. JSON answers are sampled at temperature 1 with a schema, and decoded by another
library.

`fp8-activations` are fp8 weights whose inputs are rounded to float8, with a scale for each token, in steps of more than
one token, as CUDA's kernels do in steps of more than 32. It is for CPUs, on CUDA `fp8` does that itself, and has no
answers.

Run: python -m benchmarks.offline.quantization [--model FOLDER] [--schemes none fp8 int8 int4 ...]
"""

from __future__ import annotations

import argparse
import hashlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import torch

from benchmarks.common import machine
from benchmarks.common.quantized_folders import FP8_MAX, WRITERS, write_quantized
from benchmarks.common.tables import table
from benchmarks.offline.forced_answers import QUESTIONS
from radixrt import Engine
from radixrt.attention import make_backend
from radixrt.attention.kv_cache import KVCache
from radixrt.config import DEFAULT_MODEL, ModelConfig
from radixrt.distributed.partial_sum import PartialSum
from radixrt.doctor.model import model_needs
from radixrt.forward_batch.batch_builder import BatchBuilder
from radixrt.forward_batch.forward_batch import ForwardMode
from radixrt.layers.formats.base import WeightFormat
from radixrt.layers.linear import Linear
from radixrt.messages.runner import ForwardStep
from radixrt.messages.wire import Int32Array, pack_i32
from radixrt.models.loading.source import cache_folder, prepare_model
from radixrt.models.loading.weights import load_model
from radixrt.models.model_config import load_model_spec
from radixrt.models.precision import torch_dtype
from radixrt.runner.runner_config import make_ops, supports_dependent_launch
from radixrt.tokenizer.tokenizer import Tokenizer

TOKENS, WINDOW, TOKENS_ALONE = 20_000, 512, 128
REFERENCE = "none"
ONLINE = ("fp8", "int8", "int4")
FLOAT8_ACTIVATIONS = "fp8-activations"
DEFAULT_SCHEMES = ("fp8", "fp8-blocks", "int8", "int4", "int4-g64")
JSON_ANSWERS = 40
MIB = 1 << 20


class Person(msgspec.Struct, forbid_unknown_fields=True):
    """The answer that JSON_SCHEMA describes."""

    name: Annotated[str, msgspec.Meta(max_length=24)]
    age: Annotated[int, msgspec.Meta(ge=0, le=120)]
    languages: Annotated[list[Annotated[str, msgspec.Meta(max_length=12)]], msgspec.Meta(max_length=3)]
    married: bool


JSON_SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 24},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "languages": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 3},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "languages", "married"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Variant:
    """A model whose weights are in a scheme.

    Attributes:
        model: name, folder or GGUF file.
        quantization: the option of this name.
        rounds_inputs: inputs of linear layers are rounded to float8.
    """

    model: str
    quantization: str
    rounds_inputs: bool = False

    def folder(self, device: str) -> Path:
        return prepare_model(
            ModelConfig(self.model, dtype="bfloat16", quantization=self.quantization), device=device
        ).folder


class RoundedInputs:
    """A weight format that rounds inputs to float8, with a scale for each token, in steps of several tokens.

    Args:
        other: the format that multiplies.
    """

    def __init__(self, other: WeightFormat) -> None:
        self._other = other

    def __getattr__(self, name: str) -> Any:
        return getattr(self._other, name)

    def linear(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._other.linear(weight, self._rounded(x), bias)

    def silu_and_mul(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._other.silu_and_mul(weight, self._rounded(x), bias)

    def partial_sum(self, weight: Any, x: torch.Tensor, bias: torch.Tensor | None, group: Any) -> PartialSum:
        return self._other.partial_sum(weight, self._rounded(x), bias, group)

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] == 1:
            return x
        scale = (x.float().abs().amax(dim=1, keepdim=True) / FP8_MAX).clamp(min=1e-12)
        return ((x.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(x.dtype)


class Scorer:
    """Computes logits of whole sequences, with the kernels of an engine.

    Args:
        length: longest sequence, in tokens.
    """

    def __init__(self, variant: Variant, device: str, length: int) -> None:
        folder, self._device = variant.folder(device), torch.device(device)
        spec = load_model_spec(folder, variant.quantization)
        dtype, kernels = torch_dtype("bfloat16"), cache_folder() / "kernels"
        early = supports_dependent_launch(self._device)
        ops = make_ops("auto", self._device, kernels, dependent_launch=early)
        self._model = load_model(folder, spec, dtype="bfloat16", device=self._device, ops=ops)
        if variant.rounds_inputs:
            for layer in self._model.modules():
                if isinstance(layer, Linear):
                    layer.format = RoundedInputs(layer.format)  # type: ignore[assignment]
        layers = self._model.attention_layers
        pool = KVCache(layers, length, 1, dtype, self._device)
        self._attention = make_backend(
            "auto", pool, layers, dtype=dtype, max_rows=1, context_length=length, kernel_cache=kernels,
            dependent_launch=early,
        )  # fmt: skip
        self._batches = BatchBuilder(1, length, self._device)

    def log_probs(self, ids: Int32Array, step_tokens: int) -> Iterator[torch.Tensor]:
        """Yield log-probabilities float32 [tokens, vocab] of one step after the other."""
        for start in range(0, len(ids), step_tokens):
            new = ids[start : start + step_tokens]
            end = start + len(new)
            step = ForwardStep(
                step_id=0, mode=int(ForwardMode.EXTEND), req_pool_idx=pack_i32([1]), seq_lens=pack_i32([end]),
                out_cache_loc=pack_i32(np.arange(start + 1, end + 1)), extend_lens=pack_i32([len(new)]),
                input_ids=pack_i32(new), samples=b"\1",
            )  # fmt: skip
            with torch.inference_mode():
                batch = self._batches.build(step, narrow=False)
                self._attention.prepare(batch)
                hidden = self._model.forward(batch.input_ids, batch.positions, batch, self._attention)
                yield self._model.compute_logits(hidden).log_softmax(dim=1)


def compare(
    exact: Scorer, others: Sequence[Scorer], windows: Sequence[Int32Array], step_tokens: int
) -> list[tuple[float, float]]:
    """Return, for each of the others, the mean KL divergence from `exact` in nats, and the share of tokens after which
    both find the same token most probable."""
    sums = np.zeros((len(others), 2))
    tokens = 0
    for ids in windows:
        steps = zip(
            exact.log_probs(ids, step_tokens), *(each.log_probs(ids, step_tokens) for each in others), strict=True
        )
        for here, *rest in steps:
            top, probs = here.argmax(dim=1), here.exp()
            for row, there in zip(sums, rest, strict=True):
                row += float((probs * (here - there)).sum()), int((there.argmax(dim=1) == top).sum())
            tokens += len(here)
    return [(divergence / tokens, same / tokens) for divergence, same in sums]


def text_windows(tokenizer: Tokenizer, tokens: int, window: int) -> list[Int32Array]:
    """Return windows of the text, each of as many tokens, at equal distances."""
    import pydoc_data.topics

    topics = pydoc_data.topics.topics
    ids = np.asarray(tokenizer.encode("\n\n".join(topics[name] for name in sorted(topics))), np.int32)
    count = -(-tokens // window)
    starts = np.linspace(0, len(ids) - window, count).astype(int)
    return [ids[start : start + window] for start in starts]


def answer(variant: Variant, device: str, questions: Sequence[tuple[str, Sequence[str]]]) -> tuple[list[int], float]:
    """Return the index of the choice for each question, and the share of JSON answers that are valid."""
    with Engine(
        variant.model, quantization=variant.quantization, dtype="bfloat16", device=device, executor="uni",
        kv_cache_tokens=16_384, log_level="warning",
    ) as engine:  # fmt: skip
        chosen = [engine.score(question, choices).choice for question, choices in questions]
        sampling: dict[str, Any] = {"temperature": 1.0, "max_tokens": 192, "json_schema": JSON_SCHEMA}
        prompts = [f"Person {i} as JSON: " for i in range(JSON_ANSWERS)]
        outputs = engine.generate(prompts, [{**sampling, "seed": i} for i in range(JSON_ANSWERS)])
        assert isinstance(outputs, list)
        return chosen, sum(_is_valid(output.text) for output in outputs) / len(outputs)


def _is_valid(text: str) -> bool:
    try:
        msgspec.json.decode(text, type=Person)
    except msgspec.DecodeError:
        return False
    return True


HEADER = ["weights", "MiB", "KL, prompts", "KL, one row", "top 1", "forced answers", "same", "JSON valid"]


def _weight_bytes(variant: Variant, device: str) -> int:
    needs = model_needs(
        str(variant.folder(device)), device=device, free_bytes=0, dtype="bfloat16", quantization=variant.quantization
    )
    return needs.weight_bytes


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", default=DEFAULT_MODEL, help="of plain weights, or a GGUF file (default: %(default)s)"
    )
    parser.add_argument(
        "--schemes", nargs="+", choices=(*ONLINE, FLOAT8_ACTIVATIONS, "auto", *WRITERS), default=DEFAULT_SCHEMES
    )
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--window", type=int, default=WINDOW)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    options = parser.parse_args(argv)
    device, plain = options.device, Variant(options.model, REFERENCE)
    folder = plain.folder(device)
    windows = text_windows(Tokenizer.from_folder(folder), options.tokens, options.window)
    for name, value in machine.facts().items():
        print(f"{name}: {value}")
    print(f"device: {torch.cuda.get_device_name() if device == 'cuda' else 'cpu'}, torch {torch.__version__}")
    digest = hashlib.sha256(np.concatenate(windows).tobytes()).hexdigest()
    print(f"text: {sum(map(len, windows))} tokens, sha256 {digest[:16]}", flush=True)
    variants = {REFERENCE: plain}
    with ExitStack() as stack:
        for scheme in options.schemes:
            variants[scheme] = Variant(options.model, scheme)
            if scheme == FLOAT8_ACTIVATIONS:
                variants[scheme] = Variant(options.model, "fp8", rounds_inputs=True)
            if scheme in WRITERS:
                made = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                variants[scheme] = Variant(str(write_quantized(folder, made, scheme)), "auto")
        rows = measure(variants, windows, device)
    print(table(HEADER, rows))


def measure(variants: Mapping[str, Variant], windows: Sequence[Int32Array], device: str) -> list[list[str]]:
    """Return a row for each scheme; the first one is the reference."""
    scorers = [Scorer(variant, device, len(windows[0])) for variant in variants.values()]
    prompts = compare(scorers[0], scorers, windows, len(windows[0]))
    alone = compare(scorers[0], scorers, [windows[0][:TOKENS_ALONE]], 1)
    scorers.clear()
    questions = [(question, choices) for question, choices, _ in QUESTIONS]
    rows: list[list[str]] = []
    exact: list[int] = []
    for (name, variant), (divergence, same), (divergence_alone, _) in zip(
        variants.items(), prompts, alone, strict=True
    ):
        answers = ["-", "-", "-"]
        if not variant.rounds_inputs:
            chosen, valid = answer(variant, device, questions)
            exact = exact or chosen
            right = sum(index == correct for index, (_, _, correct) in zip(chosen, QUESTIONS, strict=True))
            agreed = sum(a == b for a, b in zip(chosen, exact, strict=True))
            answers = [f"{right} of {len(QUESTIONS)}", f"{agreed / len(QUESTIONS):.0%}", f"{valid:.0%}"]
        rows.append([
            name, f"{_weight_bytes(variant, device) / MIB:.0f}", f"{divergence:.4f}", f"{divergence_alone:.4f}",
            f"{same:.1%}", *answers,
        ])  # fmt: skip
        print(" ".join(rows[-1]), flush=True)
    return rows


if __name__ == "__main__":
    main()
