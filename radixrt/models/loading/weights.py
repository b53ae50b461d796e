"""Loading a model: parameters are filled one at a time from mapped safetensors files, or at random."""

from __future__ import annotations

import functools
import hashlib
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import nn
from tqdm import tqdm

from radixrt.distributed.parallel import TPGroup
from radixrt.errors import ModelLoadError
from radixrt.layers.experts import FusedExperts
from radixrt.layers.formats.checkpoint import CheckpointTensor, ParameterSources
from radixrt.layers.linear import Linear
from radixrt.layers.ops import LayerOps, TorchOps
from radixrt.models.decoder import Decoder
from radixrt.models.decoder_spec import DecoderSpec, TensorNames
from radixrt.models.loading.kv_scales import is_scale, read_scales
from radixrt.models.loading.model_files import shorten, weight_files
from radixrt.models.model_config import DTYPES, ModelSpec, load_model_spec
from radixrt.models.partition import check_partition
from radixrt.models.precision import choose_precision, torch_dtype
from radixrt.models.registry import Model, model_class
from radixrt.models.stages import Stage

DUMMY_STD = 0.02
BARE_EMBEDDING = "embed_tokens.weight"
HEADS = ("lm_head.", "score.")
DERIVED_SUFFIX = ".rotary_emb.inv_freq"
"""Tensors of old checkpoints that are derived from the config, as we derive them too."""


def load_model(
    folder: Path,
    spec: ModelSpec,
    *,
    dtype: str,
    device: str | torch.device,
    load_format: str = "auto",
    seed: int = 0,
    show_progress: bool = False,
    ops: LayerOps | None = None,
    group: TPGroup | None = None,
    stage: Stage | None = None,
    kv_scales: bool = False,
) -> Model:
    """Build the model and load its weights. At no time do two copies of more than one layer's weight exist.

    A rank reads its own slice of each tensor, and nothing else.

    Args:
        folder: Hugging Face folder with model.safetensors, or with its shards and model.safetensors.index.json.
        spec: of that folder; positions up to its context_length can be computed.
        dtype: of weights and activations: "float32", "bfloat16" or "float16".
        load_format: "auto", or "dummy" for random weights, the same for the same seed.
        show_progress: draw a progress bar on stderr.
        ops: kernels of the decoder; default: plain torch.
        group: the ranks that the model is split over.
        stage: the pipeline stage to load; None for all of the model.
        kv_scales: divide keys and values by the scales that the checkpoint has, see `kv_scales`.

    Raises:
        ConfigError: the ranks cannot share the model.
        ModelLoadError: a file or tensor is missing, unexpected, malformed or of another shape; the message names it.
    """
    if dtype not in DTYPES:
        raise ModelLoadError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if group is not None:
        check_partition(spec, group.size)
    kind = model_class(spec.architecture)
    if spec.decoder is None:
        return kind.from_folder(  # type: ignore[no-any-return]
            folder, spec, torch_dtype(dtype), torch.device(device), load_format == "dummy", seed, show_progress
        )
    if load_format != "dummy":
        spec = _spec_of_files(spec, folder)
    assert spec.decoder is not None
    precision = choose_precision(dtype, torch.device(device).type, spec.decoder.num_linear_parameters)
    model = kind(spec, precision, ops or TorchOps(), group, stage)
    tied = _is_tied(spec.decoder, spec)
    if load_format == "dummy":
        fill_randomly(model, torch.device(device), seed=seed, tied=tied, show_progress=show_progress)
    else:
        fill_from_folder(
            model, folder, torch.device(device), tied=tied, show_progress=show_progress, kv_scales=kv_scales
        )
    model.finalize()
    return model.eval()  # type: ignore[no-any-return]


def check_checkpoint(folder: Path) -> None:
    """Compare the tensors of a folder with the tensors that its model has: names and shapes, without reading them.

    Does nothing for a folder without weights, or a model that transformers' modeling code runs.

    Raises:
        ModelLoadError, ConfigError: as `load_model`.
    """
    spec = load_model_spec(folder, reads_images=False)
    if spec.decoder is None or not any(folder.glob("*.safetensors")):
        return
    spec = _spec_of_files(spec, folder)
    assert spec.decoder is not None
    model = Decoder(spec, choose_precision("auto", "cpu"), TorchOps())
    with Checkpoint(folder, model.tensor_names) as checkpoint:
        _find_sources(model, folder, checkpoint, tied=_is_tied(spec.decoder, spec))


def _spec_of_files(spec: ModelSpec, folder: Path) -> ModelSpec:
    """Return the spec with the quantization that the checkpoint's files have."""
    decoder = spec.decoder
    if decoder is None or decoder.quantization is None:
        return spec
    with Checkpoint(folder, decoder.names) as checkpoint:
        quantization = decoder.quantization.of_files(checkpoint.dtypes)
    return replace(spec, decoder=replace(decoder, quantization=quantization))


