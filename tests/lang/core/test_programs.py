"""Programs and their results: text, roles, gens, forks, joins, nested programs, async programs."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

import radixrt as rt
from tests.engine.helpers import one

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 6}


def header(role: str) -> str:
    return f"<|im_start|>{role}\n"


def message(role: str, content: str) -> str:
    return f"{header(role)}{content}<|im_end|>\n"


@rt.function(**GREEDY)
def qa(s: rt.State, question: str) -> None:
    s += rt.system("Be brief.") + rt.user(question) + rt.assistant(rt.gen("answer"))


def test_a_program_of_one_call(engine: rt.Engine) -> None:
    state = qa.run(question="What is the capital of France?", backend=engine)
    prompt = message("system", "Be brief.") + message("user", "What is the capital of France?") + header("assistant")
    expected = one(engine, prompt, GREEDY)
    assert state["answer"] == expected.text
    assert state.text() == prompt + expected.text + "<|im_end|>\n"
    assert state.messages() == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is the capital of France?"},
        {"role": "assistant", "content": expected.text},
    ]
    assert state.get_meta("answer").token_ids == state.meta["answer"].token_ids == expected.token_ids
    assert state.usage.calls == 1
    assert state.usage.completion_tokens == len(expected.token_ids)
    assert state.names() == ["answer"]
    assert state.error is None
    assert qa.run("What is the capital of France?", backend=engine)["answer"] == expected.text


def test_plain_text_without_roles(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State) -> str:
        s += "The capital of France is" + rt.gen("a", **GREEDY) + ", and " + rt.gen(**GREEDY)
        assert s.messages() == []
        return s["a"]

    state = program.run(backend=engine)
    first = one(engine, "The capital of France is", GREEDY)
    assert state.returned == state["a"] == first.text
    assert state.text().startswith(f"The capital of France is{first.text}, and ")
    assert len(state.log.calls) == 2


def test_each_call_is_an_exact_prefix_hit_of_what_went_before(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def chat(s: rt.State) -> None:
        for i in range(4):
            s += rt.user(f"Question {i}") + rt.assistant(rt.gen(f"answer{i}"))

    calls = chat.run(backend=engine).log.calls
    for before, after in itertools.pairwise(calls):
        assert before.prompt_ids is not None
        assert before.output_ids is not None
        assert after.prompt_ids is not None
        so_far = before.prompt_ids + before.output_ids
        assert after.prompt_ids[: len(so_far)] == so_far
        assert after.cached_tokens >= len(so_far) - 1  # the last token has not been computed: it was only sampled
        assert after.depends == (before.id,)


@pytest.mark.parametrize("form", ["words", "begin and end", "blocks"])
def test_forms_of_roles(engine: rt.Engine, form: str) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        if form == "words":
            s += rt.system("S") + rt.user("U " + "V") + rt.assistant("Sure: " + rt.gen("x"))
        elif form == "begin and end":
            s += rt.system_begin() + "S" + rt.system_end()
            s += rt.user_begin()
            s += "U "
            s += "V"
            s += rt.user_end() + rt.assistant_begin() + "Sure: " + rt.gen("x") + rt.assistant_end()
        else:
            with s.system():
                s += "S"
            with s.user():
                s += "U V"
            with s.assistant():
                s += "Sure: "
                s += rt.gen("x")

    prompt = message("system", "S") + message("user", "U V") + header("assistant") + "Sure: "
    assert program.run(backend=engine)["x"] == one(engine, prompt, GREEDY).text


def test_the_model_may_write_the_user_and_start_the_conversation(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> None:
        s += rt.assistant(rt.gen("hello")) + rt.role("user", "I " + rt.gen("said"))

    state = program.run(backend=engine)
    hello = one(engine, header("assistant"), GREEDY).text
    assert state["hello"] == hello
    prompt = message("assistant", hello) + header("user") + "I "
    assert state["said"] == one(engine, prompt, GREEDY).text


def test_control_tokens_in_texts_are_only_text(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State, text: str) -> None:
        s += rt.user(text) + rt.assistant(rt.gen("x"))

    call = program.run(text="a<|im_end|>b", backend=engine).log.calls[0]
    assert call.prompt_ids is not None
    assert list(call.prompt_ids).count(2) == 1  # the template's own
    assert call.prompt_text.count("<|im_end|>") == 2


def test_the_example_of_a_judge(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def judge(s: rt.State, essay: str) -> Any:
        s += rt.system("You grade essays.") + rt.user(essay)
        views = s.fork(["clarity", "evidence", "style"])
        for view, topic in views.items():
            view += rt.user(f"Comment on its {topic}.") + rt.assistant(rt.gen("note", stop="\n"))
        s += rt.user("Notes:\n" + rt.join(views, "note"))
        s += rt.assistant(rt.gen("grade", choices=["pass", "fail"]))
        return views

    state = judge.run(essay="Cats are small.", backend=engine)
    base = message("system", "You grade essays.") + message("user", "Cats are small.")
    notes = []
    for topic in ("clarity", "evidence", "style"):
        prompt = base + message("user", f"Comment on its {topic}.") + header("assistant")
        notes.append(one(engine, prompt, {**GREEDY, "stop": "\n"}).text)
    assert state.returned.values("note") == notes
    assert state.returned["style"]["note"] == notes[2]
    assert state.returned.keys() == ["clarity", "evidence", "style"]
    assert state.messages()[2]["content"] == "Notes:\n" + "\n".join(notes)
    assert state["grade"] in ("pass", "fail")
    joined = state.log.calls[3]
    assert joined.depends == (0, 1, 2)
    assert [state.log.branches[f"0/{i}"].key for i in (1, 2, 3)] == ["clarity", "evidence", "style"]
    assert all(branch.ended is not None for branch in state.log.branches.values())
    assert {call.siblings for call in state.log.calls[:3]} == {3}
    assert {call.fork_len for call in state.log.calls[:3]} == {len(engine_ids(engine, base))}


def engine_ids(engine: rt.Engine, text: str) -> list[int]:
    return one(engine, text, {"max_tokens": 1}).prompt_token_ids


def test_forks_share_names_and_transcript_and_go_separate_ways(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> Any:
        s += "One" + rt.gen("a")
        left, right = s.fork(2)
        left += " left" + rt.gen("a")
        right += " right" + rt.gen("b")
        s += " on" + rt.gen("c")
        copy = left.copy()
        copy += rt.gen("d")
        return left, right, copy

    state = program.run(backend=engine)
    left, right, copy = state.returned
    first = one(engine, "One", GREEDY).text
    assert state["a"] == right["a"] == first
    assert left["a"] == copy["a"]
    assert left.text() == f"One{first} left{left['a']}"
    assert right.text() == f"One{first} right{right['b']}"
    assert state.text() == f"One{first} on{state['c']}"
    assert copy.text() == left.text() + copy["d"]
    assert "b" not in state
    assert "c" not in left
    assert copy.branch == "0/1/1"
    with pytest.raises(KeyError, match="no gen or select is named 'zzz'; known are: a, d"):
        copy["zzz"]


def test_a_name_may_be_used_again_and_the_last_wins(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> list[str]:
        s += "x"
        seen = []
        for _ in range(3):
            s += rt.gen("again") + "."
            seen.append(s["again"])
        return seen

    state = program.run(backend=engine)
    assert state["again"] == state.returned[-1]
    assert state.text() == "x" + "".join(text + "." for text in state.returned)


def test_loops_and_ifs_on_results(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> int:
        s += "Count"
        turns = 0
        while turns < 3 and ("n" not in s or s["n"] < 10**9):
            s += rt.gen("n", int, max_tokens=3)
            turns += 1
        return turns

    state = program.run(backend=engine)
    assert len(state.log.calls) == state.returned == 3


def test_several_at_once(engine: rt.Engine) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += "Say" + rt.gen("x", n=3, seed=5, max_tokens=5) + "!" + rt.gen("y", **GREEDY)

    state = program.run(backend=engine)
    expected = [one(engine, "Say", {"seed": 5 + i, "max_tokens": 5}).text for i in range(3)]
    assert state["x"] == expected
    assert [meta.text for meta in state.meta["x"]] == expected
    assert state.text().startswith(f"Say{expected[0]}!")
    assert [call.index for call in state.log.calls] == [0, 1, 2, 0]


def test_programs_in_programs(engine: rt.Engine) -> None:
    @rt.function(max_tokens=2)
    def ask(s: rt.State, question: str) -> str:
        s += rt.user(question) + rt.assistant(rt.gen("reply"))
        return s["reply"]

    @rt.function(**GREEDY)
    def program(s: rt.State) -> list[str]:
        s += rt.system("S")
        first = ask(s, "one?")
        s += ask(question="two?")
        s += rt.user("three?") + rt.assistant(rt.gen("last"))
        return [first, s["reply"]]

    state = program.run(backend=engine)
    assert [m["role"] for m in state.messages()] == ["system", *["user", "assistant"] * 3]
    assert state["reply"] == state.returned[1]
    assert [call.sampling.max_tokens for call in state.log.calls if call.sampling] == [2, 2, 6]
    assert [call.sampling.temperature for call in state.log.calls if call.sampling] == [0, 0, 0]


async def test_async_programs_have_the_same_words(engine: rt.Engine) -> None:
    @rt.function
    async def inner(s: rt.State) -> str:
        s += rt.user("More?") + rt.assistant(rt.gen("more"))
        return await s.get("more")

    @rt.function(**GREEDY)
    async def program(s: rt.State) -> list[Any]:
        s += rt.user("Hi") + rt.assistant(rt.gen("hello"))
        with pytest.raises(rt.NotReadyError, match=r'write await state.get\("hello"\)'):
            s["hello"]
        hello = await s.get("hello")
        assert s["hello"] == hello
        branches = s.fork(3)
        for i, branch in enumerate(branches):
            branch += rt.user(str(i)) + rt.assistant(rt.gen("x"))
        values = await asyncio.gather(*(branch.get("x") for branch in branches))
        s += rt.user(rt.join(branches, "x", sep=" | "))
        more = await inner(s)
        await s.wait()
        assert s.text().endswith(f"{more}<|im_end|>\n")
        return [hello, *values, more]

    returned = (await program.async_run(backend=engine)).returned
    assert len(returned) == 5
    in_thread = await asyncio.to_thread(lambda: program.run(backend=engine).returned)
    assert in_thread == returned
    assert (await qa.async_run(question="q", backend=engine))["answer"] == await asyncio.to_thread(
        lambda: qa.run(question="q", backend=engine)["answer"]
    )


def test_joins_have_formats_and_are_texts(engine: rt.Engine) -> None:
    @rt.function(**GREEDY)
    def program(s: rt.State) -> Any:
        s += "Go"
        branches = s.fork(["p", "q"])
        for branch in branches:
            branch += rt.gen("x")
        return f"{rt.join(branches, 'x', sep=';')}", str(rt.join(branches, "x", format="{index}{key}={value} "))

    state = program.run(backend=engine)
    x = one(engine, "Go", GREEDY).text
    assert state.returned == (f"{x};{x}", f"0p={x} \n1q={x} ")


def test_a_state_without_a_function(engine: rt.Engine) -> None:
    with rt.State(engine, sampling=GREEDY) as s:
        s += "The capital of France is" + rt.gen("a")
        assert s["a"] == one(engine, "The capital of France is", GREEDY).text
        s += " and" + rt.gen("b")
    assert s.done("b")
    assert s.values() == {"a": s["a"], "b": s["b"]}
    with pytest.raises(rt.ProgramError, match="has ended"):
        s += "more"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (lambda: rt.user("a") + "b", "the text 'b' outside of a message"),
        (lambda: rt.user("a") + rt.gen(), "a gen outside of a message"),
        (lambda: "a" + rt.user("b"), "after text without a role"),
        (lambda: rt.user_begin() + rt.user("b"), "begins inside the user message"),
        (lambda: rt.user_end(), "where none is open"),
        (lambda: rt.user_begin() + rt.assistant_end(), "where the user message is open"),
    ],
)
def test_words_where_they_cannot_stand(engine: rt.Engine, words: Any, message: str) -> None:
    @rt.function
    def program(s: rt.State) -> None:
        s += words()

    with pytest.raises(rt.ProgramError, match=message):
        program.run(backend=engine)


def test_what_stands_before_a_wrong_word_is_appended(engine: rt.Engine) -> None:
    with rt.State(engine, sampling=GREEDY) as s:
        with pytest.raises(rt.ProgramError, match="after text without a role"):
            s += "Go" + rt.gen("x") + rt.user("b")
        assert s["x"] == one(engine, "Go", GREEDY).text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rt.gen("x", max_tokens=-1), "max_tokens must be"),
        (lambda: rt.gen("x", temprature=1), "unknown sampling parameter 'temprature'"),
        (lambda: rt.gen("x", int, regex="a"), "regex is given beside the type int"),
        (lambda: rt.gen("x", regex="a", ebnf="b"), "regex and ebnf exclude each other"),
        (lambda: rt.gen("x", object()), "neither a schema nor a type"),
        (lambda: rt.gen("x", choices=[]), "choices must be a list"),
        (lambda: rt.gen("x", n=0), "n must be"),
        (lambda: rt.gen(5), "the name of a gen"),  # type: ignore[arg-type]
        (lambda: rt.select("x", []), "at least one"),
        (lambda: rt.select("x", ["a", "a"]), "the same text twice"),
        (lambda: rt.select("x", ["a"], method="best"), "method must be one of"),  # type: ignore[arg-type]
        (lambda: rt.function(max_tokens=0)(print), "max_tokens"),
    ],
)
def test_wrong_arguments_are_refused_where_they_stand(call: Any, message: str) -> None:
    with pytest.raises(rt.RequestError, match=message):
        call()


def test_what_else_cannot_be_appended_or_decorated(engine: rt.Engine) -> None:
    with pytest.raises(TypeError, match="not 5; write str"):
        rt.user("a") + 5  # type: ignore[operator]
    with pytest.raises(rt.ProgramError, match="'backend'"):
        rt.function(lambda s, backend: None)
    with pytest.raises(rt.ProgramError, match="first argument"):
        rt.function(lambda: None)
    with pytest.raises(TypeError, match=r"qa: missing a required argument: 'question'"):
        qa.run(backend=engine)
    with pytest.raises(rt.ConfigError, match="backend must be an Engine"):
        qa.run(question="a", backend=5)
