"""Users' EBNF: read exactly, refused with line and column, and written again for xgrammar."""

from __future__ import annotations

import random
import time

import pytest

from radixrt.constrained import regex as regular
from radixrt.constrained.backends.lark import to_lark
from radixrt.constrained.backends.xgrammar_backend import to_ebnf
from radixrt.constrained.productions import (
    Alt,
    EmptyLanguage,
    Expr,
    Lit,
    NotExpressible,
    Productions,
    Ref,
    Rep,
    Seq,
    Special,
    Term,
    left_recursion,
)
from radixrt.constrained.productions.ebnf import parse_ebnf
from radixrt.constrained.recognizer import Recognizer
from radixrt.errors import RequestError
from tests.constrained.engines import (
    llguidance_accepts,
    llguidance_language,
    xgrammar_accepts,
    xgrammar_language,
    xgrammar_matcher,
)
from tests.constrained.grammars import language, random_expr, random_productions, random_regex, texts

JSON = r"""
# JSON with spaces, as people write it
root ::= value
value ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws ( string ":" ws value ("," ws string ":" ws value)* )? "}" ws
array ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws ::= "" | " " | "\n" [ \t]{0,20}
"""


def read(grammar: str) -> Productions | RequestError:
    try:
        return parse_ebnf(grammar)
    except RequestError as error:
        return error


def accepted(recognizer: Recognizer, text: str) -> bool:
    state = recognizer.advance(recognizer.start(), text)
    return state is not None and recognizer.is_complete(state)


def sentences(grammar: str, alphabet: str, longest: int) -> set[str]:
    recognizer = Recognizer(parse_ebnf(grammar))
    return {text for text in texts(alphabet, longest) if accepted(recognizer, text)}


def shown(expr: Expr) -> str:
    """An expression as a user would write it."""
    if isinstance(expr, Lit):
        return f'"{expr.text}"'
    if isinstance(expr, Term):
        assert isinstance(expr.regex.alphabet(), regular.CharSet)
        return "[" + "".join(expr.regex.alphabet()) + "]"
    if isinstance(expr, Ref):
        return expr.rule
    if isinstance(expr, Seq):
        return "(" + " ".join(map(shown, expr.parts)) + ")" if expr.parts else '""'
    if isinstance(expr, Alt):
        return "(" + " | ".join(map(shown, expr.options)) + ")"
    assert isinstance(expr, Rep)
    return f"({shown(expr.item)}){{{expr.low},{'' if expr.high is None else expr.high}}}"


def random_ebnf(rng: random.Random) -> tuple[str, Productions]:
    """A text, often left-recursive, and what it means."""
    names = ["root", "a", "b", "c"][: rng.randint(1, 4)]
    rules = {name: random_expr(rng, names, "ab", 3, letters=True) for name in names}
    if rng.random() < 0.6:
        name = rng.choice(names)
        more = random_expr(rng, names, "ab", 1, letters=True)
        rules[name] = Alt((Seq((Ref(rng.choice(names)), more)), rules[name]))
    return "\n".join(f"{name} ::= {shown(body)}" for name, body in rules.items()), Productions(rules, "root")


def test_four_readings_of_random_grammars_agree() -> None:
    pytest.importorskip("llguidance")
    checked = 0
    for seed in range(250):
        text, meaning = random_ebnf(random.Random(seed))
        expected = language(meaning, "ab", 6)
        productions = read(text)
        if isinstance(productions, RequestError):
            assert productions.code == "empty_language", text
            assert not expected, text
            continue
        productions.validate()
        checked += 1
        assert language(productions, "ab", 6) == expected, text
        recognizer = Recognizer(productions)
        assert {one for one in texts("ab", 6) if accepted(recognizer, one)} == expected, text
        assert llguidance_language(to_lark(productions, {}), "ab", 6) == expected, text
        try:
            assert xgrammar_language(to_ebnf(productions), "ab", 6) == expected, text
        except NotExpressible:
            continue
    assert checked > 150