class Checkpoint:
    """The tensors of a folder's safetensors files, mapped into memory and read by name. A context manager.

    Files that were saved from a decoder without its head name the tensors without "model."; here they have it, and the
    decoder of a vision model is named like one of its own.

    Args:
        names: of the model's family, see `TensorNames`.
    """

    def __init__(self, folder: Path, names: TensorNames) -> None:
        self._stack = ExitStack()
        self._files: dict[str, tuple[Any, str]] = {}  # file, and the tensor's name there
        for file in weight_files(folder):
            try:
                opened = self._stack.enter_context(safe_open(str(file), framework="pt", device="cpu"))
            except (OSError, SafetensorError) as error:
                self._stack.close()
                raise ModelLoadError(f"{file} cannot be read: {error}; download it again") from error
            self._files.update({name: (opened, name) for name in opened.keys()})  # noqa: SIM118 (not a dict)
        if BARE_EMBEDDING in self._files:
            self._files = {
                name if name.startswith(HEADS) else f"model.{name}": place for name, place in self._files.items()
            }
        self._files = {
            _renamed(name, names): place for name, place in self._files.items() if not name.startswith(names.skipped)
        }

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def names(self) -> set[str]:
        return set(self._files)

    @property
    def dtypes(self) -> dict[str, str]:
        """The dtype of each tensor, as safetensors names dtypes."""
        return {name: file.get_slice(stored).get_dtype() for name, (file, stored) in self._files.items()}

    def shape(self, name: str) -> tuple[int, ...]:
        file, stored = self._files[name]
        return tuple(file.get_slice(stored).get_shape())

    def tensor(self, name: str) -> torch.Tensor:
        """Read a whole tensor, in its own dtype."""
        file, stored = self._files[name]
        whole: torch.Tensor = file.get_tensor(stored)
        return whole

    def find(self, wanted: CheckpointTensor) -> CheckpointTensor:
        """Return the tensor, or the first of its alternatives that the checkpoint has, if it has not the tensor itself;
        of alternatives with one name, that of the checkpoint's shape."""
        other = wanted.alternative
        while other is not None and not self._has(wanted):
            if self._has(other) and (other.alternative is None or self._fits(other)):
                return other
            other = other.alternative
        return wanted

    def _fits(self, wanted: CheckpointTensor) -> bool:
        return all(part.fits(self.shape(part.name)) for part in wanted.stored if part.name in self._files)

    def _has(self, wanted: CheckpointTensor) -> bool:
        return any(part.name in self._files for part in wanted.stored)

    def read(self, wanted: CheckpointTensor, device: torch.device) -> torch.Tensor:
        """Read the slice that is wanted, and no other bytes of the tensor but the rest of units that are decoded
        together, which happens on the device.

        Raises:
            ModelLoadError: the tensor has another dtype than it must have.
        """
        if wanted.encoding is not None:
            parts = [self.read(part, device).to(device) for part in wanted.stored]
            return arranged(wanted.encoding.decode(wanted, parts), wanted)
        tensor = self._slice(wanted)
        if wanted.dtype is not None and tensor.dtype != getattr(torch, wanted.dtype):
            raise ModelLoadError(
                f"{wanted.name} holds {tensor.dtype}, but {wanted.numbers} are stored as torch.{wanted.dtype}"
            )
        return arranged(tensor, wanted)

    def _slice(self, wanted: CheckpointTensor) -> torch.Tensor:
        if wanted.whole or self.shape(wanted.name) != wanted.shape:
            # The shapes differ in dimensions of length 1 at most.
            whole = self.tensor(wanted.name).reshape(wanted.shape)
            if wanted.whole:
                return whole
            whole = whole if wanted.index is None else whole[wanted.index]
            return whole.narrow(wanted.dim, wanted.taken.start, len(wanted.taken)) if whole.dim() else whole
        file, stored = self._files[wanted.name]
        span = slice(wanted.taken.start, wanted.taken.stop)
        where: tuple[int | slice, ...] = (span,) if wanted.dim == 0 else (slice(None), span)
        sliced: torch.Tensor = file.get_slice(stored)[where if wanted.index is None else (wanted.index, *where)]
        return sliced


def _renamed(name: str, names: TensorNames) -> str:
    """Return the name here of a tensor that a checkpoint of several parts may name otherwise."""
    for begin, own in names.renamed:
        if name.startswith(begin):
            return own + name.removeprefix(begin)
    return name


