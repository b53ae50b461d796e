"""`PerLayer`: a quantization that answers for each module of a checkpoint by the module's path. Imports no torch."""

from __future__ import annotations

import functools
import itertools
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from radixrt.errors import ModelLoadError
from radixrt.layers.formats.base import Quantization, WeightFormat
from radixrt.layers.formats.checkpoint import ALL, Projection
from radixrt.layers.formats.stored_weight import StoredWeight

if TYPE_CHECKING:
    from radixrt.layers.ops import LayerOps

UNREAD = frozenset({
    "input_scale", "input_zero_point", "input_global_scale", "output_scale", "output_zero_point",
    "weight_shape", "weight_zero_point", "weight_g_idx", "g_idx", "qzeros",
    "k_scale", "v_scale", "q_scale", "prob_scale", "kv_scale", "k_zero_point", "v_zero_point",
})  # fmt: skip
"""Tensors of a module that a format's layout may not need: scales of activations, which stay in 16 bits, the shape that
is known, zeros of symmetric weights, groups of columns in their order, and scales of keys and values."""

TEXT_PARTS = ("model.language_model.", "language_model.model.", "language_model.", "")
"""Beginnings of a decoder's paths, in place of "model.", in the lists of models of several parts."""

HEAD = "lm_head"
WIDE_DTYPES = ("F64", "F32", "F16", "BF16")
"""Dtypes of plain weights, as safetensors files name dtypes."""

JOINED = ".linear_attn.in_proj_"
"""Part of the names of a gated delta net's input projections, which no other engine makes one layer of: producers leave
the narrow ones unquantized."""

SAMPLES = {
    "linear": ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"),
    "experts": ("mlp.experts.0.gate_proj", "block_sparse_moe.experts.0.w1", "mlp.experts.gate_up_proj"),
}
"""Modules of a decoder layer that stand for all, when memory is estimated."""


@dataclass(frozen=True)
class PerLayer(Quantization):
    """Weights of a checkpoint, each stored as its config says, or plain.

    Attributes:
        plain: paths of modules that the checkpoint's files hold unquantized, whatever the config says.
        num_layers: decoder layers.
    """

    plain: frozenset[str]
    num_layers: int

    @abstractmethod
    def configured(self, path: str) -> StoredWeight | None:
        """Return how the config says that the weight of a linear layer or expert is stored; None for a plain one."""

    def stored(self, path: str) -> StoredWeight | None:
        """Return how the weight of a linear layer or expert is stored; None for a plain one."""
        return None if path in self.plain else self.configured(path)

    def linear(self, projections: Sequence[Projection], ops: LayerOps) -> WeightFormat | None:
        if all(JOINED in each.name for each in projections):
            answers = [(self.stored(each.name), each) for each in projections]
            runs = [
                (stored, [each for _, each in run]) for stored, run in itertools.groupby(answers, lambda own: own[0])
            ]
            if len(runs) > 1:
                return _joined(runs, ops)
        stored = self._agreed(projections)
        return None if stored is None else _format(stored, projections, ops)

    def experts(self, gate_up: Sequence[Projection], down: Sequence[Projection], ops: LayerOps) -> WeightFormat | None:
        stored = self._agreed([*gate_up, *down])
        if stored is None:
            return None
        if stored.order is not None:
            raise ModelLoadError(f"{gate_up[0].name}: experts with desc_act are not supported; use desc_act false")
        if gate_up[0].transposed:
            raise ModelLoadError(
                f"{gate_up[0].name}: experts whose weights are stacked and transposed can be quantized by mxfp4 alone"
            )
        return _format(stored, [*gate_up, *down], ops)

    def _agreed(self, projections: Sequence[Projection]) -> StoredWeight | None:
        first = projections[0]
        stored = self.stored(first.name)
        for each in projections[1:]:
            other = self.stored(each.name)
            if other != stored:
                raise ModelLoadError(
                    f"quantization_config: {first.name} is {_said(stored)} and {each.name} {_said(other)}, but they are"
                    " one layer here; quantize both alike"
                )
        return stored

    def of_files(self, dtypes: Mapping[str, str]) -> Quantization:
        """As `Quantization.of_files`: a plain tensor in the files is believed, whatever the config says."""
        plain = set()
        for name, dtype in dtypes.items():
            path, _, kind = name.rpartition(".")
            if kind not in ("weight", "weight_packed", "qweight"):
                continue
            stored = self.configured(path)
            if stored is None:
                if kind != "weight" or dtype not in WIDE_DTYPES:
                    raise ModelLoadError(
                        f"config.json: quantization_config says that {path} is not quantized, but {name} holds {dtype};"
                        " download both again"
                    )
            elif kind == "weight" and dtype in WIDE_DTYPES and f"{path}.{stored.scales.kind}" not in dtypes:
                plain.add(path)
        if not any(name.startswith(f"{HEAD}.") for name in dtypes):  # it is tied
            plain.add(HEAD)
        return replace(self, plain=frozenset(plain))

    def ignored(self, name: str) -> bool:
        return name.rpartition(".")[2] in UNREAD

    @property
    def scheme(self) -> str:  # type: ignore[override]
        return " + ".join(dict.fromkeys(map(str, self._samples("linear") + self._samples("experts"))))

    def num_bytes(self, what: Literal["linear", "experts"], numbers: int, item: int, device: str) -> int:
        found = self._samples(what)
        layers = len(SAMPLES["linear"]) * self.num_layers if what == "linear" else self.num_layers
        share = min(1.0, len(found) / max(layers, 1)) if what == "linear" else float(bool(found))
        mean = sum(each.bits_per_weight(device) for each in found) / len(found) / 8 if found else 0.0
        return int(numbers * (share * mean + (1 - share) * item))

    def _samples(self, what: Literal["linear", "experts"]) -> list[StoredWeight]:
        """Return how the quantized ones of some modules are stored."""
        paths = (f"model.layers.{i}.{module}" for i in range(self.num_layers) for module in SAMPLES[what])
        return [stored for path in paths if (stored := self.stored(path)) is not None]


