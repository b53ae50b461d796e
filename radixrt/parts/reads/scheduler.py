"""Scheduler end of reads: values that rows have yet to read, the section of a step, and the values of its answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
import numpy.typing as npt

from radixrt.messages.parts import FINISH_STOP, Finish, LogprobColumns, ReadValues
from radixrt.messages.request import Request, Row
from radixrt.messages.runner import StepOutput
from radixrt.messages.sections import READS, ReadSection, encode
from radixrt.messages.wire import Int32Array, pack_f32, pack_i32, unpack_f32, unpack_i32
from radixrt.scheduler.kv_manager import DecodeRows
from radixrt.scheduler.part import Core, Part, Section
from radixrt.scheduler.req import Req
from radixrt.scheduler.schedule_batch import ByKind, Chunk, ScheduleBatch


class ChunkReads(NamedTuple):
    """Values of a row that a chunk of the row's tokens computes.

    Attributes:
        targets: indices of the targets within the chunk, in the row's list of targets.
        spans: (first position, number of positions) of each sum of hidden states; never empty spans.
    """

    targets: slice
    spans: list[tuple[int, int]]


class RowReads:
    """Values that a row reads. A value is read once and kept, even if the row's tokens are computed again.

    Args:
        row: the row of the request, which lists the values to read.
    """

    def __init__(self, row: Row) -> None:
        logprobs, hidden = row.logprobs, row.hidden
        self._scores = logprobs is not None
        self._top = 0 if logprobs is None else logprobs.top
        self._positions = unpack_i32(b"" if logprobs is None else logprobs.positions)
        self._targets = unpack_i32(b"" if logprobs is None else logprobs.targets)
        self._scored = 0  # number of targets that have a log-probability
        self._columns: list[LogprobColumns] = []
        spans = unpack_i32(b"" if hidden is None else hidden.spans).reshape(-1, 2)
        self._starts, self._ends = spans[:, 0], spans.sum(1)
        self._span = 0  # first span that is not complete
        self._next = int(self._starts[0]) if len(spans) else 0  # first unread position of this span
        self._sum: npt.NDArray[np.float64] = np.zeros(1)  # sum over the read positions of this span, [hidden size]
        self._means: list[bytes] = []

    @property
    def is_done(self) -> bool:
        """True once every value has been read."""
        return self._scored == len(self._positions) and self._span == len(self._starts)

    @property
    def first(self) -> int:
        """Position of the first token whose hidden state is still needed; read only while there is such a token."""
        first = int(self._positions[self._scored]) if self._scored < len(self._positions) else None
        if self._span < len(self._starts):
            return self._next if first is None else min(first, self._next)
        assert first is not None
        return first

    def within(self, start: int, end: int) -> ChunkReads:
        """Return the unread values at positions [start, end)."""
        first, last = np.searchsorted(self._positions, [start, end])
        targets = slice(max(int(first), self._scored), max(int(last), self._scored))
        spans = []
        start = max(start, self._next)
        for span in range(self._span, len(self._starts)):
            begin, stop = max(start, int(self._starts[span])), min(end, int(self._ends[span]))
            if self._starts[span] >= end:
                break
            if begin < stop:
                spans.append((begin, stop - begin))
        return ChunkReads(targets, spans)

    def of(self, targets: slice) -> tuple[Int32Array, Int32Array, int]:
        """Return int32 positions and tokens of some targets, and the number of alternatives of each."""
        return self._positions[targets], self._targets[targets], self._top

    def take(self, reads: ChunkReads, columns: LogprobColumns | None, sums: Sequence[bytes]) -> None:
        """Add values that a step has computed.

        Args:
            columns: log-probabilities of the targets; None without targets.
            sums: sum of hidden states over each span, float32[hidden size] as bytes.
        """
        if columns is not None:
            self._columns.append(columns)
            self._scored = reads.targets.stop
        for (begin, count), data in zip(reads.spans, sums, strict=True):
            self._next = begin + count
            self._sum = self._sum + unpack_f32(data)
            if self._next == self._ends[self._span]:
                self._means.append(pack_f32(self._sum / (self._ends[self._span] - self._starts[self._span])))
                self._span += 1
                self._sum = np.zeros(1)
                if self._span < len(self._starts):
                    self._next = int(self._starts[self._span])

    def answer(self) -> ReadValues:
        """Return the row's values. Callable once `is_done`."""
        none = LogprobColumns(b"", b"", b"", self._top)
        return ReadValues([LogprobColumns.join(self._columns or [none])] if self._scores else [], b"".join(self._means))