def arranged(values: torch.Tensor, tensor: CheckpointTensor) -> torch.Tensor:
    """Bring what was taken of a tensor into the order of the parameter's rows; a view where that is one."""
    if tensor.transposed:
        values = values.T
    if tensor.alternating is not None:
        values = torch.cat(
            [values[(slice(None),) * tensor.alternating + (slice(i, None, 2),)] for i in (0, 1)], dim=tensor.alternating
        )
    return values


def fill_from_folder(
    model: Decoder,
    folder: Path,
    device: torch.device,
    *,
    tied: bool,
    show_progress: bool,
    kv_scales: bool = False,
) -> None:
    """Set every parameter of a model on the meta device, each as soon as it is read, and process its linear layers.

    Raises:
        ModelLoadError: as `load_model`; names the first tensors that do not fit, and the number of the others.
    """
    with Checkpoint(folder, model.tensor_names) as checkpoint:
        sources = _find_sources(model, folder, checkpoint, tied=tied)
        if kv_scales:
            model.divide_keys_and_values(sources, functools.partial(read_scales, checkpoint))
        read_parameters(
            model, sources, checkpoint, device, show_progress=show_progress, tied=lambda: model.embed_tokens
        )


def read_parameters(
    module: nn.Module,
    sources: ParameterSources,
    checkpoint: Checkpoint,
    device: torch.device,
    *,
    show_progress: bool,
    tied: Callable[[], nn.Parameter | None] | None = None,
) -> None:
    """Set every parameter of a module on the meta device, each as soon as it is read, and process its linear layers.

    Args:
        sources: tensors of each parameter that the checkpoint has.
        tied: returns the parameter, set before, that is in the place of a parameter without sources.
    """
    with _bar("Loading weights", sum(map(len, sources.values())), show_progress) as bar:

        def read(name: str, parameter: nn.Parameter) -> nn.Parameter:
            bar.update(len(sources[name]))
            return _read_parameter(checkpoint, sources[name], parameter, device)

        _set_parameters(module, sources, read, tied)


def _set_parameters(
    module: nn.Module,
    sources: ParameterSources,
    make: Callable[[str, nn.Parameter], nn.Parameter],
    tied: Callable[[], nn.Parameter | None] | None,
) -> None:
    for prefix, part in module.named_modules():
        for name, parameter in list(part.named_parameters(prefix=prefix, recurse=False)):
            if tied is not None and name not in sources:  # the tied head
                part.register_parameter("weight", tied())
                continue
            part.register_parameter(name.rpartition(".")[2], make(name, parameter))
        if isinstance(part, (Linear, FusedExperts)):
            part.process_weights_after_loading()


def _is_tied(decoder: DecoderSpec, spec: ModelSpec) -> bool:
    return decoder.tie_word_embeddings or not spec.has_head  # a head that is missing is never used


def _find_sources(model: Decoder, folder: Path, checkpoint: Checkpoint, *, tied: bool) -> ParameterSources:
    """Return the tensors of a checkpoint that fill each parameter; a tied head has none."""
    sources = {path: tuple(map(checkpoint.find, each)) for path, each in model.checkpoint_tensors().items()}
    # A head in the checkpoint of a tied model is read as it is: it decides what the model was saved with.
    if tied and "lm_head.weight" not in checkpoint.names:
        model.tie_head(sources)
    check_tensors(folder, checkpoint, sources, lambda name: name.startswith(model.tensors_elsewhere), model.ignored)
    return sources


def _bar(what: str, tensors: int, show: bool) -> Any:
    return tqdm(total=tensors, desc=what, unit="tensor", file=sys.stderr, disable=not show)


def fill_randomly(model: Decoder, device: torch.device, *, seed: int, tied: bool, show_progress: bool) -> None:
    """Set every parameter of a model on the meta device: norms to one, the rest normal, the same for a seed.

    Each tensor of the whole model has a generator of its own, so ranks make the same model without communication.
    """
    sources = model.checkpoint_tensors()
    if tied:
        model.tie_head(sources)
    draw_parameters(model, sources, device, seed=seed, show_progress=show_progress, tied=lambda: model.embed_tokens)


def draw_parameters(
    module: nn.Module,
    sources: ParameterSources,
    device: torch.device,
    *,
    seed: int,
    show_progress: bool,
    tied: Callable[[], nn.Parameter | None] | None = None,
) -> None:
    """As `read_parameters`, at random."""
    with _bar("Drawing weights", sum(map(len, sources.values())), show_progress) as bar:

        def draw(name: str, parameter: nn.Parameter) -> nn.Parameter:
            values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            if name.endswith("norm"):
                values.fill_(1.0)
            elif (dummy := sources[name][0].dummy) is not None:
                values.fill_(dummy)
            else:
                _draw(values, sources[name], seed)
            bar.update(len(sources[name]))
            return nn.Parameter(values, requires_grad=False)

        _set_parameters(module, sources, draw, tied)