def test_random_productions_keep_their_language_in_xgrammar() -> None:
    for seed in range(500):
        productions = random_productions(random.Random(seed))
        assert xgrammar_language(to_ebnf(productions), "ab", 6) == language(productions, "ab", 6), seed


def test_random_terminals_keep_their_language_in_xgrammar() -> None:
    for seed in range(600):
        try:
            productions = Productions({"start": Term(random_regex(random.Random(seed), "ab", 4))}).prune()
        except EmptyLanguage:
            continue
        assert xgrammar_language(to_ebnf(productions), "ab", 5) == language(productions, "ab", 5), seed


def test_a_grammar_of_json() -> None:
    productions = parse_ebnf(JSON)
    recognizer = Recognizer(productions)
    lark, ebnf = to_lark(productions, {}), to_ebnf(productions)
    right = ('{"a": [1, -2.5e+7, "x\\u00e9\\n", {}], "é😀": null}', "[]", "true ", "[\n\t\t1]")
    wrong = ('{"a" 1}', "[1,]", '"\x7f"', "truer", '"\\x"', "[1 2]", "-", '{"a":}')
    for text in (*right, *wrong):
        assert accepted(recognizer, text) == (text in right), text
        assert llguidance_accepts(lark, text) == (text in right), text
        assert xgrammar_accepts(ebnf, text) == (text in right), text


@pytest.mark.parametrize(
    ("grammar", "expected"),
    [
        ('root ::= "a" | "b"', {"a", "b"}),
        ('root ::= ("a" | ) "b"', {"ab", "b"}),
        ('root ::= | "b"', {"", "b"}),
        ('root ::= "a"? "b"{2}', {"abb", "bb"}),
        ('root ::= "ab"{0,1} "b"{1,2}', {"b", "bb", "abb", "abbb"}),
        ("root ::= [ab]{,1}", {"", "a", "b"}),
        ('root ::= "" ""', {""}),
        ('root ::= x\nx ::= # a comment "\n  "a"\n  | "b" # another', {"a", "b"}),
        ('x::="a"\nroot::=x x', {"aa"}),
        ('root ::= [^b] "\\x61" [a-a]', {"aaa"}),
        ('root ::= "a"root|"b"{3}', {"bbb", "abbb"}),
        ('my-rule.2 ::= "b"\nroot ::= my-rule.2', {"b"}),
        ('root ::= root2 root2\nroot2 ::= "a" "b"', {"abab"}),
    ],
)
def test_notation(grammar: str, expected: set[str]) -> None:
    assert sentences(grammar, "ab", 4) == expected


def test_left_recursion_is_rewritten() -> None:
    grammar = 'root ::= e\ne ::= e "+" t | t\nt ::= t "*" f | f\nf ::= "(" e ")" | "x"'
    productions = parse_ebnf(grammar)
    assert not left_recursion(productions)
    recognizer = Recognizer(productions)
    assert accepted(recognizer, "x+x*(x+x)*x")
    assert not accepted(recognizer, "x+*x")
    assert sentences('root ::= a "b" | "a"\na ::= b "a" | ""\nb ::= root | a', "ab", 3) == sentences(
        'root ::= "a" | r "b"\nr ::= "" | (r | "a" | r "b") "a"', "ab", 3
    )
    assert sentences('root ::= root root | "ab" | ""', "ab", 6) == {"", "ab", "abab", "ababab"}
    assert sentences('root ::= ws root "b" | "b"\nws ::= "a"*', "ab", 3) == {"b", "bb", "bbb", "abb"}
    assert sentences("root ::= root | [ab]", "ab", 2) == {"a", "b"}


def test_right_recursion_becomes_repetition() -> None:
    productions = parse_ebnf('root ::= "<" s\ns ::= ">" | [^>\\\\] s | "\\\\" [a-z] s')
    assert accepted(Recognizer(productions), "<" + "ab\\c" * 5000 + ">")
    lark = to_lark(productions, {})
    assert "s" not in lark.split("start:")[0]
    assert llguidance_accepts(lark, "<" + "ab\\c" * 1500 + ">")  # a rule that calls itself last ends at 2000


