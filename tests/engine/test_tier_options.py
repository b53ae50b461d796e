"""Options of the tiers: defaults, and what the machine, the model and other options do not allow."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from radixrt import Engine
from radixrt.config import Config, make_config
from radixrt.engine import tier_options
from radixrt.engine.endpoints import Endpoints
from radixrt.engine.settings import EngineSettings, resolve_settings
from radixrt.engine.tier_memory import open_tiers
from radixrt.engine.tier_options import GIB, available_memory
from radixrt.errors import ConfigError, EngineError
from tests.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_tiny_model(tmp_path_factory.mktemp("tiny") / "llama"))


def resolved(**options: Any) -> tuple[Config, EngineSettings]:
    return resolve_settings(make_config(device="cpu", **options), show_progress=False)


def refusal(**options: Any) -> str:
    with pytest.raises(ConfigError) as raised:
        resolved(**options)
    message = str(raised.value)
    assert "\n" not in message
    return message


def test_tiers_are_off(tiny: str, tmp_path: Path) -> None:
    config, settings = resolved(model=tiny)
    assert settings.fingerprint == ""
    assert open_tiers(config, settings, Endpoints(str(tmp_path))) is None
    assert not list(tmp_path.iterdir())


def test_persist_is_a_host_tier_and_a_folder_among_the_caches(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RADIXRT_CACHE", str(tmp_path))
    monkeypatch.setattr(tier_options, "available_memory", lambda: 100 * GIB)
    cache = resolved(model=tiny, persist=True)[0].cache
    assert (cache.kv_host_gib, cache.kv_disk, cache.kv_disk_gib) == (4.0, str(tmp_path / "kv"), 16.0)
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(tier_options, "available_memory", lambda: 2 * GIB)
    assert resolved(model=tiny, persist=True)[0].cache.kv_host_gib == 0.5
    cache = resolved(model=tiny, persist=True, kv_host_gib=1, kv_disk=tmp_path / "own", kv_disk_gib=3)[0].cache
    assert (cache.kv_host_gib, cache.kv_disk, cache.kv_disk_gib) == (1.0, str(tmp_path / "own"), 3.0)


def test_options_that_contradict_one_another_are_refused(tiny: str, tmp_path: Path) -> None:
    assert "kv_disk_gib=2 needs a folder" in refusal(model=tiny, kv_disk_gib=2)
    assert "add kv_host_gib=4" in refusal(model=tiny, kv_disk=str(tmp_path))
    assert "prefix_cache is off" in refusal(model=tiny, kv_host_gib=1, prefix_cache=False)
    assert "persist keeps or moves prefixes" in refusal(model=tiny, persist=True, prefix_cache=False)
    assert "use executor=mp or uni, not external" in refusal(model=tiny, kv_host_gib=1, executor="external")


def test_roles_need_a_host_tier(tiny: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tier_options, "available_memory", lambda: 100 * GIB)
    layout: dict[str, Any] = {"model": tiny, "replicas": 2, "roles": "prefill, decode"}
    assert resolved(**layout)[0].cache.kv_host_gib == 4
    assert resolved(**layout, kv_host_gib=1)[0].cache.kv_host_gib == 1
    assert resolved(model=tiny, replicas=2, roles="both,both")[0].cache.kv_host_gib == 0
    monkeypatch.setattr(tier_options, "available_memory", lambda: 8 * GIB)
    assert resolved(**layout)[0].cache.kv_host_gib == 1
    assert "prefix_cache is off" in refusal(**layout, prefix_cache=False)
    assert "use executor=mp or uni, not ray" in refusal(**layout, executor="ray", ray_address="local")
    hybrid = str(make_tiny_model(tmp_path / "lfm2", "lfm2"))
    assert resolved(**{**layout, "model": hybrid})[0].cache.kv_host_gib == 1


@pytest.mark.parametrize(
    ("roles", "replicas", "error"),
    [
        ("prefill,decode", None, "needs replicas; use replicas=2"),
        ("prefill,decode", 3, "has 2 roles for replicas=3; use replicas=2, or one role for each replica"),
        ("prefill,prefill", 2, "needs a replica with the role decode too"),
        ("both,decode", 2, "needs a replica with the role prefill too"),
        ("prefill,decoder", 2, "each of both, prefill, decode, not 'prefill,decoder'"),
        ("", 1, "each of both, prefill, decode, not ''"),
    ],
)
def test_roles_that_cannot_work_are_refused(roles: str, replicas: int | None, error: str) -> None:
    assert error in refusal(roles=roles, replicas=replicas)


def test_memory_for_no_state_is_refused_by_name(tmp_path: Path) -> None:
    folder = str(make_tiny_model(tmp_path / "lfm2", "lfm2"))
    with pytest.raises(EngineError, match="kv_host_gib=1e-05 holds no state; at least"):
        Engine(folder, kv_host_gib=0.00001, executor="uni", device="cpu", show_progress=False)


def test_more_memory_than_is_free_is_refused(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tier_options, "available_memory", lambda: 10 * GIB)
    assert "kv_host_gib=11 is more than the memory that is free here, 10.0 GiB" in refusal(model=tiny, kv_host_gib=11)
    assert "for each of 3 replicas" in refusal(model=tiny, kv_host_gib=4, replicas=3)
    assert resolved(model=tiny, kv_host_gib=9)[0].cache.kv_host_gib == 9


@pytest.mark.parametrize(
    ("lines", "files"),
    [
        (
            "0::/app.slice",
            {"app.slice/memory.max": 3000, "app.slice/memory.current": 1000, "app.slice/memory.stat": 500},
        ),
        ("0::/", {"memory.max": 3000, "memory.current": 1000, "memory.stat": 500}),
        (
            "4:memory:/a/b\n0::/",
            {
                "memory/a/memory.limit_in_bytes": 3000,
                "memory/a/memory.usage_in_bytes": 1000,
                "memory/a/memory.stat": 500,
                "memory/a/b/memory.limit_in_bytes": 2**63 - 4096,
                "memory/a/b/memory.usage_in_bytes": 10,
            },
        ),
    ],
)
def test_limits_of_control_groups_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, files: dict[str, int]
) -> None:
    prefix = "total_" if "memory:" in lines else ""
    for name, value in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = f"{prefix}inactive_file {value}\n{prefix}active_file 0\n" if name.endswith("stat") else f"{value}\n"
        path.write_text(text)
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self, *a, **k: lines if str(self) == "/proc/self/cgroup" else real(self, *a, **k)
    )
    monkeypatch.setattr(tier_options, "CGROUPS", tmp_path)
    assert available_memory() == 2500


def test_a_folder_that_others_can_write_to_is_refused(tiny: str, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "others can write to it" in refusal(model=tiny, kv_host_gib=0.1, kv_disk=str(shared))
    assert shared.stat().st_mode & 0o777 == 0o777
    (tmp_path / "file").touch()
    assert "is no folder" in refusal(model=tiny, kv_host_gib=0.1, kv_disk=str(tmp_path / "file"))
    assert "cannot be used" in refusal(model=tiny, kv_host_gib=0.1, kv_disk=str(tmp_path / "file" / "below"))


def test_memory_is_taken_by_every_rank_and_freed_at_the_end(tiny: str, tmp_path: Path) -> None:
    config, settings = resolved(model=tiny, kv_host_gib=0.5, tp=2, page_size=48)
    tiers = open_tiers(config, settings, Endpoints(str(tmp_path)))
    assert tiers is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["arena-0", "arena-1", "page_records"]
    assert os.stat(tmp_path / "arena-1").st_size == GIB // 2
    assert (tiers.settings.page, tiers.settings.ranks, tiers.settings.disk) == (192, 2, "")
    assert tiers.settings.host_pages([1000, 1000]) == GIB // 2 // 384_000 - 1
    tiers.close()
    assert not (tmp_path / "arena-0").exists()


def test_the_second_engine_on_a_folder_has_no_disk(tiny: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config, settings = resolved(model=tiny, kv_host_gib=0.1, kv_disk=tmp_path / "kv")
    opened = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        opened.append(open_tiers(config, settings, Endpoints(str(tmp_path / name))))
    (tmp_path / "replica").mkdir()
    opened.append(open_tiers(config, settings, Endpoints(str(tmp_path / "replica")), 1))
    folder = f"{tmp_path}/kv/{settings.fingerprint[:32]}"
    assert [tiers.settings.disk for tiers in opened if tiers is not None] == [f"{folder}/0", "", f"{folder}/1"]
    assert [record.getMessage() for record in caplog.records if "another engine uses" in record.getMessage()] == [
        f"another engine uses {folder}/0; prefixes of this engine do not go to disk"
    ]
    for tiers in opened:
        assert tiers is not None
        tiers.close()
    (tmp_path / "third").mkdir()
    third = open_tiers(config, settings, Endpoints(str(tmp_path / "third")))
    assert third is not None
    assert third.settings.disk == f"{folder}/0"
    third.close()


def test_a_kernel_without_files_in_memory_is_refused(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, settings = resolved(model=tiny, kv_host_gib=0.1)
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(EngineError, match="needs memfd_create"):
        open_tiers(config, settings, Endpoints(str(tmp_path)))


def test_the_fingerprint_tells_models_and_options_apart(tiny: str, tmp_path: Path) -> None:
    def fingerprint(model: str = tiny, **options: Any) -> str:
        return resolved(model=model, kv_host_gib=0.1, kv_disk=tmp_path / "kv", **options)[1].fingerprint

    own, rope = fingerprint(), {"rope_type": "default", "rope_theta": 5.0}
    assert own == fingerprint(random_seed=3, context_length=50, kv_cache_tokens=100)
    others = [
        fingerprint(str(make_tiny_model(tmp_path / "seed", seed=1))),
        fingerprint(str(make_tiny_model(tmp_path / "rope", rope_parameters=rope))),
        fingerprint(dtype="float16"),
        fingerprint(quantization="int8"),
        fingerprint(page_size=48),
        fingerprint(tp=2),
        fingerprint(load_format="dummy"),
        fingerprint(load_format="dummy", random_seed=1),
    ]
    assert len({own, *others}) == 1 + len(others)


def test_settings_survive_the_way_to_a_worker(tiny: str, tmp_path: Path) -> None:
    settings = resolved(model=tiny, kv_host_gib=0.1, kv_disk=tmp_path / "kv")[1]
    assert EngineSettings.from_dict(settings.to_dict()) == settings
