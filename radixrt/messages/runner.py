"""Messages between the scheduler process and the ModelRunner processes.

scheduler -> runner   ForwardStep, GrammarMask, PartOrder, DebugReq (to every rank)
runner -> scheduler   StepOutput, DebugReply (the rank that answers), RunnerReady, StepFailed, PartReport (any rank)
"""

from __future__ import annotations

import msgspec

from radixrt.messages.parts import LogprobColumns, ReadValues
from radixrt.messages.wire import Message
from radixrt.sampling_params import DrawParams


class RowWrite(msgspec.Struct, frozen=True, array_like=True):
    """Write to the runner's mirror before the step: req_to_token[req_pool_idx, start : start + len(slots)] = slots.

    Attributes:
        slots: int32[n] column of KV slots.
    """

    req_pool_idx: int
    start: int
    slots: bytes


class SamplingRow(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """Sampling parameters of a request, written into the runner's tables at req_pool_idx before the step runs.

    Attributes:
        draw: the client's numbers by which a token is drawn from logits.
        seed: 64-bit seed; always set.
        min_seq_len: end and stop tokens are not sampled while the sequence is shorter than this many tokens.
        stop_ids: int32[m], token ids that min_seq_len suppresses (empty if it does not apply).
        prompt_ids, output_ids: int32 columns of the tokens so far; only for a request with penalties.
        logprobs: alternatives per output token, or -1 for no log-probabilities.
    """

    req_pool_idx: int
    draw: DrawParams
    seed: int
    logit_bias: dict[int, float] = {}
    min_seq_len: int = 0
    stop_ids: bytes = b""
    prompt_ids: bytes = b""
    output_ids: bytes = b""
    logprobs: int = -1


class ForwardStep(Message, frozen=True, array_like=True, tag=True):
    """One forward step, sent to every rank, for B rows with T = sum(extend_lens) new tokens.

    Attributes:
        mode: a `ForwardMode` value. In DECODE every row has one new token, which is its future token unless input_ids
            gives it: extend_lens is empty, and every row samples.
        req_pool_idx: int32[B], row of each request in req_to_token.
        seq_lens: int32[B], length of each sequence including this step's tokens.
        out_cache_loc: int32[T], slots for the new keys and values; the mirror of req_to_token gets them at positions
            [seq_len - extend_len, seq_len) of each row.
        extend_lens: int32[B], number of new tokens of each row.
        input_ids: int32[T], new tokens; -1 stands for the row's future token, sampled by an earlier step. Empty in a
            DECODE step of future tokens. With pipeline stages no token is a future token: only the last stage samples.
        samples: uint8[B], 1 for a row whose last position is sampled (a chunk inside a prompt samples nothing).
        row_writes: other changes to req_to_token, applied before the step.
        sampling_rows: sampling parameters of new or changed rows, applied before the step.
        sections: encoded inputs of the engine's parts, by the part's name. A section has one writer, the part's end in
            the scheduler, and one reader, the part's end in the runner; the core does not decode sections. A step of
            plain rows has no section.
        has_mask: a GrammarMask for this step follows; the runner samples only after it has arrived.

    Replay: a new token whose out_cache_loc is 0 already has keys and values in the slot that row_writes gave to its
    position. Its keys and values are written to the padding slot, and the runner leaves its mirror of req_to_token as
    it is there.
    """

    step_id: int
    mode: int
    req_pool_idx: bytes
    seq_lens: bytes
    out_cache_loc: bytes
    extend_lens: bytes = b""
    input_ids: bytes = b""
    samples: bytes = b""
    row_writes: list[RowWrite] = []
    sampling_rows: list[SamplingRow] = []
    sections: dict[str, bytes] = {}
    has_mask: bool = False


class GrammarMask(Message, frozen=True, array_like=True, tag=True):
    """Masks of allowed tokens for the constrained rows of one step, as slots of the table of masks that both ends keep
    (`radixrt.executor.mask_table`). Rows with equal masks share a slot.

    Attributes:
        rows: int32[m], distinct indices among the step's sampling rows. All other rows are unconstrained.
        slots: int32[m], slot of each row's mask.
        new: int32[k], distinct slots whose masks are new.
        bits: uint32[k * ceil(vocab / 32)] as bytes, the new masks; bit t % 32 of word t // 32 is 1 when token t is
            allowed. Empty if the ranks map the table of the scheduler.
    """

    step_id: int
    rows: bytes
    slots: bytes
    new: bytes = b""
    bits: bytes = b""


class PromptCosts(msgspec.Struct, frozen=True, array_like=True):
    """Costs of computing a prefix once for the prompts that share it, for one layer of one step on the runner's device.

    The unit is one position of one full query tile of the prefill kernel.

    Attributes:
        step: fixed cost of a step in which prompts share anything.
        run: fixed cost of each shared run.
        token: cost of each query of a run: the query is copied next to the others, its partial result is written and
            read again.
        copy: cost of each position of a run: its keys and values are copied side by side.
        dense: cost of a position for a tile of a run, whose keys lie side by side, relative to a tile of one row.
        min_length: length of the shortest run that is computed on its own.
        query_tile: queries of one row that the prefill kernel computes together; fewer take as long.
        small_tile: the same for the prefill kernel for few queries.
        small_tile_cost: time of a query in a full small tile, relative to a query in a full large one.
    """

    step: float
    run: float
    token: float
    copy: float = 0.0
    dense: float = 1.0
    min_length: int = 64
    query_tile: int = 128
    small_tile: int = 16
    small_tile_cost: float = 2.0


class CascadeCosts(msgspec.Struct, frozen=True, array_like=True):
    """Costs of computing a shared prefix once, for one layer of one decode step on the runner's device.

    The unit is one token whose keys and values one row would have read for itself.

    Attributes:
        step_tokens: fixed cost of a step that shares anything: kernels that a plain step does not launch.
        run_tokens: fixed cost of each shared run.
        row_tokens: cost of each row of a run: its partial result is written and read again.
        compute: cost of a run's position for each of its rows, relative to reading and computing it alone; at most 0.5.
        min_length: length of the shortest run that is computed on its own.
        in_extend: decode rows that ride in a step with prompt chunks share as well.
        prompts: costs for prompts; None if they do not share.
    """

    step_tokens: float
    run_tokens: float
    row_tokens: float
    compute: float = 0.0
    min_length: int = 16
    in_extend: bool = False
    prompts: PromptCosts | None = None


class WeightsInfo(msgspec.Struct, frozen=True, array_like=True):
    """Formats of the weights of linear layers, experts and the output head on a rank.

    Attributes:
        scheme: short name of the formats of quantized weights; empty if all weights are plain.
        kernels: names of the kernels that multiply by quantized weights.
        quantized: share of the weights that are quantized, from 0 to 1.
    """

    scheme: str = ""
    kernels: tuple[str, ...] = ()
    quantized: float = 0.0


class RunnerReady(Message, frozen=True, array_like=True, tag=True):
    """Announcement that a rank is ready for steps.

    Attributes:
        cascade: costs of computing shared prefixes once on this rank's device; None if no layer can share.
        executed: number of steps and masks that this rank has executed for earlier schedulers. Each scheduler sends all
            ranks the same messages, so equal numbers mean that ranks have executed the same steps and masks.
        num_states: state slots of the recurrent layers, the two reserved ones (zeros, scratch) included; 0 if the
            model has no recurrent layers.
        kv_cache_dtype: of keys and values in the pool, for people, e.g. "fp8_e4m3 with scales of the checkpoint".
        weights: formats of the weights on this rank.
        token_bytes: bytes of one token's keys and values in the layers of this rank.
        state_bytes: bytes of one state slot on this rank.
        tower_flops_per_s: measured speed of the vision tower; 0 if unknown.
    """

    rank: int
    num_slots: int
    vocab_size: int
    device: str
    dtype: str
    cascade: CascadeCosts | None = None
    executed: int = 0
    num_states: int = 0
    kv_cache_dtype: str = ""
    weights: WeightsInfo = WeightsInfo()
    token_bytes: int = 0
    state_bytes: int = 0
    tower_flops_per_s: float = 0.0


class StepOutput(Message, frozen=True, array_like=True, tag=True):
    """Result of one step for its S sampling rows: the rows with samples == 1, in order.

    Attributes:
        token_ids: int32[S], sampled tokens.
        logprobs: columns of a single position for each sampling row with requested log-probabilities, in row order.
        values: values that the step's rows read; None without values.
        row_errors: (sampling row, message) of rows whose sampling failed because their logits were not finite; their
            token id is 0 and has no meaning.
        forward_s: seconds from the runner's receipt of the step until its result was on the host.
    """

    step_id: int
    token_ids: bytes
    logprobs: list[LogprobColumns] = []
    row_errors: list[tuple[int, str]] = []
    values: ReadValues | None = None
    forward_s: float = 0.0


class StepFailed(Message, frozen=True, array_like=True, tag=True):
    """Report that a step raised an exception on a rank.

    Attributes:
        fatal: the rank cannot continue. False on a rank that holds the whole model: the device's state is intact, and
            only the requests of that step are lost.
        lost_input: number of the input that could not be read (`EncodePiece.key`); only the requests that need it are
            lost. 0 for another error.
    """

    step_id: int
    rank: int
    error: str
    fatal: bool
    lost_input: int = 0


class PartOrder(Message, frozen=True, array_like=True, tag=True):
    """Order of a part's end in the scheduler to its end in every rank, executed between the steps before and after it.

    Attributes:
        part: name of the part.
        data: encoded order, which the core does not decode.
    """

    part: str
    data: bytes


class PartReport(Message, frozen=True, array_like=True, tag=True):
    """Report of a part's end in a rank to its end in the scheduler.

    Attributes:
        part, data: as in `PartOrder`.
    """

    rank: int
    part: str
    data: bytes


class DebugReq(Message, frozen=True, array_like=True, tag=True):
    """Request for rows of a runner's mirror of req_to_token, for tests.

    Attributes:
        rows: int32[m], row indices.
        lens: int32[m], number of slots to return of each row.
    """

    rows: bytes
    lens: bytes


class DebugReply(Message, frozen=True, array_like=True, tag=True):
    """Slots of the requested rows, concatenated; an int32 column."""

    slots: bytes


ToRunner = ForwardStep | GrammarMask | PartOrder | DebugReq
FromRunner = RunnerReady | StepOutput | StepFailed | PartReport | DebugReply