def test_escapes() -> None:
    recognizer = Recognizer(parse_ebnf(r'root ::= "\n\t\r\"\\\x41\u00e9\U0001F600\ud83d\ude00" [\]\-\\^\x00é-ü] "\0"'))
    for char in "]-\\^\0éü":
        assert accepted(recognizer, '\n\t\r"\\Aé😀😀' + char + "\0"), char
    assert not accepted(recognizer, '\n\t\r"\\Aé😀😀a\0')


def test_any_character_and_classes() -> None:
    recognizer = Recognizer(parse_ebnf("root ::= . [^a] [a^-]"))
    for text in ("\n\n-", "😀\0^", "aba"):
        assert accepted(recognizer, text), text
    for text in ("aaa", "ab", "abb"):
        assert not accepted(recognizer, text), text


@pytest.mark.parametrize(
    ("grammar", "line", "column", "message"),
    [
        ('root ::= "a" b', 1, 14, "the rule 'b' is not defined"),
        ('x ::= "a"', 1, 1, "no rule named 'root'"),
        ("", 1, 1, "no rule named 'root'"),
        ('root ::= "a"\nroot ::= "b"', 2, 1, "defined twice"),
        ('root ::= "a" ("b" | \n  ("c" "d")', 1, 14, "never closed"),
        ('root ::= "a")', 1, 13, "no open parenthesis"),
        ('root ::= "abc', 1, 10, "string is not closed"),
        ('root ::= "abc\n"', 1, 10, "string is not closed"),
        ("root ::= [abc", 1, 10, "class is not closed"),
        ("root ::= []", 1, 10, "empty class"),
        ("root ::= [z-a]", 1, 12, "wrong order"),
        ('root ::= "\\q"', 1, 11, "escape \\q is not known"),
        ('root ::= "\\u00g0"', 1, 11, "4 hexadecimal digits"),
        ('root ::= "\\ud800"', 1, 10, "lone surrogate"),
        ("root ::= * [a]", 1, 10, "nothing before * to repeat"),
        ('root ::= "a"{3,2}', 1, 13, "wrong order"),
        ('root ::= "a"{}', 1, 13, "expected a repetition like"),
        ('root ::= "a"{x}', 1, 13, "expected a repetition like"),
        ('root ::= "a"{1,99999999999}', 1, 13, "up to 1000000000 times"),
        ("root ::=", 1, 1, "has no body"),
        ('root ::= "a"\nb ::=\nc ::= "d"', 2, 1, "has no body"),
        ('"a" ::= b', 1, 1, "expected a rule"),
        ('root ::= "a" ::= "b"', 1, 14, "expected the name of a rule"),
        ("root ::= /[a-z]/", 1, 10, "regular expressions"),
        ('root ::= (="a") "a"', 1, 10, "lookahead"),
        ('root ::= "a"i', 1, 10, "ignores case"),
        ("root ::= 'a'", 1, 10, '"\'" has no meaning here'),
        ("root ::= root", 1, 1, "no text satisfies the grammar"),
        ('x ::= "a"\n\n  root ::= "b" root', 3, 3, "goes on forever"),
    ],
)
def test_errors_say_where(grammar: str, line: int, column: int, message: str) -> None:
    with pytest.raises(RequestError) as caught:
        parse_ebnf(grammar)
    assert caught.value.param == "ebnf"
    assert caught.value.status == 400
    assert caught.value.code in ("invalid_ebnf", "empty_language")
    assert caught.value.message.startswith(f"ebnf, line {line}, column {column}: "), caught.value.message
    assert message in caught.value.message


def test_surrogates_in_the_text_itself() -> None:
    with pytest.raises(RequestError, match="line 1, column 11: a lone surrogate"):
        parse_ebnf('root ::= "\ud800"')