def _format(stored: StoredWeight, projections: Sequence[Projection], ops: LayerOps) -> WeightFormat:
    from radixrt.layers.formats.checkpoint_layout import checkpoint_layout
    from radixrt.layers.formats.quantized import quantized_format
    from radixrt.layers.formats.reordered import Reordered

    found = quantized_format(ops, checkpoint_layout(stored, projections))
    return found if stored.order is None else Reordered(ops, found)


def _joined(runs: Sequence[tuple[StoredWeight | None, list[Projection]]], ops: LayerOps) -> WeightFormat:
    from radixrt.layers.formats.joined import Joined
    from radixrt.layers.formats.panels import plain_format

    formats = [plain_format(ops) if stored is None else _format(stored, own, ops) for stored, own in runs]
    return Joined(ops, formats, [len(own) for _, own in runs])


def _said(stored: StoredWeight | None) -> str:
    if stored is None:
        return "not quantized"
    details = (" with zeros" if stored.zeros else "") + (" in order of activations" if stored.order else "")
    return f"stored as {stored}{details} ({stored.codes.kind})"


@functools.lru_cache(maxsize=1 << 16)
def path_variants(path: str) -> tuple[str, ...]:
    """Return the names that a config may have for a module: that of the checkpoint's tensors, and those with the
    beginnings of models of several parts."""
    if not path.startswith("model."):
        return (path, *(f"{part}{path}" for part in TEXT_PARTS if part))
    return (path, *(part + path.removeprefix("model.") for part in TEXT_PARTS))


def is_within(path: str, modules: frozenset[str]) -> bool:
    """Return True if a module or one that contains it is among some modules, by the path or its end."""
    for variant in path_variants(path):
        parts = variant.split(".")
        if any(".".join(parts[:i]) in modules for i in range(1, len(parts) + 1)):
            return True
    parts = path.split(".")
    return any(".".join(parts[i:]) in modules for i in range(1, len(parts)))


def module_names(quantization: Mapping[str, Any], *fields: str) -> tuple[str, ...]:
    """Return the modules that the first of some fields lists which is present; none where no field is.

    Raises:
        ModelLoadError: the field is no list of names.
    """
    for field in fields:
        names = quantization.get(field)
        if names is not None:
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise refused(f"{field} must list names of modules, not {names!r}")
            return tuple(names)
    return ()


def tied_head(config: Mapping[str, Any]) -> frozenset[str]:
    """Return the output head's path where config.json says that its weight is the embedding's."""
    return frozenset([HEAD] if config.get("tie_word_embeddings") else [])


def num_layers(config: Mapping[str, Any]) -> int:
    """Return the decoder layers of config.json, which may be those of a part; 0 where they are missing."""
    text = config.get("text_config")
    found = config.get("num_hidden_layers") or (text.get("num_hidden_layers") if isinstance(text, Mapping) else 0)
    return found if isinstance(found, int) else 0


def refused(what: str, nearest: str = "") -> ModelLoadError:
    """Return the error of a quantization that is not supported.

    Args:
        nearest: accepted formats to use instead.
    """
    return ModelLoadError(f"config.json: quantization_config: {what}{f'; use {nearest}' if nearest else ''}")


def group_share(group: Any) -> int:
    """Return the columns of a group of AWQ's or GPTQ's group_size, of which -1 stands for a whole row.

    Raises:
        ModelLoadError: it is neither -1 nor a positive number.
    """
    if type(group) is not int or (group != -1 and group < 1):
        raise refused(f"group_size must be -1 or a positive number, not {group!r}")
    return ALL if group == -1 else group


def check_fields(quantization: Mapping[str, Any], known: Iterable[str], method: str) -> None:
    """Refuse a field that is set and not known.

    Raises:
        ModelLoadError: names the fields.
    """
    known = set(known)
    if unknown := sorted(key for key, value in quantization.items() if value and key not in known):
        raise refused(f"{', '.join(unknown)} is not supported for {method}")
