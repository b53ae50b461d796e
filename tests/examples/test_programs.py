"""The examples of the language, run as a user runs them, on the real small model."""

from __future__ import annotations

import csv
import datetime
import itertools
import json
import re
from pathlib import Path

from tests.examples.helpers import EXAMPLES, run

REUSE = re.compile(r"^ *reuse: (\d+) calls, (\d+) prompt tokens, (\d+) of them from the cache \(\d+%\)$", re.M)


def reuse(printed: str) -> tuple[int, int, int]:
    """Calls, prompt tokens and cached tokens, from the last line."""
    found = REUSE.search(printed.rstrip().rpartition("\n")[2])
    assert found is not None, printed
    calls, prompt, cached = map(int, found.groups())
    assert 0 <= cached <= prompt
    return calls, prompt, cached


def test_multi_turn_chat_in_one_process(tmp_path: Path) -> None:
    """Without --base-url: on an engine of its own."""
    printed = run("multi_turn_chat", cwd=tmp_path)
    assert re.findall("^> (.*)$", printed, re.M) == [
        "What is the capital of Japan?", "What is the capital of Italy?", "And of Egypt?"
    ]  # fmt: skip
    assert "Tokyo" in printed
    turns = re.findall(r"^turn \d: (\d+) prompt tokens, (\d+) of them from the cache$", printed, re.M)
    assert len(turns) == 3
    assert int(turns[0][1]) < int(turns[0][0])
    for (before, _), (_, cached) in itertools.pairwise(turns):
        assert int(cached) >= int(before)  # all of the turn before, and what was answered
    assert reuse(printed)[0] == 3


def test_few_shot_classification_and_resuming_it(tmp_path: Path, server_url: str) -> None:
    output = tmp_path / "labels.jsonl"
    arguments = ("--base-url", server_url, "--output", output)
    printed = run("few_shot_classification", *arguments, cwd=tmp_path)
    assert re.search(r"^\d+ of 12 as labelled; 0 were in ", printed, re.M)
    calls, prompt, cached = reuse(printed)
    assert calls == 12
    assert cached > prompt / 2
    lines = output.read_text().splitlines()
    assert {json.loads(line)["values"]["label"].strip() for line in lines} <= {"billing", "delivery", "technical"}
    output.write_text("\n".join(lines[:5]) + "\n" + lines[5][:20])  # as if it had been stopped while it wrote
    again = run("few_shot_classification", *arguments, cwd=tmp_path)
    assert re.search(r"^\d+ of 12 as labelled; 5 were in ", again, re.M)
    assert again.count("(had it)") == 5
    assert sorted(json.loads(line)["index"] for line in output.read_text().splitlines()) == list(range(12))


def test_tree_of_thought(tmp_path: Path, server_url: str) -> None:
    printed = run("tree_of_thought", "--base-url", server_url, "--depth", 2, cwd=tmp_path)
    first = re.findall(r"^(keep|drop) +([\d.]+)%  step 1: ?(.*)$", printed, re.M)
    second = re.findall(r"^(keep|drop) +([\d.]+)%  step 2: ?(.*)$", printed, re.M)
    for judged, number in ((first, 3), (second, 6)):
        assert [what for what, _, _ in judged] == ["keep"] * 2 + ["drop"] * (number - 2)
        worth = [float(percent) for _, percent, _ in judged]
        assert worth == sorted(worth, reverse=True)
    plan = printed.partition("\n\n")[2]
    assert f"Step 2: {second[0][2]}" in plan  # the best of the last step is what is shown
    assert any(f"Step 1: {text}\n" in plan for what, _, text in first if what == "keep")
    assert reuse(printed)[0] == 18


def test_skeleton_of_thought(tmp_path: Path, server_url: str) -> None:
    printed = run("skeleton_of_thought", "--base-url", server_url, cwd=tmp_path)
    points = printed.partition("\n\nanswer on ")[0].split("\n\n")
    assert len(points) == 3
    assert all(re.match("[A-Z][a-z ]{3,30}: .+", point) for point in points)
    assert "at once on average" in printed
    assert reuse(printed)[0] == 4


