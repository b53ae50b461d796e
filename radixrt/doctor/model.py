"""`ModelNeeds`: the memory that a model needs to be served, according to config.json and the sizes of the files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from radixrt.chat.dialect import read_dialect
from radixrt.config import make_config
from radixrt.engine.device_defaults import DEVICE_DEFAULTS
from radixrt.engine.tier_options import GIB
from radixrt.errors import ConfigError, ModelLoadError
from radixrt.layers.formats.base import Quantization
from radixrt.mem_cache.state_sizes import size_states
from radixrt.messages.state_slots import RESERVED_STATES
from radixrt.models.decoder_spec import DecoderSpec
from radixrt.models.loading.model_files import check_folder
from radixrt.models.model_config import ModelSpec, load_model_spec
from radixrt.models.partition import check_partition
from radixrt.models.precision import choose_precision, tower_precision
from radixrt.models.stages import divide_layers, max_stages

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
MAX_RANKS = 64


@dataclass(frozen=True)
class ModelNeeds:
    """Attributes:
    folder, architecture: of the model; the architecture is empty where config.json cannot be read.
    runs_on: the implementation that computes the model.
    dtype: of plain weights in memory.
    scheme: of quantized weights; empty if all are plain.
    weight_bytes: of all weights in memory, about, with the tower of each rank.
    tower_bytes: of a vision tower, which each rank of the first stage holds whole; 0 for a model of text.
    step_bytes: of the weights that a decode step of one request reads, about: of a mixture, those of its experts.
    readers: ranks whose devices read them side by side.
    token_bytes: of a token in the KV cache, on all ranks together.
    context_length: of the model, in tokens.
    kv_tokens: approximate number of KV cache tokens that fit beside the weights; 0 if the weights do not fit.
    state_bytes: of a recurrent state, on all ranks together; 0 for a model without recurrent layers.
    num_states: approximate number of recurrent states that fit beside the tokens with the default options.
    requests: maximum number of requests that run at once; each has a state.
    ranks: numbers of ranks that can share every layer.
    stages: maximum number of pipeline stages.
    notes: further remarks.
    problem: why the model does not run; empty if it does.
    """

    folder: str
    architecture: str = ""
    runs_on: str = ""
    dtype: str = ""
    scheme: str = ""
    weight_bytes: int = 0
    tower_bytes: int = 0
    step_bytes: int = 0
    readers: int = 1
    token_bytes: int = 0
    context_length: int = 0
    kv_tokens: int = 0
    state_bytes: int = 0
    num_states: int = 0
    requests: int = 0
    ranks: tuple[int, ...] = (1,)
    stages: int = 1
    notes: tuple[str, ...] = ()
    problem: str = ""


def model_needs(
    folder: str,
    *,
    device: str,
    free_bytes: int,
    dtype: str = "auto",
    tp: int = 1,
    pp: int = 1,
    quantization: str = "auto",
    text_only: bool = False,
) -> ModelNeeds:
    """Look at a model folder.

    Args:
        device: "cpu" or "cuda".
        free_bytes: free memory of the device; on CUDA the free memory of a single GPU, since each rank has its own GPU.
        tp: ranks that share every layer.
        pp: pipeline stages, of tp ranks each.
        quantization, text_only: the options of these names.
    """
    path = Path(folder).expanduser()
    if not path.is_dir():
        return ModelNeeds(folder, problem=f"{folder} is not a folder; name the folder of a model, with its config.json")
    try:
        check_folder(path, weights=any(path.glob("*.safetensors*")))  # a config.json alone says what would fit
        spec = load_model_spec(path, quantization, reads_images=not text_only)
        check_partition(spec, tp)
        divide_layers(spec, pp)
    except (ModelLoadError, ConfigError) as error:
        return ModelNeeds(folder, problem=str(error))
    decoder = spec.decoder
    kind = choose_precision(dtype, device).dtype
    files = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    weights, step = files, files
    if decoder is not None:
        weights, step = _decoder_bytes(spec, decoder, ITEM_BYTES[kind], device)
    tower = 0
    if spec.vision is not None and not text_only:
        tower = ITEM_BYTES[tower_precision(dtype, device).dtype] * spec.vision.num_parameters
        weights += tp * tower
    attending = 0 if decoder is None else sum(not layer.is_recurrent for layer in decoder.layers)
    token = 0 if decoder is None else attending * 2 * decoder.num_kv_heads * decoder.head_dim * ITEM_BYTES[kind]
    fraction = DEVICE_DEFAULTS[device]["cache"]["memory_fraction"]
    shares = tp * pp if device == "cuda" else 1  # ranks on a CPU share its memory
    left = int(shares * (free_bytes - weights / shares) * fraction)
    requests = DEVICE_DEFAULTS[device]["scheduler"]["max_running_requests"]
    # On a CPU all activations are float32.
    state = 0 if decoder is None else _state_bytes(decoder, 4 if device == "cpu" else ITEM_BYTES[kind])
    most = int(DEVICE_DEFAULTS[device]["cache"].get("kv_cache_gib", 0) * GIB)
    states = _fitting_states(left, state, token, requests, spec.context_length, most) if state and token else 0
    pool = max(0, left - states * state)
    if most:
        pool = min(pool, max(most - states * state, token * spec.context_length))
    return ModelNeeds(
        folder=folder,
        architecture=spec.architecture,
        runs_on="transformers' modeling code" if decoder is None else "radixrt's decoder",
        dtype=kind,
        scheme="" if decoder is None or decoder.quantization is None else decoder.quantization.scheme,
        weight_bytes=weights,
        tower_bytes=tower,
        step_bytes=step,
        readers=tp if device == "cuda" else 1,
        token_bytes=token,
        context_length=spec.context_length,
        kv_tokens=pool // token if token else 0,
        state_bytes=state,
        num_states=states,
        requests=requests,
        ranks=tuple(_ranks(spec)),
        stages=max_stages(spec),
        notes=(*_notes(decoder, files, device), *_tool_notes(path)),
    )


def _decoder_bytes(spec: ModelSpec, decoder: DecoderSpec, item: int, device: str) -> tuple[int, int]:
    """Return the bytes of all weights, and of those that a step of one token reads. Norms and biases, which are a
    thousandth of them, do not count."""
    table = item * spec.vocab_size * decoder.hidden_size
    tables = table if decoder.tie_word_embeddings else 2 * table
    experts = decoder.num_expert_parameters
    quantization = decoder.quantization or Quantization()
    others = quantization.num_bytes("linear", decoder.num_linear_parameters - experts, item, device)
    routed = quantization.num_bytes("experts", experts, item, device)
    copy = quantization.head_copy_bytes(spec.vocab_size * decoder.hidden_size, device)
    share = 1.0 if decoder.experts is None else decoder.experts.top_k / decoder.experts.num_experts
    return tables + copy + others + routed, (copy or table) + others + int(share * routed)


def _state_bytes(decoder: DecoderSpec, item: int) -> int:
    """Bytes of a sequence's state in all recurrent layers: inputs of convolutions, and matrices in float32."""
    sizes, layers = decoder.recurrent, sum(layer.is_recurrent for layer in decoder.layers)
    if sizes is None:
        return 0
    values = sizes.v_heads * sizes.v_dim
    channels = 2 * sizes.k_heads * sizes.k_dim + values if sizes.v_heads else decoder.hidden_size
    return layers * (item * channels * (sizes.taps - 1) + 4 * values * sizes.k_dim)


