"""`TierSettings`: where the tiers are, and how large they may become."""

from __future__ import annotations

import math
from dataclasses import dataclass

from radixrt.mem_cache.granules import GRANULE_TOKENS

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
        model: fingerprint of the model and of the options that keys and values depend on.
    """

    arena: str
    records: str
    host_bytes: int
    ranks: int
    page: int
    disk: str = ""
    disk_bytes: int = 0
    model: bytes = b""

    def host_pages(self, token_bytes: int) -> int:
        """Return the number of pages of the host tier, without page 0.

        Args:
            token_bytes: bytes of one token's keys and values, all ranks together.
        """
        return max(0, self.host_bytes // (self.page * token_bytes) - 1)

    def disk_pages(self, token_bytes: int) -> int:
        """Return the number of pages of the disk tier, without page 0, which takes no space on disk."""
        return self.disk_bytes // (self.page * token_bytes + self.ranks * PAGE_HEADER_BYTES)


def tier_page(page_size: int) -> int:
    """Return the number of tokens of a page of the tiers: whole granules, and whole pages of the KV pool."""
    return math.lcm(GRANULE_TOKENS, page_size)
