"""`TierSettings`: where the tiers are, and how large they may become."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

PAGE_HEADER_BYTES = 4096
"""Bytes before the keys and values of a page on disk."""


@dataclass(frozen=True)
class TierSettings:
    """Host tier and disk tier of one scheduler; the main process has made the memory files.

    Attributes:
        arena: prefix of the paths of the ranks' memory files; see `kv_moves.arena_path`.
        records: path of the memory file with the host tier's records.
        host_bytes: size of the host tier, all ranks together.
        ranks: number of ranks.
        page: tokens of a page of the tiers; see `tier_page`.
        disk: folder of the disk tier, which this process locks (`folder.DiskFolder`); empty without a disk tier.
        disk_bytes: size of the disk tier, all ranks together.
        model: fingerprint of the model and of the options that keys and values depend on, in hexadecimal digits.
    """

    arena: str
    records: str
    host_bytes: int
    ranks: int
    page: int
    disk: str = ""
    disk_bytes: int = 0
    model: str = ""

    def host_pages(self, token_bytes: Sequence[int]) -> int:
        """Return the number of pages of the host tier, without page 0.

        Args:
            token_bytes: bytes of one token's keys and values in each rank.
        """
        return self.host_bytes // (self.page * sum(token_bytes)) - 1

    def disk_pages(self, token_bytes: Sequence[int]) -> int:
        """Return the number of pages of the disk tier, without page 0, which takes no space on disk."""
        return self.disk_bytes // sum(page_stride(self.page * each) for each in token_bytes)


def tier_page(page_size: int) -> int:
    """Return the number of tokens of a page of the tiers: whole granules, and whole pages of the KV pool."""
    from radixrt.mem_cache.granules import GRANULE_TOKENS  # loads numpy, which a process may do without

    return math.lcm(GRANULE_TOKENS, page_size)


def data_path(folder: str, rank: int) -> str:
    """Return the path of a rank's keys and values in the folder of a disk tier."""
    return f"{folder}/pages-{rank}"


def table_path(folder: str) -> str:
    """Return the path of the records in the folder of a disk tier."""
    return f"{folder}/records"


def page_stride(page_bytes: int) -> int:
    """Return the distance between the starts of two pages in a rank's data file, which begins with page 0.

    Args:
        page_bytes: bytes of a page's keys and values in the rank.
    """
    return PAGE_HEADER_BYTES + -(-page_bytes // PAGE_HEADER_BYTES) * PAGE_HEADER_BYTES
