"""Sum of the snapshots of several schedulers, as the snapshot of one engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from radixrt.messages.histogram import Histogram
from radixrt.messages.scheduler_stats import LoadStats, SchedulerStats


def merge_stats(found: Sequence[SchedulerStats], queued: int) -> SchedulerStats:
    """Add up snapshots.

    Args:
        found: at least one snapshot.
        queued: number of requests that wait in the router.
    """
    if len(found) == 1 and not queued:
        return found[0]
    merged: SchedulerStats = _merge(found)
    return msgspec.structs.replace(merged, waiting=merged.waiting + queued)


def _merge(found: Sequence[Any]) -> Any:
    """Add up numbers, histograms, and dicts and structs of these, field by field; None counts as missing."""
    known = [each for each in found if each is not None]
    if not known:
        return None
    first = known[0]
    if isinstance(first, Histogram):
        counts = [sum(column) for column in zip(*(each.counts for each in known), strict=True)]
        return Histogram(first.bounds, counts, sum(each.total for each in known))
    if isinstance(first, dict):
        keys = dict.fromkeys(key for each in known for key in each)
        return {key: _merge([each.get(key) for each in known]) for key in keys}
    if isinstance(first, LoadStats):
        return _merge_loads(known)
    if isinstance(first, msgspec.Struct):
        fields = {name: _merge([getattr(each, name) for each in known]) for name in first.__struct_fields__}
        return type(first)(**fields)
    return sum(known)


def _merge_loads(loads: Sequence[LoadStats]) -> LoadStats:
    """Add up loads. The sum has the shortest wait, because a new request goes there, and no model of step times."""
    return LoadStats(
        min(each.predicted_wait_s for each in loads),
        sum(each.queued_tokens for each in loads),
        sum(each.queued_output_tokens for each in loads),
        sum(each.prefill_tokens_per_s for each in loads),
        sum(each.decode_tokens_per_s for each in loads),
    )
