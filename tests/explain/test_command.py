"""`radixrt schema check`: its output for schemas and instances, and its exit code."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from radixrt.cli import main

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
BACK_REFERENCE = {"type": "string", "pattern": r"^(a+)\1$"}


@pytest.fixture
def check(
    tiny_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """Runs the command on the named files, of a folder that its output is shown without; exit code and output."""

    def run(*arguments: str, **files: Any) -> tuple[int, str]:
        for name, content in files.items():
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / name.replace("_", ".")).write_text(text)
        here = [str(tmp_path / word) if (tmp_path / word).is_file() else word for word in arguments]
        model = str(tiny_model("llama"))
        capsys.readouterr()  # writing the model for the first time shows its progress
        code = main(["schema", "check", *here, "--model", model])
        out, err = capsys.readouterr()
        assert err == ""
        return code, out.replace(f"{tmp_path}/", "")

    return run


Check = Callable[..., tuple[int, str]]


def test_a_schema_that_is_enforced(check: Check) -> None:
    code, out = check("s.json", s_json=PERSON)
    assert code == 0
    assert out.startswith("s.json: enforced\n")
    assert 'characters: {"name":"","age":0}' in out
    assert "backend: llguidance" in out


def test_instances_are_checked_by_value(check: Check) -> None:
    code, out = check(
        "s.json", "same.json", "spaces.json", "order.json",
        s_json=PERSON,
        same_json='{"name":"A","age":3}\n',
        spaces_json='{\n  "name": "A",\n  "age": 3\n}',
        order_json='{"age": 3, "name": "A"}',
    )  # fmt: skip
    assert code == 0
    assert "\nsame.json: accepted\n" in out
    assert "\nspaces.json: accepted; it would be written without these spaces and escapes\n" in out
    assert "\norder.json: accepted; it would be written with its keys in the order of the schema" in out


@pytest.mark.parametrize(
    ("instance", "said"),
    [
        ('{"name": "A", "age": -3}', "i.json: refused. At /age: -3 is less than the minimum of 0"),
        ('{"name": "A"}', "i.json: refused. At the root: 'age' is a required property"),
        ('{"name": "A", "age": 3, "x": 1}', "i.json: refused. At the root: Additional properties are not allowed"),
        ('{"name": ', "i.json: not JSON"),
    ],
)
def test_an_instance_that_is_not_allowed(check: Check, instance: str, said: str) -> None:
    code, out = check("s.json", "i.json", s_json=PERSON, i_json=instance)
    assert code == 1
    assert said in out


def test_refused_keywords_are_named_with_file_and_pointer(check: Check) -> None:
    schema = {"properties": {"a": BACK_REFERENCE, "b": {"items": BACK_REFERENCE}}}
    code, out = check("s.json", s_json=schema)
    assert code == 1
    refused, *places = out.splitlines()
    first, second = sorted(places)
    assert refused == "s.json: refused"
    assert first.startswith("s.json#/properties/a: pattern: ")
    assert second.startswith("s.json#/properties/b/items: pattern: ")
    code, out = check("s.json", "--on-unsupported", "ignore")
    assert code == 0
    assert "ignored, as asked for:" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [('{"type": ', "s.json: refused. json_schema is not JSON"), ('{"type": "objekt"}', "'/type'"), ("[]", "schema")],
)
def test_what_is_no_schema(check: Check, text: str, said: str) -> None:
    code, out = check("s.json", s_json=text)
    assert code == 1
    assert out.startswith("s.json: refused. ")
    assert said in out


def test_a_schema_from_standard_input(check: Check, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(PERSON)))
    code, out = check("-")
    assert code == 0
    assert out.startswith("-: enforced")


def test_regular_expressions_and_texts(check: Check) -> None:
    code, out = check("--regex", "[a-z]+-[0-9]{2}", "good.txt", good_txt="ab-12\n")
    assert code == 0
    assert out.startswith("the regular expression: enforced\n")
    assert out.endswith("\ngood.txt: accepted\n")
    code, out = check("--regex", "[a-z]+-[0-9]{2}", "bad.txt", bad_txt="ab-1x")
    assert code == 1
    assert "bad.txt: position 4, after 'ab-1': 'x' cannot stand there; possible: 0 1 2 3 4 5 6 7 8 9" in out
    assert check("--regex", "(a")[0] == 1


def test_grammars_and_texts(check: Check) -> None:
    code, out = check("--ebnf", "g.ebnf", "t.txt", g_ebnf='root ::= "a" root | "b"', t_txt="aab")
    assert code == 0
    assert out.startswith("g.ebnf: enforced\n")
    assert "t.txt: accepted" in out


# --- many ---


def test_many_schemas_make_a_table_with_totals(check: Check) -> None:
    lines = [
        {"id": "fine", "schema": PERSON, "tests": [
            {"data": {"name": "A", "age": 3}, "valid": True},
            {"data": {"age": 3, "name": "A"}, "valid": True},
            {"data": {"age": 3}, "valid": False},
        ]},
        {"type": "string"},
        True,
    ]  # fmt: skip
    code, out = check("--jsonl", "m.jsonl", m_jsonl="\n\n".join(map(json.dumps, lines)))
    assert code == 0
    header, *rows = out.splitlines()
    assert header.split() == ["schema", "backend", "min", "tokens", "compile", "ms", "tests", "notes"]
    assert rows[0].startswith("fine ")
    assert "3/3" in rows[0]
    assert rows[0].endswith("1 written in another way")
    assert rows[1].startswith("line 3 ")
    assert rows[2].startswith("line 5 ")
    assert rows[-2] == "3 schemas: 3 enforced, 0 refused"
    assert rows[-1] == (
        "3 instances: 3 judged as labelled, 0 valid refused, 0 invalid accepted, 1 accepted but written in another way"
    )


def test_what_is_wrong_among_many_makes_the_exit_code(check: Check) -> None:
    lines = [
        {"schema": BACK_REFERENCE},
        {"schema": PERSON, "tests": [{"data": {}, "valid": True}, {"data": {"name": "A", "age": 3}, "valid": False}]},
        {"schema": 5},
    ]
    code, out = check("--jsonl", "m.jsonl", m_jsonl="\n".join(map(json.dumps, lines)))
    assert code == 1
    assert "refused" in out.splitlines()[1]
    assert "#: pattern" in out.splitlines()[1]
    assert "0/2" in out.splitlines()[2]
    assert "1 valid refused, 1 invalid accepted" in out.splitlines()[2]
    assert out.splitlines()[-1] == "refused for: pattern 1"


@pytest.mark.parametrize(
    ("text", "said"), [("{}\n{", "m.jsonl:2 is not JSON"), ('{"schema": {}, "tests": [1]}', '"tests"')]
)
def test_a_file_of_many_that_cannot_be_read(
    tiny_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    file = tmp_path / "m.jsonl"
    file.write_text(text)
    assert main(["schema", "check", "--jsonl", str(file), "--model", str(tiny_model("llama"))]) == 2
    assert said in capsys.readouterr().err
