"""`TierMemory`: memory files and disk folder of one scheduler's tiers. The main process has them, so that prefixes
outlive the scheduler and its ranks."""

from __future__ import annotations

import logging
from pathlib import Path

from radixrt.config import Config
from radixrt.engine.endpoints import Endpoints
from radixrt.engine.settings import EngineSettings
from radixrt.engine.tier_options import GIB
from radixrt.errors import EngineError
from radixrt.memory_file import MemoryFile
from radixrt.messages.kv_moves import arena_path
from radixrt.parts.tiers.folder import DiskFolder, FolderInUse, remove_oldest
from radixrt.parts.tiers.settings import TierSettings, tier_page

logger = logging.getLogger(__name__)

SAVE_S = 10.0
"""Longest time for which a scheduler saves prefixes to disk before it is stopped."""


class TierMemory:
    """See the module's docstring.

    Args:
        endpoints: names the memory files.
        replica: number of the replica that the scheduler belongs to, if there are replicas.

    Attributes:
        settings: for the scheduler.

    Raises:
        EngineError: this kernel has no files in memory, or the disk folder cannot be used.
    """

    def __init__(self, config: Config, settings: EngineSettings, endpoints: Endpoints, replica: int | None) -> None:
        cache = config.cache
        host_bytes = int(cache.kv_host_gib * GIB)
        arenas = [arena_path(endpoints.arena, rank) for rank in range(settings.num_ranks)]
        self._files = [MemoryFile(path, host_bytes) for path in arenas]
        self._files.append(MemoryFile(endpoints.page_records))
        self._disk: DiskFolder | None = None
        try:
            if not all(file.exists for file in self._files):
                raise EngineError("kv_host_gib needs memfd_create and /proc, and this system lacks one of them")
            if cache.kv_disk is not None:
                self._disk = _open_folder(Path(cache.kv_disk), int(cache.kv_disk_gib * GIB), settings, replica or 0)
        except BaseException:
            self.close()
            raise
        self.settings = TierSettings(
            arena=endpoints.arena,
            records=endpoints.page_records,
            host_bytes=host_bytes,
            ranks=settings.num_ranks,
            page=tier_page(cache.page_size),
            disk="" if self._disk is None else self._disk.path,
            disk_bytes=int(cache.kv_disk_gib * GIB),
            model=settings.fingerprint,
        )

    def close(self) -> None:
        """Release the memory and the lock of the disk folder; the files on disk stay."""
        for file in self._files:
            file.close()
        if self._disk is not None:
            self._disk.close()
            self._disk = None


def open_tiers(
    config: Config, settings: EngineSettings, endpoints: Endpoints, replica: int | None = None
) -> TierMemory | None:
    """Return the memory of a scheduler's tiers; None if the options turn them off. Raises as `TierMemory`."""
    return TierMemory(config, settings, endpoints, replica) if config.cache.kv_host_gib else None


def _open_folder(root: Path, quota: int, settings: EngineSettings, replica: int) -> DiskFolder | None:
    """Return the locked folder of the disk tier; None if another engine uses the folder."""
    try:
        folder = DiskFolder(root, settings.fingerprint, replica, settings.model_name)
    except FolderInUse as error:
        logger.warning("another engine uses %s; prefixes of this engine do not go to disk", error)
        return None
    except OSError as error:
        raise EngineError(f"kv_disk={root} cannot be used: {error}; name another folder") from error
    remove_oldest(root, settings.fingerprint, quota)
    return folder
