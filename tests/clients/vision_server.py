"""Server of a tiny model of text and vision, with which clients that send pictures are tried and replayed."""

from __future__ import annotations

from pathlib import Path

from tests.server_process import ServerProcess
from tests.tiny_models import make_tiny_model

VISION_MODEL = "tiny-vision"
CONTEXT = 8192


def start_vision_server(folder: Path) -> ServerProcess:
    """Write the model into a folder and start its server; the caller waits for it and stops it."""
    model = make_tiny_model(folder / "tiny", "qwen3_vl", text_config={"max_position_embeddings": CONTEXT})
    return ServerProcess(
        "--model", str(model), "--served-model-name", VISION_MODEL, "--dtype", "float32", "--num-threads", "1",
        "--kv-cache-tokens", str(4 * CONTEXT), "--max-running-requests", "32",
    )  # fmt: skip