def _fitting_states(left: int, state: int, token: int, requests: int, context: int, most: int) -> int:
    try:
        slots = size_states(
            wanted=None,
            free_bytes=left,
            state_bytes=state,
            token_bytes=token,
            kv_tokens=None,
            max_requests=requests,
            context_length=context,
            most_bytes=most,
        )
    except ConfigError:
        return 0
    return slots - RESERVED_STATES


def _ranks(spec: ModelSpec) -> Iterator[int]:
    for ranks in range(1, MAX_RANKS + 1):
        try:
            check_partition(spec, ranks)
        except ConfigError:
            continue
        yield ranks


def _tool_notes(path: Path) -> Iterator[str]:
    """Return the format of tool calls, if the folder has a chat template."""
    try:
        dialect = read_dialect(make_config(), str(path))
    except ModelLoadError:
        return
    if dialect.template is not None:
        yield f"tools are called in the format {dialect.format_name} (--tool-call-format)"


def _notes(decoder: DecoderSpec | None, file_bytes: int, device: str) -> Iterator[str]:
    if not file_bytes:
        yield "there are no safetensors files; without them only --load-format dummy serves it"
    if decoder is None:
        return
    if decoder.quantization is not None and (note := decoder.quantization.note(file_bytes, device)):
        yield note