HOSTILE = {
    "deep parentheses": "root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000,
    "many marks": 'root ::= "a"' + "*?+" * 50_000,
    "too long": 'root ::= "' + "a" * 200_000 + '"',
    "a long left-recursive circle": "root ::= r0\n"
    + "".join(f'r{i} ::= r{(i + 1) % 200} "a" | r{(i * 7 + 3) % 200} | "b"\n' for i in range(200)),
    "huge counts": "root ::= " + "(" * 40 + '"a"' + "){1,1000000}" * 40,
    "a huge count of a rule": 'root ::= x{1,1000000}\nx ::= "a" y{0,1000000} | "b"\ny ::= "c" x?',
    "doubling rules": "".join(f"r{i} ::= r{i + 1} r{i + 1}\n" for i in range(100)) + 'r100 ::= "a"\nroot ::= r0',
    "many words": "root ::= " + " | ".join(f'"word{i}"' for i in range(10_000)),
    "many rules": "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1} | "b"\n' for i in range(4000)) + 'r4000 ::= "c"',
    "nested stars": "root ::= " + " ".join("([a-z]* | [0-9]*)*" for _ in range(200)),
    "a long comment": "#" * 190_000 + '\nroot ::= "a"',
    "names without end": "root ::= " + "a " * 90_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_are_refused_or_quick(name: str) -> None:
    started = time.process_time()
    productions = read(HOSTILE[name])
    if isinstance(productions, RequestError):
        assert productions.param == "ebnf"
    else:
        for write in (to_ebnf, lambda p: to_lark(p, {})):
            try:
                write(productions)
            except NotExpressible:
                continue
        recognizer = Recognizer(productions)
        recognizer.advance(recognizer.start(), "ab" * 20)
        recognizer.closing_length(recognizer.start())
    assert time.process_time() - started < 200.0  # seconds, where each takes well under one and a bomb hours


def test_xgrammar_gets_a_hoisted_root() -> None:
    """A root that calls itself gives xgrammar masks in which tokens are missing that it then accepts."""
    productions = parse_ebnf('root ::= "ab" | "a" root "b"')
    ebnf = to_ebnf(productions)
    assert ebnf.count("root ") == 1
    assert xgrammar_language(ebnf, "ab", 8) == {"ab", "aabb", "aaabbb", "aaaabbbb"}


def test_xgrammar_names_characters_and_counts() -> None:
    rules: dict[str, Expr] = {"é": Lit("1"), "e 1": Lit("2"), "root": Lit("3"), "7": Rep(Rep(Lit("x"), 0, None), 2, 2)}
    body = Seq((Ref("é"), Ref("e 1"), Ref("root"), Ref("7"), Lit('\0\x7f"\\\n]^-é😀'), Term(regular.ANY_CHAR)))
    ebnf = to_ebnf(Productions({"start": body, **rules}))
    assert xgrammar_accepts(ebnf, '123xx\0\x7f"\\\n]^-é😀\n')
    assert not xgrammar_accepts(ebnf, '123xx\0\x7f"\\\n]^-é')
    counted = to_ebnf(Productions({"start": Rep(Seq((Lit("a"), Rep(Lit("bc"), 1, 3))), 2, 1000)}))
    assert xgrammar_accepts(counted, "abcabcbc")
    assert not xgrammar_accepts(counted, "abc")


def test_what_xgrammar_cannot_be_given() -> None:
    with pytest.raises(NotExpressible, match="control token"):
        to_ebnf(Productions({"start": Special("<call>")}))
    with pytest.raises(NotExpressible, match="at most 1000000"):
        to_ebnf(Productions({"start": Rep(Seq((Lit("a"), Ref("b"))), 0, 10**7), "b": Lit("c")}))
    bounded = regular.json_string(regular.repeat(regular.ANY_CHAR, 0, 5000))
    with pytest.raises(NotExpressible, match="more than 400 states"):
        to_ebnf(Productions({"start": Term(bounded)}))


def test_strings_are_written_as_rules_that_end_in_themselves() -> None:
    """The same language with a star over alternatives takes xgrammar milliseconds for each mask."""
    ebnf = to_ebnf(Productions({"start": Seq((Term(regular.json_string(regular.ANY)), Lit("!")))}))
    assert "*" not in ebnf
    assert xgrammar_accepts(ebnf, '"x\\"é\\u001f"!')
    assert not xgrammar_accepts(ebnf, '"\\x"!')
    assert xgrammar_matcher(ebnf).accept_string('"abc')
