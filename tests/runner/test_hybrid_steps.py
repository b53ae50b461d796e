"""Steps of models with recurrent layers compute transformers' logits, from whatever slots the scheduler names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radixrt.attention.hybrid import HybridAttnBackend
from radixrt.forward_batch.forward_batch import ForwardBatch
from radixrt.messages.runner import ForwardStep, RowWrite
from radixrt.messages.state_slots import SCRATCH_STATE, ZERO_STATE
from radixrt.messages.wire import pack_i32
from radixrt.runner.model_runner import ModelRunner
from tests.models.test_decoder import transformers_logits
from tests.runner.test_narrowed_steps import greedy, runner
from tests.step_sections import sections
from tests.tiny_models import HYBRID_KINDS, make_tiny_model

TOLERANCE = 1e-3
TOKENS = torch.randint(3, 500, (90,), generator=torch.Generator().manual_seed(3)).tolist()


@dataclass
class Row:
    """One sequence of a step: its tokens up to the step's end, and how many of them are new.

    Attributes:
        slots: KV slots of all its positions; those of new tokens from `stored` on are written.
        state: slots that are read and written.
        cuts: numbers of new tokens after which the state is also written, and the slots.
    """

    place: int
    tokens: list[int]
    new: int
    state: tuple[int, int]
    slots: list[int] = field(default_factory=list)
    stored: int = 0
    cuts: list[tuple[int, int]] = field(default_factory=list)


class Steps:
    """Builds and runs steps, and gives out KV slots."""

    def __init__(self, made: ModelRunner) -> None:
        self.runner = made
        self._next = 1
        self._begun: set[int] = set()

    def row(self, place: int, tokens: list[int], before: Row | None, state: tuple[int, int]) -> Row:
        """A row that goes on from `before`, in a place of its own or another one's."""
        known = [] if before is None else before.slots
        fresh = list(range(self._next, self._next + len(tokens) - len(known)))
        self._next += len(fresh)
        return Row(place, tokens, len(fresh), state, known + fresh)

    @torch.inference_mode()
    def run(self, rows: list[Row], *, decode: bool = False) -> torch.Tensor:
        """The logits of the rows' last positions."""
        slots = [s if i >= r.stored else 0 for r in rows for i, s in enumerate(r.slots) if i >= len(r.slots) - r.new]
        writes = [
            RowWrite(row.place, 0, pack_i32(row.slots[: max(row.stored, len(row.slots) - row.new)]))
            for row in rows
            if row.place not in self._begun and len(row.slots) > row.new
        ]
        step = ForwardStep(
            step_id=0, mode=2 if decode else 1, req_pool_idx=pack_i32([r.place for r in rows]),
            seq_lens=pack_i32([len(r.tokens) for r in rows]), out_cache_loc=pack_i32(slots),
            extend_lens=b"" if decode else pack_i32([r.new for r in rows]),
            input_ids=b"" if decode else pack_i32([t for r in rows for t in r.tokens[-r.new :]]),
            samples=b"" if decode else bytes([1] * len(rows)), row_writes=writes,
            sampling_rows=[greedy(r.place) for r in rows if r.place not in self._begun],
            sections=sections(
                state_src=pack_i32([r.state[0] for r in rows]),
                state_dst=pack_i32([r.state[1] for r in rows]),
                state_cuts=pack_i32([n for i, r in enumerate(rows) for cut in r.cuts for n in (i, *cut)]),
            ),
        )  # fmt: skip
        self._begun |= {row.place for row in rows}
        for row in rows if decode else ():
            self.runner.batches.future_token_ids[row.place] = row.tokens[-1]
        batch = self.runner.prepare(step)
        assert isinstance(batch, ForwardBatch)
        output = self.runner.forward(batch)
        self.runner.sample(output, batch, step, None)
        return output.next_token_logits.clone()


@contextmanager
def steps(folder: Path, **options: Any) -> Iterator[Steps]:
    with runner(folder, num_states=12, **options) as made:
        assert made.num_states == 12
        yield Steps(made)