def test_self_consistency(tmp_path: Path, server_url: str) -> None:
    printed = run("self_consistency", "--base-url", server_url, "--samples", 5, cwd=tmp_path)
    votes = re.findall(r"^ +(\d+)  (#+)$", printed, re.M)
    assert sum(len(marks) for _, marks in votes) == 5
    found = re.search(r"^answer: (\d+)$", printed, re.M)
    assert found is not None
    assert found.group(1) == max(votes, key=lambda vote: len(vote[1]))[0]
    calls, prompt, cached = reuse(printed)
    assert calls == 10
    assert cached > prompt / 2


def test_branch_solve_merge_and_its_page(tmp_path: Path, server_url: str) -> None:
    printed = run("branch_solve_merge", "--base-url", server_url, "--report", "judge.html", cwd=tmp_path)
    assert printed.startswith("Notes:\n")
    assert re.search(r"^grade: pass \d+%, fail \d+%$", printed, re.M)
    assert re.search(r"^verdict: (\d|10) of 10: .{0,80}$", printed, re.M)
    assert reuse(printed)[0] == 5
    assert (tmp_path / "judge.html").read_text().startswith("<!doctype html>")


def test_react_agent(tmp_path: Path, server_url: str) -> None:
    """Greedy in float32, so this is what the model does; the tools are real."""
    printed = run("react_agent", "--base-url", server_url, cwd=tmp_path)
    assert "Action: lookup Bergen\nResult: Bergen = 292\n" in printed
    assert "Action: calculate Bergen + Oslo\nResult: 1010\n" in printed
    assert "\nanswer: 1010 thousand\n" in printed
    calls, prompt, cached = reuse(printed)
    assert calls > 6
    assert cached > 0.8 * prompt  # each step goes on from the one before


def test_rag_over_a_folder(tmp_path: Path, server_url: str) -> None:
    printed = run("rag_folder", "--base-url", server_url, cwd=tmp_path)
    answered = re.findall(r"^(\S.*\?)\n  (.+)  \[(\w+\.md)\]$", printed, re.M)
    assert len(answered) == 8
    found = {question: (answer, source) for question, answer, source in answered}
    assert found["How much may a hotel cost?"][1] == "expenses.md"
    assert found["On which day are dogs welcome?"][1] == "office.md"
    assert "26 days" in found["How many days of vacation does an employee have?"][0]
    assert reuse(printed)[0] == 8


def test_invoices_to_csv(tmp_path: Path, server_url: str) -> None:
    printed = run("invoices_to_csv", "--base-url", server_url, "--output", "out.csv", cwd=tmp_path)
    with (tmp_path / "out.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["file"] for row in rows] == sorted(path.name for path in (EXAMPLES / "data/invoices").glob("*.txt"))
    for row in rows:
        datetime.date.fromisoformat(row["date"])
        assert float(row["total"]) >= 0
        assert row["currency"] in ("EUR", "GBP", "USD")
        assert re.fullmatch("[A-Z0-9-]{1,10}", row["number"])
    assert rows[0]["seller"] == "Bluebird Catering"
    assert re.search(r"^out.csv: \d+ tokens were written, of which the schema left no choice about \d+$", printed, re.M)
    assert reuse(printed)[0] == 4


def test_three_backends(tmp_path: Path) -> None:
    """It starts its own engine and its own server."""
    printed = run("three_backends", cwd=tmp_path)
    names = re.findall(r"^(engine|Endpoint|OpenAI) .*:$", printed, re.M)
    assert names == ["engine", "Endpoint", "OpenAI"]
    assert "all three say the same" in printed
    assert reuse(printed)[0] == 9


def test_a_model_of_4_bits_takes_less_memory(tmp_path: Path) -> None:
    mebibytes = {}
    for quantization in ("auto", "none"):
        printed = run("laptop_4bit", "--quantization", quantization, cwd=tmp_path)
        assert re.findall(r"^What is the capital of (\w+)\? .*\b(Paris|Tokyo|Rome|Cairo)\b", printed, re.M) == [
            ("France", "Paris"), ("Japan", "Tokyo"), ("Italy", "Rome"), ("Egypt", "Cairo")
        ]  # fmt: skip
        found = re.search(r"^(\d+) MiB in memory, \d+ tokens/s in 4 answers at once$", printed, re.M)
        assert found is not None, printed
        mebibytes[quantization] = int(found[1])
    assert mebibytes["auto"] < mebibytes["none"] - 50
