"""The table of a campaign."""

from __future__ import annotations

import statistics
from collections import Counter

from radixrt.bench.result import percentile
from tests.process.chaos.campaign import Result
from tests.process.chaos.faults import Fault


def report(result: Result) -> str:
    """Return a Markdown table of faults by process and signal, and a line about the requests."""
    groups: dict[tuple[str, str], list[Fault]] = {}
    for fault in result.faults:
        group = ("two of these, within 3 s", "") if fault.double else (fault.process, fault.signal.name)
        groups.setdefault(group, []).append(fault)
    lines = [
        "| process | signal | faults | open requests (median) | recovery, median | p99 |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for (process, signal), faults in sorted(groups.items(), key=lambda item: (not item[0][1], item)):
        times = [fault.recovery_s for fault in faults]
        waiting = statistics.median(len(fault.open_requests) for fault in faults)
        lines.append(
            f"| {process} | {signal} | {len(faults)} | {waiting:g} "
            f"| {statistics.median(times):.1f} s | {percentile(times, 99):.1f} s |"
        )
    lines.append(
        f"\n{len(result.faults)} faults, {result.requests} requests: {result.answered} answered, {len(result.ended)} "
        f"ended with an error that names the failed tokenizer, scheduler or router, {len(result.suspects)} ended "
        f"because two ModelRunners or replicas died while they ran, {len(result.lost)} lost, {len(result.changed)} "
        "changed."
    )
    lines += [f"{count} x {problem[:1500]}" for problem, count in Counter(result.problems).most_common(20)]
    return "\n".join(lines)
