"""The real scheduler of a hybrid model on a device that answers at once with the tokens of a trace."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence

import numpy as np

from benchmarks.cache.hybrid_workloads import END, Request
from radixrt.config import SchedulerConfig
from radixrt.mem_cache import RadixCache, ReqToTokenPool, StateSlotAllocator, TokenToKVPoolAllocator
from radixrt.messages.runner import StepOutput
from radixrt.messages.scheduler import TokenizedReq
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.sampling_params import SamplingParams
from radixrt.scheduler.kv_manager import KVManager
from radixrt.scheduler.schedule_batch import ScheduleBatch
from radixrt.scheduler.scheduler import Scheduler

CONTEXT = 16_384


class HybridEngine:
    """See the module's docstring.

    Args:
        num_states: state slots, the two reserved ones included.
        rows: maximum number of running requests.

    Attributes:
        prompt_tokens, computed_tokens: tokens of all prompts so far, and those of them that steps have computed.
    """

    def __init__(self, num_states: int, *, rows: int = 1, num_slots: int = 1 << 20) -> None:
        config = SchedulerConfig(max_running_requests=rows, max_queued_requests=4096, chunked_prefill_size=8192)
        allocator = TokenToKVPoolAllocator(num_slots)
        cache = RadixCache(allocator, "lru", StateSlotAllocator(num_states))
        self.scheduler = Scheduler(
            config, KVManager(cache, allocator, ReqToTokenPool(rows, CONTEXT)), context_length=CONTEXT, eos_ids=[END],
            vocab_size=1 << 17,
        )  # fmt: skip
        self.prompt_tokens = self.computed_tokens = 0
        self._count = 0

    def run(self, requests: Sequence[Request], *, together: int = 1) -> float:
        """Serve a trace, `together` requests at a time; returns the share of prompt tokens that were computed."""
        for start in range(0, len(requests), together):
            self._serve(requests[start : start + together])
        return self.computed_tokens / self.prompt_tokens

    def _serve(self, requests: Sequence[Request]) -> None:
        answers = {}
        for request in requests:
            rid = f"r{self._count}"
            self._count += 1
            answers[rid] = request.output
            self.prompt_tokens += len(request.prompt)
            sampling = SamplingParams(max_tokens=len(request.output) + 8)
            self.scheduler.intake.add(TokenizedReq(rid, pack_i32(request.prompt), sampling, program=request.hint), 0.0)
        sampled: Counter[str] = Counter()
        inflight: deque[ScheduleBatch] = deque()
        while not self.scheduler.is_idle:
            while len(inflight) < 2 and (batch := self.scheduler.next_batch(0.0)) is not None:
                inflight.append(batch)
                # A row that decodes has a token that is not known here.
                self.computed_tokens += int(np.count_nonzero(unpack_i32(batch.step.input_ids) >= 0))
            batch = inflight.popleft()
            tokens = []
            for req in batch.sampled:
                answer = answers[req.rid]
                tokens.append(answer[min(sampled[req.rid], len(answer) - 1)])
                sampled[req.rid] += 1
            self.scheduler.commit(batch, StepOutput(batch.step_id, pack_i32(tokens)), 0.0)
        self.scheduler.take_deltas()
