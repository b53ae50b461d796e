"""`Request`: rows of tokens to compute, from the tokenizer process to a scheduler, directly or through a router.

A request has one envelope, one or more rows, and sampling parameters if its row is continued. A row is a sequence of
tokens and the values that are read from its forward pass. Generation, scoring, embedding and classification differ in
their rows only: nothing behind the tokenizer asks which of them a request is.
"""

from __future__ import annotations

import msgspec
import numpy as np

from radixrt.messages.images import RowImage
from radixrt.messages.parts import Pooling, ProgramHint
from radixrt.messages.reads import HiddenRead, LogprobRead, prompt_reads
from radixrt.messages.wire import Int32Array, Message, pack_i32, unpack_i32
from radixrt.sampling_params import SamplingParams


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """Identity and treatment of a request, whatever it computes.

    Attributes:
        rid: unique id of the request, at most 256 characters.
        priority: requests with a higher priority are scheduled first and evicted later by priority eviction.
        cache_salt: namespace of the radix cache; requests share prefixes only within the same namespace.
        timeout_s: seconds after which the request ends with an error; None for the engine's default.
        program: position of the request in a program.
        tenant: name of the API key that the request came with, among which queues are shared fairly; "" for none.
        weight: share of the tenant in relation to other tenants.
        client: whose prompts are encoded in turns with those of others: the tenant, or an address; "" for nobody's.
    """

    rid: str
    priority: int = 0
    cache_salt: str = ""
    timeout_s: float | None = None
    program: ProgramHint | None = None
    tenant: str = ""
    weight: float = 1.0
    client: str = ""


class Row(msgspec.Struct, frozen=True, array_like=True):
    """Sequence of tokens: those of a prefix of the request, and then its own.

    Attributes:
        ids: int32[n], the row's own token ids; may be empty if there is a prefix.
        prefix: index of the prefix among the request's prefixes; -1 for none.
        logprobs, hidden: values to read; None for none.
        images: images of the row in ascending order, whose keys `ids` and the prefix hold at their positions.
    """

    ids: bytes
    prefix: int = -1
    logprobs: LogprobRead | None = None
    hidden: HiddenRead | None = None
    images: list[RowImage] = []


class Request(Message, frozen=True, array_like=True, tag=True):
    """Rows to compute. Token ids are within the vocabulary, or keys of images, and each row is within the context.

    Attributes:
        rows: one row if the request samples, otherwise one or more; rows with the same prefix are adjacent.
        prefixes: int32 columns of token ids that several rows begin with.
        sampling: how the row is continued; None if nothing is sampled and the values of all rows are the answer.
        turn_len: number of leading tokens of a conversation up to the end of its last message, before the generation
            prompt; 0 if unknown.
        resume_ids: int32 column of output tokens that another scheduler has sent for this request before it died. They
            count as output everywhere (max_tokens, penalties, positions, grammar), and are not sent again.
    """

    envelope: Envelope
    rows: list[Row]
    prefixes: list[bytes] = []
    sampling: SamplingParams | None = None
    turn_len: int = 0
    resume_ids: bytes = b""

    @property
    def rid(self) -> str:
        """Id of the request."""
        return self.envelope.rid

    @property
    def images(self) -> list[RowImage]:
        """The images of all rows. Those of later rows count as behind the first row: a cached beginning of the first
        row has none of them, unless the first row shows them too."""
        first, *others = self.rows
        shown = {image.digest for image in first.images}
        later = [image for row in others for image in row.images if image.digest not in shown]
        end = self.num_tokens
        return [*first.images, *(msgspec.structs.replace(image, start=end) for image in later)]

    @staticmethod
    def generate(
        rid: str,
        input_ids: bytes,
        sampling: SamplingParams,
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
        program: ProgramHint | None = None,
        turn_len: int = 0,
        resume_ids: bytes = b"",
        tenant: str = "",
        weight: float = 1.0,
    ) -> Request:
        """Create the request that continues an int32[n] prompt, with the reads that its sampling parameters ask for."""
        envelope = Envelope(rid, priority, cache_salt, timeout_s, program, tenant, weight)
        return Request.continue_prompt(envelope, input_ids, sampling, turn_len, resume_ids)

    @staticmethod
    def continue_prompt(
        envelope: Envelope, input_ids: bytes, sampling: SamplingParams, turn_len: int = 0, resume_ids: bytes = b""
    ) -> Request:
        """As `generate`, with an envelope."""
        row = Row(input_ids, -1, *prompt_reads(unpack_i32(input_ids), sampling))
        return Request(envelope, [row], [], sampling, turn_len, resume_ids)

    def tokens(self, index: int) -> Int32Array:
        """Return int32[n], all tokens of a row."""
        row = self.rows[index]
        own = unpack_i32(row.ids)
        return own if row.prefix < 0 else np.concatenate([unpack_i32(self.prefixes[row.prefix]), own])

    def row_len(self, index: int) -> int:
        """Return the number of tokens of a row."""
        row = self.rows[index]
        return (len(row.ids) + (len(self.prefixes[row.prefix]) if row.prefix >= 0 else 0)) // 4

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all rows, each prefix counted once."""
        return (sum(map(len, self.prefixes)) + sum(len(row.ids) for row in self.rows)) // 4

    def first_read(self, index: int) -> int:
        """Return the first position of a row whose hidden state is needed, so that a cache can save those before."""
        row, length = self.rows[index], self.row_len(index)
        first = length - 1 if self.sampling is not None else length
        if row.logprobs is not None and row.logprobs.positions:
            first = min(first, int(unpack_i32(row.logprobs.positions)[0]))
        if row.hidden is not None and row.hidden.spans:
            first = min(first, int(unpack_i32(row.hidden.spans)[0]))
        return first


def pooled_row(ids: bytes, pooling: Pooling) -> Row:
    """Return the row of an int32[n] prompt whose final hidden states are pooled."""
    length = len(ids) // 4
    return Row(ids, hidden=HiddenRead(pack_i32([length - 1, 1] if pooling == "last" else [0, length])))