def _draw(values: torch.Tensor, tensors: tuple[CheckpointTensor, ...], seed: int) -> None:
    """Fill a parameter with slices of tensors of random numbers, each of which is drawn once."""
    names = Counter((tensor.name, tensor.index) for tensor in tensors)
    drawn: dict[tuple[str, int | None], torch.Tensor] = {}
    for tensor, rows in zip(tensors, _rows_of(values, tensors), strict=True):
        key, shape = (tensor.name, tensor.index), tensor.shape if tensor.index is None else tensor.shape[1:]
        name = tensor.name if tensor.index is None else f"{tensor.name} {tensor.index}"
        digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
        generator = torch.Generator(rows.device).manual_seed(int.from_bytes(digest[:7]))
        if tensor.whole and tensor.alternating is None and rows.shape == tensor.shape:
            _randomize(rows, generator)
            continue
        whole = drawn.get(key)
        if whole is None:
            whole = torch.empty(shape, dtype=rows.dtype, device=rows.device)
            _randomize(whole, generator)
            if names[key] > 1:
                drawn[key] = whole
        _fill(rows, arranged(whole.narrow(tensor.dim, tensor.taken.start, len(tensor.taken)), tensor))


def _randomize(values: torch.Tensor, generator: torch.Generator) -> None:
    """Fill with random weights, or, where they are integers, with random codes of all values."""
    if values.is_floating_point() and values.itemsize == 1:  # which torch does not draw
        wide = torch.empty(values.shape, device=values.device)
        values.copy_(wide.normal_(0.0, 1.0, generator=generator))
    elif values.is_floating_point():
        values.normal_(0.0, DUMMY_STD, generator=generator)
    else:
        limits = torch.iinfo(values.dtype)
        values.random_(limits.min, limits.max + 1, generator=generator)


def _read_parameter(
    checkpoint: Checkpoint, tensors: tuple[CheckpointTensor, ...], parameter: nn.Parameter, device: torch.device
) -> nn.Parameter:
    values = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
    for tensor, rows in zip(tensors, _rows_of(values, tensors), strict=True):
        _fill(rows, checkpoint.read(tensor, device))
        if tensor.offset:
            rows += tensor.offset
        if tensor.factor != 1.0:
            rows *= tensor.factor
    return nn.Parameter(values, requires_grad=False)


def _rows_of(values: torch.Tensor, tensors: tuple[CheckpointTensor, ...]) -> tuple[torch.Tensor, ...]:
    """Split a parameter into the rows that each tensor fills."""
    return torch.split(values.flatten(0, 1) if values.dim() == 3 else values, [tensor.rows for tensor in tensors])


def _fill(rows: torch.Tensor, part: torch.Tensor) -> None:
    """Copy this rank's slice of a tensor into a parameter's rows, and zeros behind its rows and columns."""
    if part.dim() > rows.dim():  # weights of a convolution, [channels, 1, taps], and codes, [rows, groups, bytes]
        part = part.flatten(1)
    if rows.shape != part.shape:
        rows.zero_()
    rows[tuple(map(slice, part.shape))].copy_(part)


def check_tensors(
    folder: Path,
    checkpoint: Checkpoint,
    sources: ParameterSources,
    elsewhere: Callable[[str], bool],
    ignored: Callable[[str], bool] = lambda name: False,
) -> None:
    """Compare the tensors that are read with the tensors of the checkpoint.

    Args:
        elsewhere: says of a tensor's name whether another stage or another part of the model reads it.
        ignored: see `Quantization.ignored`.

    Raises:
        ModelLoadError: a tensor is missing, unexpected or of another shape; the message names it.
    """
    expected = {part.name: part for each in sources.values() for tensor in each for part in tensor.stored}
    present = {name for name in checkpoint.names if not name.endswith(DERIVED_SUFFIX) and not is_scale(name)}
    others = {name for name in present - expected.keys() if ignored(name)}
    present -= {name for name in others if not (name.endswith(".bias") and checkpoint.tensor(name).any())}
    problems = []
    if missing := sorted(expected.keys() - present):
        problems.append(f"missing: {shorten(missing)}")
    if unexpected := sorted(name for name in present - expected.keys() if not elsewhere(name)):
        problems.append(f"unexpected: {shorten(unexpected)}")
    wrong = [
        f"{name} {list(checkpoint.shape(name))} instead of {list(expected[name].shape)}"
        for name in sorted(expected.keys() & present)
        if not expected[name].fits(checkpoint.shape(name))
    ]
    if wrong:
        problems.append(f"of another shape: {shorten(wrong, 1)}")
    if problems:
        raise ModelLoadError(f"the tensors in {folder} do not fit its config.json; {'; '.join(problems)}")