def reads_of(row: Row) -> RowReads | None:
    """Return the record of a row's values; None for a row that reads nothing."""
    return None if row.logprobs is None and row.hidden is None else RowReads(row)


class StepReads(NamedTuple):
    """Reads of a step: the section, and the reading requests with their values, in row order."""

    section: ReadSection
    rows: list[tuple[Req, ChunkReads]]

    def values(self, answer: ReadValues) -> Iterator[tuple[Req, ChunkReads, LogprobColumns | None, list[bytes]]]:
        """Yield (request, reads, columns, sums) for each reading request; the last three are the arguments of
        `RowReads.take`."""
        columns = iter(answer.logprobs)
        size = len(answer.hidden) // max(len(self.section.spans) // 8, 1)
        at = 0
        for req, reads in self.rows:
            count = len(reads.spans)
            sums = [answer.hidden[at + i * size : at + (i + 1) * size] for i in range(count)]
            at += count * size
            yield req, reads, next(columns) if reads.targets.start < reads.targets.stop else None, sums


def step_reads(chunks: Sequence[Chunk]) -> StepReads | None:
    """Return the reads of a step with these chunks, in row order; None if no chunk reads a value."""
    rows: list[tuple[Req, ChunkReads]] = []
    index, targets, counts, spans = [], [], [], []
    first = 0  # index of the chunk's first token in the step
    for chunk in chunks:
        wanted = cast("RowReads | None", chunk.req.reads)
        if wanted is not None and not wanted.is_done:
            found = wanted.within(chunk.start, chunk.start + len(chunk.slots))
            positions, tokens, top = wanted.of(found.targets)
            if chunk.req.inputs is not None:
                tokens = np.where(tokens < -1, np.int32(chunk.req.inputs.token), tokens)
            if len(positions):
                index.append(positions + (first - chunk.start))
                targets.append(tokens)
                counts += [len(positions), top]
            for begin, count in found.spans:
                spans += [first + begin - chunk.start, count]
            if len(positions) or found.spans:
                rows.append((chunk.req, found))
        first += len(chunk.slots)
    if not rows:
        return None
    section = ReadSection(
        pack_i32(np.concatenate(index)) if index else b"",
        pack_i32(np.concatenate(targets)) if targets else b"",
        pack_i32(counts),
        pack_i32(spans),
    )
    return StepReads(section, rows)


class ReadsPart(Part):
    """Gives each request a `RowReads`, and adds the values that steps have read."""

    name = READS
    of_chunks = True

    def attach(self, core: Core) -> None:
        self._requests = core.requests
        self._writer = core.writer

    def queued(self, req: Req, row: Row, message: Request, now: float) -> None:
        req.reads = reads_of(row)

    def section(self, kinds: ByKind, decode: DecodeRows) -> Section | None:
        found = step_reads(kinds.chunks)
        return None if found is None else Section(encode(found.section), found)

    def commit(self, batch: ScheduleBatch, kept: StepReads, output: StepOutput, now: float) -> None:
        if output.values is None:
            return
        for req, found, columns, sums in kept.values(output.values):
            if req.finish is not None:
                continue  # ended while the step was in flight
            reads = cast("RowReads", req.reads)
            reads.take(found, columns, sums)
            if not reads.is_done:
                continue
            if req.member is None:
                self._writer.values(req, reads.answer())
            else:
                self._requests.end(req, Finish(FINISH_STOP), now)