@pytest.fixture(params=HYBRID_KINDS)
def folder(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model(request.param)


def expect(found: torch.Tensor, folder: Path, sequences: list[list[int]]) -> None:
    """The logits after each sequence are transformers'."""
    expected = torch.stack([logits[-1] for logits in transformers_logits(folder, sequences)])
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("backend", ["torch_native", "cpu"])
def test_prompts_in_chunks_and_decoded_tokens_in_one_batch(folder: Path, backend: str) -> None:
    with steps(folder, attention_backend=backend) as made:
        whole = made.row(1, TOKENS[:80], None, (ZERO_STATE, 2))  # narrowed: the last layer computes few tokens
        first = made.row(2, TOKENS[20:25], None, (ZERO_STATE, 3))
        expect(made.run([whole, first]), folder, [whole.tokens, first.tokens])
        more = made.row(1, TOKENS[:81], whole, (2, 2))
        second = made.row(2, TOKENS[20:60], first, (3, 4))
        short = made.row(3, TOKENS[7:8], None, (ZERO_STATE, 5))
        found = made.run([second, more, short])
        expect(found, folder, [second.tokens, more.tokens, short.tokens])
        rows = [made.row(1, TOKENS[:82], more, (2, 6)), made.row(2, TOKENS[20:61], second, (4, 4))]
        expect(made.run(rows, decode=True), folder, [row.tokens for row in rows])
        rows = [made.row(2, TOKENS[20:62], rows[1], (4, 3)), made.row(1, TOKENS[:83], rows[0], (6, 2))]
        expect(made.run(rows, decode=True), folder, [row.tokens for row in rows])


def test_a_last_layer_that_is_recurrent_is_narrowed_behind_its_mixer(tmp_path: Path) -> None:
    types = ["full_attention", "linear_attention"]
    folder = make_tiny_model(tmp_path / "m", "qwen3_5", num_hidden_layers=2, layer_types=types)
    with steps(folder) as made:
        whole, short = made.row(1, TOKENS[:80], None, (ZERO_STATE, 2)), made.row(2, TOKENS[:3], None, (ZERO_STATE, 3))
        expect(made.run([whole, short]), folder, [whole.tokens, short.tokens])
        rows = [made.row(1, TOKENS[:81], whole, (2, 2)), made.row(2, TOKENS[:4], short, (3, 3))]
        expect(made.run(rows, decode=True), folder, [row.tokens for row in rows])


def test_a_fork_and_replayed_tokens(folder: Path) -> None:
    """Two rows begin with the state after ten tokens; both replay ten more whose keys and values are there already."""
    with steps(folder) as made:
        trunk = made.row(1, TOKENS[:10], None, (ZERO_STATE, 2))
        made.run([trunk])
        trunk = made.row(1, TOKENS[:20], trunk, (2, 3))
        made.run([trunk])
        keys = [k[trunk.slots].clone() for k in made.runner.kv_cache.k]
        forks = [made.row(i, [*TOKENS[:20], 40 + i], trunk, (2, 4 + i)) for i in (2, 3)]
        forks = [replace(row, new=11, stored=20) for row in forks]
        expect(made.run(forks), folder, [row.tokens for row in forks])
        mirror = made.runner.batches.req_to_token
        for row in forks:
            assert mirror[row.place, :21].tolist() == row.slots, "replayed tokens keep the slots of the tree"
        for before, k in zip(keys, made.runner.kv_cache.k, strict=True):
            assert torch.equal(before, k[trunk.slots]), "nobody writes keys that others share"
        rows = [made.row(row.place, [*row.tokens, 9], row, (row.state[1],) * 2) for row in forks]
        rows.append(made.row(1, TOKENS[:21], trunk, (3, 3)))
        expect(made.run(rows, decode=True), folder, [row.tokens for row in rows])
        pools = [tensor for layer in states_of(made) for tensor in (layer.conv, layer.recurrent)]
        assert not any(pool[ZERO_STATE].any() for pool in pools)


@pytest.mark.parametrize("backend", ["torch_native", "cpu"])
def test_states_inside_a_chunk_are_those_of_separate_steps(folder: Path, backend: str) -> None:
    """One row leaves three states, from each of which another row goes on."""
    with steps(folder, attention_backend=backend) as made:
        row = None
        for end, slot in ((30, 2), (31, 3), (60, 4), (79, 5), (80, 6)):
            row = made.row(1, TOKENS[:end], row, (slot - 1 if row else ZERO_STATE, slot))
            made.run([row])
        whole = made.row(2, TOKENS[:80], None, (ZERO_STATE, 7))
        other = made.row(3, TOKENS[5:25], None, (ZERO_STATE, 8))
        whole.cuts = [(30, 9), (60, 10), (79, 11)]
        expect(made.run([whole, other]), folder, [whole.tokens, other.tokens])
        for layer in states_of(made):
            for pool in (layer.conv, layer.recurrent):
                for found, wanted in ((9, 2), (10, 4), (11, 5), (7, 6)):
                    torch.testing.assert_close(pool[found], pool[wanted], atol=TOLERANCE, rtol=0)
        forks = [made.row(i, [*TOKENS[:n], 9, i], whole, (slot, slot)) for i, (n, slot) in enumerate(whole.cuts, 4)]
        for row, (n, _) in zip(forks, whole.cuts, strict=True):
            row.slots, row.new = [*whole.slots[:n], *range(900 + 2 * row.place, 902 + 2 * row.place)], 2
        expect(made.run(forks), folder, [row.tokens for row in forks])


def states_of(made: Steps) -> list[Any]:
    backend = made.runner._attention
    assert isinstance(backend, HybridAttnBackend)
    assert made.runner.states is not None
    return made.runner.states.layers


@pytest.mark.parametrize("part", ["conv", "recurrent"])
@torch.inference_mode()
def test_every_part_of_a_state_counts(folder: Path, part: str) -> None:
    """The tests above would fail without it: a part that is lost after 40 tokens changes the logits 6 tokens later, the
    convolution's at once."""
    if part == "recurrent" and folder.name == "lfm2":
        pytest.skip("LFM2 has short convolutions alone")
    with steps(folder) as made:
        before = made.row(1, TOKENS[:40], None, (ZERO_STATE, 2))
        made.run([before])
        for state in states_of(made):
            getattr(state, part)[2] = 0
        row = made.row(1, TOKENS[: 41 if part == "conv" else 46], before, (2, 2))
        found = made.run([row])
        expected = transformers_logits(folder, [row.tokens])[0][-1]
        assert (found[0] - expected).abs().max() > 0.05
        assert (found[0] - expected).abs().max() > 50 * TOLERANCE


@torch.inference_mode()
def test_a_step_without_slots_is_an_error(folder: Path) -> None:
    with steps(folder) as made:
        batch = replace(made.runner.batches.build_dummy_extend(1), states=None)
        with pytest.raises(ValueError, match="section of states"):
            made.runner.forward(batch)


@torch.inference_mode()
def test_dummy_steps_use_the_scratch_slot_alone(folder: Path) -> None:
    with steps(folder) as made:
        for layer in states_of(made):
            for pool in (layer.conv, layer.recurrent):
                pool[SCRATCH_STATE + 1 :] = 7.0
        made.runner.run_smallest_step()
        for layer in states_of(made):
            for pool in (layer.conv, layer.recurrent):
                assert (pool[SCRATCH_STATE + 1 :] == 7).all()
                assert not pool[ZERO_STATE].any()


def test_one_bound_of_states_and_of_keys_and_values(tiny_model: Callable[[str], Path]) -> None:
    most = 1 << 20
    with runner(tiny_model("qwen3_5"), kv_cache_tokens=None, kv_cache_bytes=most, max_running_requests=64) as made:
        states = made.num_states * made.state_bytes
        pool = made.max_total_num_tokens * made.token_bytes
        assert most / 4 < states <= most / 2
        assert states + pool <= most
        assert made.max_total_num_tokens > made.batches.req_to_token.shape[1]
