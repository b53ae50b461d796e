"""docs/parts.md: its moments are overridden by the parts that it names, and its commands count no more than it says."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from radixrt.config import SchedulerConfig
from radixrt.mem_cache.allocator import TokenToKVPoolAllocator
from radixrt.mem_cache.radix_cache import RadixCache
from radixrt.mem_cache.req_to_token_pool import ReqToTokenPool
from radixrt.mem_cache.state_slots import StateSlotAllocator
from radixrt.messages.runner import CascadeCosts
from radixrt.parts.assembly import assemble
from radixrt.scheduler.part import Part
from tests.parts.chosen import TOWER, empty_tiers

ROOT = Path(__file__).parent.parent.parent
DOCUMENT = (ROOT / "docs" / "parts.md").read_text()
COMMANDS = re.findall(r"^(grep .*?) +# (\d+)$", DOCUMENT, re.MULTILINE)
ALL = [
    "ReadsPart",
    "Constraints",
    "Programs",
    "Recovery",
    "Overload",
    "Tenants",
    "Watch",
    "StatesPart",
    "Sharing",
    "Media",
    "Tiers",
]
HEADINGS = [
    "reads",
    "constraint",
    "programs",
    "recovery",
    "overload",
    "tenants",
    "watch",
    "states",
    "sharing",
    "media",
    "tiers",
]
"""Headings of the parts ALL."""
OUTSIDE = {"is_busy", "attach", "name", "of_chunks"}
"""Members of every part that are no moments."""


def all_parts() -> tuple[Part, ...]:
    """The parts of the scheduler of a hybrid model on a device that shares prefixes, with a host tier."""
    allocator = TokenToKVPoolAllocator(64, 1)
    scheduler = assemble(
        SchedulerConfig(max_running_requests=4),
        RadixCache(allocator, "lru", StateSlotAllocator(16)),
        allocator,
        ReqToTokenPool(4, 64),
        context_length=64,
        eos_ids=[0],
        vocab_size=100,
        cascade=CascadeCosts(step_tokens=1.0, run_tokens=1.0, row_tokens=1.0),
        tiers=empty_tiers(),
        media=TOWER,
    )
    return scheduler.parts.all


def overriding() -> dict[str, list[str]]:
    """The parts that override each moment, in the order in which they are asked."""
    parts = all_parts()
    moments = [name for name in vars(Part) if not name.startswith("_") and name not in OUTSIDE]
    return {
        moment: [type(part).__name__ for part in parts if getattr(type(part), moment) is not getattr(Part, moment)]
        for moment in moments
    }


def test_the_table_lists_every_moment_and_its_parts() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| (.*) \|$", DOCUMENT, re.MULTILINE)
    assert {moment: re.findall(r"`(\w+)`", parts) for moment, parts in rows} == overriding()


def test_each_part_lists_its_moments() -> None:
    listed = {
        heading: re.search(rf"^### {heading}\n.*?^Moments: (.*?)[.;]", DOCUMENT, re.MULTILINE | re.DOTALL)
        for heading in HEADINGS
    }
    found = {name: re.findall(r"`([a-z_]+)`", match[1]) for name, match in listed.items() if match is not None}
    expected = {
        heading: [moment for moment, parts in overriding().items() if part in parts]
        for heading, part in zip(HEADINGS, ALL, strict=True)
    }
    assert found == expected


@pytest.mark.parametrize(("command", "count"), COMMANDS, ids=["guards", "isinstance", "imports"])
def test_the_commands_count_no_more_than_documented(command: str, count: str) -> None:
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert int(done.stdout) <= int(count)
