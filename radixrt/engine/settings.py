"""`EngineSettings`: values that all processes of one engine share; the main process derives them from the Config."""

from __future__ import annotations

import dataclasses
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from radixrt.config import Config, ExecutorConfig, parse_names
from radixrt.distributed.rank_info import rank_from_environment
from radixrt.errors import ConfigError, ModelLoadError, shown
from radixrt.models.model_tasks import ModelTasks, load_tasks
from radixrt.models.vision_spec import VisionSpec

# What derives the settings is imported inside functions: workers get the result, and begin sooner without it.


@dataclass(frozen=True)
class EngineSettings:
    """Settings of one engine; plain values that are sent to the workers as JSON.

    Attributes:
        folder: Hugging Face folder of the model.
        model_name: model name that clients use.
        dtype: resolved dtype, never "auto".
        context_length: longest sequence, prompt and output together, in tokens.
        eos_ids: end tokens of the model.
        kernel_cache, grammar_cache: folders for compiled kernels and for compiled constraints.
        tasks: tasks of the model other than generation.
        tp: number of tensor-parallel ranks, in each stage.
        stage_layers: number of layers of each pipeline stage.
        fingerprint: identity of the model and of the options that keys and values on disk depend on, in hexadecimal
            digits; empty without a disk tier.
        vision: tower of a model that reads images; None for text alone.
        device: "cpu" or "cuda", as the main process expects it of option device=auto.
    """

    folder: str
    model_name: str
    dtype: str
    context_length: int
    vocab_size: int
    eos_ids: tuple[int, ...]
    kernel_cache: str
    grammar_cache: str
    tasks: ModelTasks
    show_progress: bool
    tp: int = 1
    stage_layers: tuple[int, ...] = ()
    fingerprint: str = ""
    vision: VisionSpec | None = None
    device: str = "cpu"

    @property
    def stages(self) -> int:
        """Number of pipeline stages."""
        return max(len(self.stage_layers), 1)

    @property
    def num_ranks(self) -> int:
        return self.tp * self.stages

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @staticmethod
    def from_dict(fields: dict[str, Any]) -> EngineSettings:
        """Restore the settings from the JSON of `to_dict`."""
        return msgspec.convert(fields, EngineSettings)


def resolve_settings(config: Config, *, show_progress: bool) -> tuple[Config, EngineSettings]:
    """Find the model (download or convert it the first time) and derive the settings of the engine.

    Returns:
        The config with the device's defaults, and the settings.

    Raises:
        ModelLoadError, ConfigError: the model or an option is missing or does not fit; names it.
    """
    from radixrt.engine.cluster_options import resolve_cluster
    from radixrt.engine.device_defaults import with_device_defaults
    from radixrt.engine.tier_options import check_tiers, with_tiers
    from radixrt.models.loading.source import cache_folder, prepare_model
    from radixrt.models.model_config import load_model_spec
    from radixrt.models.partition import check_partition
    from radixrt.models.precision import choose_precision
    from radixrt.models.stages import divide_layers

    config = dataclasses.replace(config, executor=resolve_cluster(config.executor))
    _check_step_trace(config.executor)
    check_tiers(config)
    device = expected_device(config.executor)
    config = with_device_defaults(config, device)
    dtype = choose_precision(config.model.dtype, device).dtype
    prepared = prepare_model(config.model, device=device, show_progress=show_progress)
    try:
        reads_images = not config.model.text_only
        spec = load_model_spec(prepared.folder, config.model.quantization, reads_images=reads_images)
        tasks = load_tasks(prepared.folder, spec, config.model.score_template)
    except ModelLoadError as error:
        raise ModelLoadError(f"{prepared.folder}: {error}") from error
    context = config.model.context_length or spec.context_length
    if context > spec.context_length:
        raise ConfigError(f"context_length={context}, but the model was made for {spec.context_length} tokens")
    if spec.decoder is not None and spec.decoder.recurrent is not None and config.cache.page_size > 1:
        raise ConfigError(
            f"page_size={config.cache.page_size}: {spec.architecture} has recurrent layers, which need pages of one"
            " token; use page_size=1"
        )
    config = with_tiers(config)
    tp = _ranks(config)
    check_partition(spec, tp)
    stage_layers = divide_layers(spec, config.executor.pp, config.executor.pp_layers)
    settings = EngineSettings(
        folder=str(prepared.folder),
        model_name=(*parse_names(config.model.served_model_name), prepared.name)[0],
        dtype=dtype,
        context_length=context,
        vocab_size=spec.vocab_size,
        eos_ids=tuple(spec.eos_token_ids),
        kernel_cache=str(cache_folder() / "kernels"),
        grammar_cache=str(cache_folder() / "grammars"),
        show_progress=show_progress,
        tasks=tasks,
        tp=tp,
        stage_layers=stage_layers,
        vision=None if config.model.text_only else spec.vision,
        device=device,
    )
    if config.cache.kv_disk is not None:
        settings = dataclasses.replace(settings, fingerprint=_fingerprint(config, settings, device))
    return config, settings


def _fingerprint(config: Config, settings: EngineSettings, device: str) -> str:
    from radixrt.models.loading.model_files import weight_files
    from radixrt.parts.tiers.fingerprint import model_fingerprint
    from radixrt.parts.tiers.settings import tier_page

    folder, is_dummy = Path(settings.folder), config.model.load_format == "dummy"
    options = {
        "dtype": settings.dtype,
        "quantization": config.model.quantization,
        "kv_cache_dtype": config.cache.kv_cache_dtype,
        "page": tier_page(config.cache.page_size),
        "device": device,
        "tp": settings.tp,
        "stage_layers": settings.stage_layers,
        "dummy_seed": config.executor.random_seed if is_dummy else None,
    }
    try:
        return model_fingerprint(folder, [] if is_dummy else weight_files(folder), options)
    except OSError as error:
        raise ModelLoadError(f"{folder}: {error}") from error


def _check_step_trace(options: ExecutorConfig) -> None:
    """Raise ConfigError if ranks on this machine could not write the trace."""
    if options.step_trace is None or options.executor == "ray":
        return
    path = Path(options.step_trace)
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"step_trace={shown(options.step_trace)} cannot be written; name a file in a folder that can")


def _ranks(config: Config) -> int:
    """Return the number of tensor-parallel ranks in a stage: the configured number, or the number of started ranks
    divided by the stages.

    Raises:
        ConfigError: both are given and differ.
    """
    wanted, stages = config.executor.tp, config.executor.pp
    if config.executor.executor != "external":
        return wanted
    rank = rank_from_environment(os.environ, config.executor.start_timeout_s, stages)
    if wanted not in (1, rank.tp):
        product = f"tp={wanted}" if stages == 1 else f"tp={wanted} and pp={stages}"
        raise ConfigError(f"{product}, but {rank.size} ranks were started; start {wanted * stages}, or leave tp out")
    return rank.tp


def expected_device(options: ExecutorConfig) -> str:
    """Return the device of the ranks, "cpu" or "cuda", as far as it is known without torch."""
    if options.device != "auto":
        return options.device
    return "cuda" if _has_cuda() else "cpu"


def _has_cuda() -> bool:
    """Return True if an NVIDIA driver is loaded; read from the system, because importing torch takes seconds."""
    return Path("/proc/driver/nvidia/version").exists() or os.environ.get("CUDA_VISIBLE_DEVICES", "") not in ("", "-1")
