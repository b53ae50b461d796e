"""The load generator's pure parts: texts and shapes from a seed, and summaries."""

import json
import os
import random

import pytest

from benchmarks.common.machine import facts, tree_memory
from benchmarks.common.tables import table
from benchmarks.serving import workloads
from benchmarks.serving.client import chat_body
from benchmarks.serving.report import Run, Summary, comparison, summarise
from benchmarks.serving.workloads import ITEM_SCHEMA, NAMES, UniqueShape, Workload, build, text_conforms
from radixrt.bench.result import Outcome
from radixrt.bench.words import TOKENS_PER_WORD, WORDS, prose

SHAPES = {
    "shared-prefix": (64, 64, 16, 16),
    "multi-turn": (8, 40, 8, 32),
    "tree": (64, 64, 16, 16),
    "json": (32, 32, 8, 96),
    "random": (32, 32, 16, 64),
    "single": (8, 8, 1, 64),
    "unique": (32, 32, 16, 64),
}


def estimated_tokens(text: str) -> float:
    return len(text.split()) * TOKENS_PER_WORD


@pytest.mark.parametrize("name", NAMES)
def test_counts_of_the_record(name: str) -> None:
    job = build(name, 7)
    assert (len(job.conversations), job.requests, job.concurrency, job.max_tokens) == SHAPES[name]
    assert (job.schema is not None) == (name == "json")


@pytest.mark.parametrize("name", NAMES)
def test_text_depends_on_the_seed_and_on_nothing_else(name: str) -> None:
    assert build(name, 7) == build(name, 7)
    first, second = ({talk.users[0] for talk in build(name, seed).conversations} for seed in (7, 8))
    assert not first & second


@pytest.mark.parametrize("tokens", [40, 256, 1200])
def test_prose_has_the_wanted_length(tokens: int) -> None:
    text = prose(random.Random(1), tokens)
    assert abs(estimated_tokens(text) - tokens) <= TOKENS_PER_WORD
    assert set(text.lower().replace(".", "").split()) <= set(WORDS)
    assert len(prose(random.Random(1), tokens, tokens_per_word=2.0).split()) == tokens / 2


def test_words_are_distinct() -> None:
    assert len(WORDS) == len(set(WORDS))


def test_shared_prefix_shares_the_preamble_only() -> None:
    talks = build("shared-prefix", 3).conversations
    assert len({talk.system for talk in talks}) == 1
    assert len({talk.users for talk in talks}) == len(talks)


def test_tree_has_four_roots_of_four_branches_of_four_leaves() -> None:
    talks = build("tree", 3).conversations
    roots = {talk.system for talk in talks}
    assert len(roots) == 4
    assert [talk.system for talk in talks] != sorted(talk.system or "" for talk in talks)
    words = round(108 / TOKENS_PER_WORD)
    for root in roots:
        users = [talk.users[0] for talk in talks if talk.system == root]
        assert len(users) == len(set(users)) == 16
        assert len({tuple(user.split()[:words]) for user in users}) == 4


def test_unique_shares_not_even_the_system_message() -> None:
    job = build("unique", 3, unique=UniqueShape(requests=5, tokens=100, max_tokens=3, concurrency=2))
    assert (job.requests, job.max_tokens, job.concurrency) == (5, 3, 2)
    assert len({talk.system for talk in job.conversations}) == 5
    for talk in job.conversations:
        assert abs(estimated_tokens(f"{talk.system} {talk.users[0]}") - 100) <= 2 * TOKENS_PER_WORD


def test_scaled_keeps_the_first_conversations() -> None:
    job = build("random", 3)
    assert job.scaled(0.25).conversations == job.conversations[:8]
    assert len(job.scaled(0).conversations) == 1


def test_unknown_workload() -> None:
    with pytest.raises(KeyError):
        build("nothing", 1)


GOOD_ITEM = {"category": "toy", "quantity": 3, "tags": ["a"], "maker": {"name": "n", "country": "c"}}


@pytest.mark.parametrize(
    "change",
    [
        {"category": "car"},
        {"quantity": True},
        {"quantity": 1.5},
        {"tags": [1]},
        {"tags": ["a"] * 4},
        {"tags": ["a" * 17]},
        {"maker": {"name": "n"}},
        {"more": 1},
    ],
)
def test_schema_check(change: dict[str, object]) -> None:
    assert text_conforms(json.dumps(GOOD_ITEM), ITEM_SCHEMA)
    assert not text_conforms(json.dumps(GOOD_ITEM | change), ITEM_SCHEMA)
    assert not text_conforms(json.dumps(GOOD_ITEM)[:-1], ITEM_SCHEMA)


def test_end_of_sequence_is_ignored_without_a_schema_only() -> None:
    assert chat_body("m", [], 5, None)["ignore_eos"] is True
    body = chat_body("m", [], 5, ITEM_SCHEMA)
    assert "ignore_eos" not in body
    form = {"name": "item", "schema": ITEM_SCHEMA, "strict": True}
    assert body["response_format"] == {"type": "json_schema", "json_schema": form}


def test_summary_counts_good_requests_only() -> None:
    job: Workload = build("json", 1).scaled(0.1)
    good = Outcome(1.0, [1.5, 2.2], 2.2, prompt_tokens=10, cached_tokens=4, output_tokens=8, text=json.dumps(GOOD_ITEM))
    cut = Outcome(1.0, [2.5, 4.6], 5.0, prompt_tokens=10, output_tokens=8, text="{")
    summary = summarise(job, 2.0, [good, cut, Outcome(0.1, error="refused")], client_cpu=0.1)
    assert (summary.prompt_tokens, summary.cached_tokens, summary.output_tokens) == (20, 4, 16)
    assert (summary.output_rate, summary.prompt_rate, summary.schema_ok) == (8.0, 10.0, 1)
    assert summary.ttft[0] == pytest.approx(1.0)
    assert summary.tpot[0] == pytest.approx(0.2)
    assert summary.errors == ("refused",)


def test_comparison_takes_medians_and_leaves_out_errors() -> None:
    def run(server: str, wall: float, errors: tuple[str, ...] = ()) -> Run:
        return Run(server, 0, 0, summaries=[Summary("tree", 64, wall, 100, 60, errors=errors)])

    runs = [run("a", 1.0), run("b", 4.0), run("a", 3.0), run("b", 4.0), run("b", 99.0, ("late",))]
    row = [cell.strip() for cell in comparison(runs).splitlines()[-1].strip("|").split("|")]
    assert row == ["tree", "2.00 (1.00-3.00)", "4.00 (4.00-4.00)", "40.0", "15.0", "0.50"]


def test_table_is_markdown() -> None:
    assert table(("a", "bb"), [("1", "2")]) == "| a | bb |\n|---|----|\n| 1 | 2  |"


def test_machine_facts() -> None:
    assert int(facts()["cores"]) >= 1
    memory = tree_memory(os.getpid())
    assert memory.processes >= 1
    assert memory.peak >= memory.rss > 0


def test_standard_names_leave_out_unique() -> None:
    assert set(NAMES) - set(workloads.STANDARD) == {"unique"}
