"""Which tensors of a checkpoint make up a decoder's parameters, and which part of each a rank takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from radixrt.models.loading.partition import Partition
from radixrt.models.model_config import DecoderSpec, ModelSpec

Shape = tuple[int, ...]


@dataclass(frozen=True)
class CheckpointTensor:
    """A tensor that a checkpoint must hold.

    Attributes:
        name, shape: of the whole tensor.
        dim, taken: this rank takes the positions `taken` along dimension `dim` of it.
        rows: of the parameter that it fills; where fewer are taken, zeros fill the rest.
    """

    name: str
    shape: Shape
    dim: int
    taken: range
    rows: int

    @property
    def whole(self) -> bool:
        return len(self.taken) == self.shape[self.dim]


def checkpoint_tensors(
    shapes: Mapping[str, Shape], spec: ModelSpec, part: Partition
) -> dict[str, tuple[CheckpointTensor, ...]]:
    """For each parameter, the checkpoint's tensors that make it up, one behind the other along dimension 0.

    The head is listed also where it is tied; the loader takes the embedding if the checkpoint has no head.

    Args:
        shapes: of the rank's parameters, by name.
        spec: a spec whose `decoder` is set.
    """
    decoder = spec.decoder
    assert decoder is not None
    sources = {}
    for name, shape in shapes.items():
        module, _, kind = name.rpartition(".")
        fused = _fused(module.rpartition(".")[2], decoder, part)
        prefix = _checkpoint_prefix(name, fused=bool(fused))
        if fused:
            sources[name] = tuple(
                CheckpointTensor(f"{prefix}.{each}.{kind}", (rows, *shape[1:]), 0, taken, len(taken))
                for each, (rows, taken) in fused.items()
            )
        else:
            sources[name] = (_single(prefix, name, shape, spec, decoder, part),)
    return sources


def _single(
    prefix: str, name: str, shape: Shape, spec: ModelSpec, decoder: DecoderSpec, part: Partition
) -> CheckpointTensor:
    """The one tensor of a parameter that is not fused."""
    if name in ("embed_tokens", "lm_head.weight"):
        return CheckpointTensor(prefix, (spec.vocab_size, *shape[1:]), 0, part.vocab, part.vocab_rows)
    inputs = {
        "o_proj": (decoder.num_heads * decoder.head_dim, _scaled(part.heads, decoder.head_dim)),
        "down_proj": (decoder.intermediate_size, part.intermediate),
    }.get(name.split(".")[-2] if "." in name else "")
    if inputs is None:
        return CheckpointTensor(prefix, shape, 0, range(shape[0]), shape[0])
    if name.endswith(".bias"):
        return CheckpointTensor(prefix, shape, 0, range(shape[0] if part.rank == 0 else 0), shape[0])
    return CheckpointTensor(prefix, (shape[0], inputs[0]), 1, inputs[1], shape[0])


def _fused(module: str, decoder: DecoderSpec, part: Partition) -> dict[str, tuple[int, range]]:
    """Of each projection in a fused module: all of its rows, and those of this rank. Empty if it is not fused."""
    if module == "qkv_proj":
        dim = decoder.head_dim
        kv = (decoder.num_kv_heads * dim, _scaled(part.kv_heads, dim))
        return {"q_proj": (decoder.num_heads * dim, _scaled(part.heads, dim)), "k_proj": kv, "v_proj": kv}
    if module == "gate_up_proj":
        each = (decoder.intermediate_size, part.intermediate)
        return {"gate_proj": each, "up_proj": each}
    return {}


def _scaled(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)


_RENAMED = {
    "input_norm": "input_layernorm",
    "attention": "self_attn",
    "post_attention_norm": "post_attention_layernorm",
    "feed_forward": "mlp",
}


def _checkpoint_prefix(name: str, *, fused: bool) -> str:
    """The checkpoint's name of a parameter, or of the module around a fused one."""
    if name == "embed_tokens":
        return "model.embed_tokens.weight"
    if name.startswith("lm_head."):
        return name
    path = [_RENAMED.get(part, part) for part in name.split(".")]
    return ".".join(["model", *(path[:-2] if fused else path)])
