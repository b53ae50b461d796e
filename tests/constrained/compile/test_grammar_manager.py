"""Requests and their grammars: kinds of constraints, caches, options, reasoning, and bad constraints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixrt.constrained.compile import compiler
from radixrt.constrained.compile.grammar_manager import FAILURE_S, GrammarManager
from radixrt.constrained.compile.protocol import WorkerSettings
from radixrt.constrained.runtime.reasoning import ReasoningGrammar
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constraint import StructuredOptions
from radixrt.errors import RequestError
from tests.constrained.compile.managers import Clock, drain, num_compiled, request
from tests.constrained.conftest import EOS_IDS, VOCAB_SIZE

pytestmark = pytest.mark.usefixtures("two_cores")


def test_each_kind_of_constraint(inline: GrammarManager, vocabulary: Vocabulary) -> None:
    kinds: list[dict[str, Any]] = [
        {"json_schema": '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'},
        {"regex": "[a-c]{2}"},
        {"ebnf": 'root ::= "x" root "y" | "xy"'},
        {"choices": ["one", "two"]},
    ]
    shortest = ['{"a":0}', "aa", "xy", ("one", "two")]
    for i, kind in enumerate(kinds):
        inline.submit(request(f"r{i}", **kind), 0.0)
    for i, ready in enumerate(inline.poll(0.0)):
        assert ready.message.rid == f"r{i}"
        assert ready.error is None
        assert ready.grammar is not None
        text = vocabulary.decode(ready.grammar.closing()).decode()
        assert text == shortest[i] or text in shortest[i]
        assert ready.info is not None
        assert ready.info.backend == "llguidance"
        assert not ready.info.cached
    assert num_compiled(inline) == 4
    assert inline.num_pending == 0


def test_a_stop_token_that_would_cut_the_answer_is_refused(inline: GrammarManager, vocabulary: Vocabulary) -> None:
    think, file = (vocabulary.control_tokens[name] for name in ("<issue_start>", "<file_sep>"))
    options = StructuredOptions(reasoning_end="<issue_start>")
    cases = {
        "text": request("text", regex="a+", stop_token_ids=tuple(vocabulary.encode("a"))),
        "marker": request("marker", regex="a+", stop_token_ids=(think,), structured=options),
        "other": request("other", regex="a+", stop_token_ids=(file,), structured=options),
    }
    for message in cases.values():
        inline.submit(message, 0.0)
    ready = {each.message.rid: each for each in inline.poll(0.0)}
    for rid in ("text", "marker"):
        error = ready[rid].error
        assert error is not None
        assert (error.param, error.status) == ("stop_token_ids", 400)
    assert ready["other"].grammar is not None


def test_what_is_known_is_there_at_once(inline: GrammarManager, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(3):
        inline.submit(request(f"r{i}", choices=["a", "b"]), float(i))
    ready = inline.poll(3.0)
    assert [each.info.cached for each in ready if each.info] == [False, True, True]
    grammars = [each.grammar for each in ready if each.grammar]
    assert len(set(map(id, grammars))) == 3
    stats = inline.stats()
    assert (num_compiled(inline), stats.hits, stats.cache_entries) == (1, 2, 1)
    monkeypatch.setattr(compiler, "compile_constraint", None)  # nothing is compiled or loaded again
    monkeypatch.setattr(compiler, "load", None)
    for i in range(100):
        inline.submit(request(f"s{i}", choices=["a", "b"]), 4.0)
        (known,) = inline.poll(4.0)
        assert known.grammar is not None
    assert inline.stats().hits == 102


def test_the_cache_is_bounded(vocabulary: Vocabulary) -> None:
    manager = GrammarManager(lambda: vocabulary, inline=True, cache_bytes=300_000)
    for i in range(20):
        manager.submit(request(f"r{i}", choices=["a", f"b{i}"]), 0.0)
    assert all(each.error is None for each in manager.poll(0.0))
    stats = manager.stats()
    assert 1 <= stats.cache_entries < 20
    assert stats.cache_bytes <= 300_000
    manager.submit(request("old", choices=["a", "b0"]), 0.0)
    assert num_compiled(manager) == 21


def test_a_bad_constraint_ends_its_request_and_is_remembered_for_a_while(inline: GrammarManager) -> None:
    for now in (0.0, FAILURE_S / 2, FAILURE_S + 1):
        inline.submit(request("bad", regex="(a"), now)
        (ready,) = inline.poll(now)
        assert ready.grammar is None
        assert ready.error is not None
        assert (ready.error.param, ready.error.status) == ("regex", 400)
    assert inline.stats().refusals == {"regex": 3}


def test_the_keyword_at_fault_is_counted(inline: GrammarManager) -> None:
    schema = '{"type": "string", "pattern": "^(a*)\\\\1$"}'
    inline.submit(request("bad", json_schema=schema), 0.0)
    (ready,) = inline.poll(0.0)
    assert ready.error is not None
    assert "pattern" in ready.error.message
    assert inline.stats().refusals == {"pattern": 1}


def test_the_engines_choice_of_backend_yields_to_the_requests(vocabulary: Vocabulary) -> None:
    manager = GrammarManager(lambda: vocabulary, inline=True, backend="xgrammar")
    manager.submit(request("ours", choices=["a", "b"]), 0.0)
    manager.submit(request("theirs", choices=["a", "b"], structured=StructuredOptions(backend="llguidance")), 0.0)
    assert [each.info.backend for each in manager.poll(0.0) if each.info] == ["xgrammar", "llguidance"]


CLOSING = {
    "type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"], "additionalProperties": True,
}  # fmt: skip
DECLARING = {name: value for name, value in CLOSING.items() if name != "additionalProperties"}
AS_TAG = {"format": {"type": "json_schema", "json_schema": DECLARING}}
AS_OPEN_TAG = {"format": {"type": "json_schema", "json_schema": DECLARING, "closed": False}}


@pytest.mark.parametrize(
    ("fields", "closed", "is_closed"),
    [
        ({"json_schema": DECLARING}, None, True),
        ({"json_schema": DECLARING}, False, False),
        ({"json_schema": DECLARING}, True, True),
        ({"json_schema": CLOSING}, None, False),
        ({"json_schema": {"type": "object"}}, None, False),
        ({"structural_tag": AS_TAG}, None, True),
        ({"structural_tag": AS_TAG}, False, False),
        ({"structural_tag": AS_OPEN_TAG}, None, False),
    ],
)
def test_the_engines_closed_objects_yield_to_the_requests(
    vocabulary: Vocabulary, fields: dict[str, Any], closed: bool | None, is_closed: bool
) -> None:
    manager = GrammarManager(lambda: vocabulary, inline=True, closed=True)
    manager.submit(request("r", **fields, structured=StructuredOptions(closed=closed)), 0.0)
    grammar = drain(manager, Clock())["r"].grammar
    assert grammar is not None
    more = all(grammar.accept(token) for token in vocabulary.encode_bytes(b'{"a":null,"b":null}'))
    assert (more, grammar.is_terminated()) == (not is_closed, not is_closed)


def test_open_and_closed_schemas_are_different_grammars(vocabulary: Vocabulary) -> None:
    manager = GrammarManager(lambda: vocabulary, inline=True)
    for closed in (None, False, True):
        manager.submit(request(str(closed), json_schema=DECLARING, structured=StructuredOptions(closed=closed)), 0.0)
        drain(manager, Clock())
    assert (manager.stats().cache_entries, manager.stats().hits) == (2, 1)


def test_reasoning_comes_first_where_it_is_asked_for(inline: GrammarManager) -> None:
    options = StructuredOptions(reasoning_end="</think>", reasoning_budget=50)
    inline.submit(request("r", choices=["a", "b"], structured=options), 0.0)
    inline.submit(request("s", choices=["a", "b"]), 0.0)
    first, second = inline.poll(0.0)
    assert isinstance(first.grammar, ReasoningGrammar)
    assert not isinstance(second.grammar, ReasoningGrammar)
    assert second.info is not None
    assert second.info.cached  # the reasoning is no part of what is compiled


def test_a_vocabulary_that_cannot_be_constrained_is_an_error_of_each_request(model_folder: Path, clock: Clock) -> None:
    def fail() -> Vocabulary:
        raise RequestError("this model's tokens have no text")

    settings = WorkerSettings(str(model_folder), VOCAB_SIZE, list(EOS_IDS))
    manager = GrammarManager(fail, inline=False, worker=settings)
    try:
        manager.submit(request("r", choices=["a", "b"]), clock.now)
        error = drain(manager, clock)["r"].error
        assert error is not None
        assert "no text" in error.message
    finally:
        manager.close()
    manager = GrammarManager(fail, inline=True)
    manager.submit(request("r", choices=["a", "b"]), 0.0)
    (ready,) = manager.poll(0.0)
    assert ready.error is not None


def test_a_defect_in_a_grammar_ends_its_request_alone(
    inline: GrammarManager, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    def broken(*arguments: object) -> object:
        raise AttributeError("a defect")

    monkeypatch.setattr(compiler, "compile_constraint", broken)
    inline.submit(request("a", regex="[ab]"), 0.0)
    error = drain(inline, clock)["a"].error
    assert error is not None
    assert "AttributeError" in error.message
