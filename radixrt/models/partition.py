"""Tensor-parallel partition of a decoder: the heads, feed-forward columns and vocabulary rows of a rank.

The split is Megatron-LM's (Shoeybi et al., arXiv 1909.08053): q, k, v, gate and up by output, o and down by input, so
that a layer needs two all-reduces; embedding and head by rows of the vocabulary. Imports no torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from radixrt.errors import ConfigError
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.experts_spec import ExpertsSpec
from radixrt.models.model_config import ModelSpec

VOCAB_ALIGN = 64
"""A rank's vocabulary rows are a multiple of this where there is more than one rank, which suits GEMM tiles."""


@dataclass(frozen=True)
class Partition:
    """The shard of one rank. The ranges count heads, columns and rows of the whole model.

    Attributes:
        heads: query heads.
        kv_heads: the key and value heads that these read; with more ranks than such heads, several ranks hold the same.
        intermediate: columns of a dense feed-forward.
        expert_intermediate: columns of each expert; every rank has a part of all experts.
        k_heads, v_heads: key and value heads of gated delta nets; the value heads are those that the key heads serve.
        channels: of short convolutions.
        vocab: rows of the vocabulary.
        vocab_rows: of embedding and head on every rank; those behind `vocab` are padding.
    """

    rank: int
    size: int
    heads: range
    kv_heads: range
    intermediate: range
    expert_intermediate: range
    k_heads: range
    v_heads: range
    channels: range
    vocab: range
    vocab_rows: int


def partition(spec: ModelSpec, rank: int = 0, size: int = 1, *, expert_columns: int = 1) -> Partition:
    """Return the shard of a decoder that a rank of `size` ranks holds.

    Args:
        spec: a spec whose `decoder` is set.
        expert_columns: ranks have whole groups of so many columns of each expert, if there are enough of them and they
            divide an expert.

    Raises:
        ConfigError: as `check_partition`.
    """
    decoder = check_partition(spec, size)
    assert decoder is not None
    recurrent = decoder.recurrent
    heads, kv_heads = decoder.num_heads // size, max(1, decoder.num_kv_heads // size)
    first_kv = rank * decoder.num_kv_heads // size
    vocab_rows = spec.vocab_size
    if size > 1:
        vocab_rows = -(-spec.vocab_size // (size * VOCAB_ALIGN)) * VOCAB_ALIGN
    start = min(rank * vocab_rows, spec.vocab_size)
    return Partition(
        rank=rank,
        size=size,
        heads=range(rank * heads, (rank + 1) * heads),
        kv_heads=range(first_kv, first_kv + kv_heads),
        intermediate=_share(decoder.intermediate_size, rank, size),
        expert_intermediate=_expert_columns(decoder.experts, rank, size, expert_columns),
        k_heads=_share(0 if recurrent is None else recurrent.k_heads, rank, size),
        v_heads=_share(0 if recurrent is None else recurrent.v_heads, rank, size),
        channels=_share(decoder.hidden_size, rank, size),
        vocab=range(start, min(start + vocab_rows, spec.vocab_size)),
        vocab_rows=vocab_rows,
    )


def check_partition(spec: ModelSpec, size: int) -> DecoderSpec | None:
    """Check that `size` ranks can share the decoder, and return its spec.

    Raises:
        ConfigError: they cannot; the message names the sizes and the values of tp that fit.
    """
    decoder = spec.decoder
    if size == 1:
        return decoder
    if decoder is None:
        raise ConfigError(
            f"tp={size}: {spec.architecture} runs through transformers' modeling code, which is not split over ranks;"
            " use tp=1"
        )
    if not _fits(decoder, size):
        columns = " and ".join(map(str, decoder.intermediate_sizes))
        recurrent = decoder.recurrent_size
        states = f", {recurrent[0]} {recurrent[1]}" if recurrent else ""
        fitting = [n for n in range(1, decoder.num_heads + 1) if _fits(decoder, n)]
        raise ConfigError(
            f"tp={size} does not divide {spec.architecture}: {decoder.num_heads} attention heads{states} and"
            f" {columns} feed-forward columns must be multiples of tp, and {decoder.num_kv_heads}"
            f" key-value heads a multiple or a divisor of it; tp may be {', '.join(map(str, fitting))}"
        )
    return decoder


def _fits(decoder: DecoderSpec, size: int) -> bool:
    kv_fit = decoder.num_kv_heads % size == 0 or size % decoder.num_kv_heads == 0
    states_fit = decoder.recurrent_size is None or decoder.recurrent_size[0] % size == 0
    columns_fit = not any(n % size for n in decoder.intermediate_sizes)
    return decoder.num_heads % size == 0 and kv_fit and states_fit and columns_fit


def _expert_columns(experts: ExpertsSpec | None, rank: int, size: int, group: int) -> range:
    if experts is None:
        return range(0)
    groups = experts.intermediate_size // group
    if group == 1 or groups < size or experts.intermediate_size % group:
        return _share(experts.intermediate_size, rank, size)
    return range(rank * groups // size * group, (rank + 1) * groups // size * group)


def _share(count: int, rank: int, size: int) -> range:
    each = count // size
    return range(rank * each, (rank + 1) * each)
