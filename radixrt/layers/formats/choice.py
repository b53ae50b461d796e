"""`choose_quantization`: the formats of a model's weights, from its checkpoint and the option `quantization`.

Importing this module imports no torch.
"""

from __future__ import annotations

import typing

from radixrt.errors import ConfigError
from radixrt.layers.formats.base import Quantization
from radixrt.layers.formats.online import Kind, OnlineQuantization

ONLINE: tuple[Kind, ...] = typing.get_args(Kind)
"""Values of the option for weights that are quantized while they load."""


def choose_quantization(wanted: str, stored: Quantization | None, architecture: str) -> Quantization | None:
    """Return the formats of the weights; None for plain ones.

    Args:
        wanted: the option; "auto" for those of the checkpoint.
        stored: of the checkpoint; None for plain weights.
        architecture: for errors.

    Raises:
        ConfigError: the checkpoint has other numbers; the wanted ones would add a second loss to theirs.
    """
    kind = next((each for each in ONLINE if each == wanted), None)
    if stored is None:
        return None if kind is None else OnlineQuantization(kind)
    if wanted == "auto" or wanted in stored.scheme.split():
        return stored
    raise ConfigError(
        f"quantization={wanted}: the weights of this {architecture} are stored as {stored.scheme}; use"
        " quantization=auto, or a checkpoint of plain weights"
    )
