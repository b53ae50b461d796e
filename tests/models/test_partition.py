"""Partition of a decoder over ranks: every weight is held once; sizes that cannot be divided are refused by name."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from radixrt.errors import ConfigError
from radixrt.models.decoder_spec import DecoderSpec, LayerSpec
from radixrt.models.model_config import ModelSpec
from radixrt.models.partition import VOCAB_ALIGN, Partition, check_partition, partition


def spec(**decoder: Any) -> ModelSpec:
    sizes: dict[str, Any] = {
        "hidden_size": 64, "intermediate_size": 96, "layers": (LayerSpec(),) * 2, "num_heads": 8, "num_kv_heads": 4,
        "head_dim": 16,
    }  # fmt: skip
    vocab_size = decoder.pop("vocab_size", 512)
    fields = {f.name: None for f in dataclasses.fields(DecoderSpec)}
    made = DecoderSpec(**{**fields, **sizes, **decoder})
    return ModelSpec("LlamaForCausalLM", vocab_size, 512, (2,), 1, "float32", made)


def parts(model: ModelSpec, size: int) -> list[Partition]:
    return [partition(model, rank, size) for rank in range(size)]


def joined(ranges: list[range]) -> list[int]:
    return [i for each in ranges for i in each]


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_heads_columns_and_vocabulary_are_held_once(size: int) -> None:
    each = parts(spec(), size)
    assert joined([p.heads for p in each]) == list(range(8))
    assert joined([p.intermediate for p in each]) == list(range(96))
    assert joined([p.vocab for p in each]) == list(range(512))
    if size <= 4:
        assert joined([p.kv_heads for p in each]) == list(range(4))


@pytest.mark.parametrize(("heads", "kv_heads", "size"), [(8, 2, 4), (8, 1, 8), (8, 4, 8), (12, 3, 6), (8, 2, 2)])
def test_query_heads_are_with_the_key_value_heads_that_they_read(heads: int, kv_heads: int, size: int) -> None:
    for p in parts(spec(num_heads=heads, num_kv_heads=kv_heads), size):
        assert {h // (heads // kv_heads) for h in p.heads} == set(p.kv_heads)


@pytest.mark.parametrize("vocab_size", [500, 512, 1, 130, 49152, 151936])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_a_vocabulary_is_padded_to_equal_rows(vocab_size: int, size: int) -> None:
    each = parts(spec(vocab_size=vocab_size), size)
    assert joined([p.vocab for p in each]) == list(range(vocab_size))
    assert len({p.vocab_rows for p in each}) == 1
    assert each[0].vocab_rows % VOCAB_ALIGN == 0
    assert each[0].vocab_rows * size < vocab_size + VOCAB_ALIGN * size
    assert partition(spec(vocab_size=vocab_size)).vocab_rows == vocab_size  # one rank pads nothing


@pytest.mark.parametrize(
    ("sizes", "tp", "fitting"),
    [
        ({}, 3, "1, 2, 4, 8"),
        ({"num_heads": 9, "num_kv_heads": 3, "intermediate_size": 1536}, 2, "1, 3"),
        ({"intermediate_size": 90}, 4, "1, 2"),
        ({"num_heads": 12, "num_kv_heads": 4}, 3, "1, 2, 4, 12"),
        ({}, 16, "1, 2, 4, 8"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(sizes: dict[str, int], tp: int, fitting: str) -> None:
    model = spec(**sizes)
    assert model.decoder is not None
    with pytest.raises(ConfigError) as raised:
        partition(model, 0, tp)
    message = str(raised.value)
    assert message.startswith(f"tp={tp} ")
    assert f"{model.decoder.num_heads} attention heads" in message
    assert message.endswith(f"tp may be {fitting}")


def test_a_model_of_transformers_is_not_split() -> None:
    model = dataclasses.replace(spec(), architecture="GPT2LMHeadModel", decoder=None)
    assert check_partition(model, 1) is None
    with pytest.raises(ConfigError, match=r"tp=2: GPT2LMHeadModel .* use tp=1"):
        check_partition(model, 2)
