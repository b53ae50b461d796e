"""The formats of JSON Schema, and those of pydantic's types, as languages of string values.

A string in a language always satisfies its format. The reverse does not hold everywhere: where a format requires more
than a regular language can express (the validity of internationalized labels, lengths over several parts), or lets in
what common parsers do not read (leap seconds, the year 0, quoted local parts of addresses), the language is a part of
the format.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Final

from radixrt.constrained.regex.nodes import Regex
from radixrt.constrained.regex.parse import read_pattern

_LEAP_YEAR: Final = "(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:0[48]|[2468][048]|[13579][26])00)"
_YEAR: Final = "(?:[0-9]{3}[1-9]|[0-9]{2}[1-9]0|[0-9][1-9]00|[1-9]000)"
_DATE: Final = (
    f"(?:{_YEAR}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    f"|02-(?:0[1-9]|1[0-9]|2[0-8]))|{_LEAP_YEAR}-02-29)"
)
_HOUR: Final = "(?:[01][0-9]|2[0-3])"
_TIME: Final = rf"{_HOUR}:[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+-]{_HOUR}:[0-5][0-9])"
_CLOCK: Final = "[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S"
_CALENDAR: Final = "[0-9]+D|[0-9]+M(?:[0-9]+D)?|[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?"
_POINTER: Final = "(?:/(?:[^/~]|~[01])*)*"


def _regular_expression() -> str:
    """Patterns that ECMA-262 and Python read alike: classes, escapes, counts, alternatives, groups two deep."""
    mark = r"(?:[*+?]\??|\{[0-9](?:,|,[1-9][0-9])?\})?"
    escape = r"\\[dDwWsStnrfv.^$*+?()[\]{}|\\/]"
    inside = rf"(?:a-z|A-Z|0-9|[^\x00-\x1f\x7f\\[\]^&|~\-\u2028\u2029]|{escape})"
    atom = rf"(?:[^\x00-\x1f\x7f\\[\](){{}}^$.*+?|/\u2028\u2029]|\.|{escape}|\[\^?{inside}+\])"
    body = rf"(?:{atom}{mark}|[\^$|])*"
    for _ in range(2):
        body = rf"(?:{atom}{mark}|[\^$|]|\((?:\?:)?{body}\){mark})*"
    return body


# --- internet names: RFC 1123 and 5890 (hosts), 5321 and 6531 (mail), 3986 (URI), 3987 (IRI), 6570 (templates) ---

_OCTET: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = rf"{_OCTET}(?:\.{_OCTET}){{3}}"
_HEXADECIMAL: Final = "[0-9A-Fa-f]{1,4}"
_LAST_32_BITS: Final = f"(?:{_HEXADECIMAL}:{_HEXADECIMAL}|{_IPV4})"


def _compressed(groups: int, tail: str) -> str:
    """An address with `::` in it: up to that many groups before, and the tail behind."""
    before = f"(?:(?:{_HEXADECIMAL}:){{0,{groups - 1}}}{_HEXADECIMAL})?" if groups else ""
    return f"{before}::{tail}"


_IPV6: Final = "|".join(
    [
        f"(?:{_HEXADECIMAL}:){{6}}{_LAST_32_BITS}",
        *[_compressed(groups, f"(?:{_HEXADECIMAL}:){{{5 - groups}}}{_LAST_32_BITS}") for groups in range(6)],
        _compressed(6, _HEXADECIMAL),
        _compressed(7, ""),
    ]
)

_LETTER_DIGIT: Final = "[A-Za-z0-9]"


def _label(longest: int) -> str:
    """A label of letters, digits and inner hyphens, without hyphens in both third and fourth position.

    Hyphens in third and fourth position mark an encoded label, whose validity depends on the decoded text.
    """
    inner = f"[A-Za-z0-9-]{{0,{longest - 5}}}"
    rest = f"-{_LETTER_DIGIT}(?:{inner}{_LETTER_DIGIT})?|{_LETTER_DIGIT}(?:[A-Za-z0-9-]?{inner}{_LETTER_DIGIT})?"
    return f"{_LETTER_DIGIT}(?:{_LETTER_DIGIT}|[A-Za-z0-9-](?:{rest}))?"


_PROFILES: Final = ((63, 3), (30, 8), (15, 15))
"""Longest label and most labels, such that a name of 253 characters is never exceeded."""


def _hostname() -> str:
    """Few long labels or many short ones, so that the length of the name needs no counting."""
    return "|".join(rf"{_label(longest)}(?:\.{_label(longest)}){{0,{most - 1}}}" for longest, most in _PROFILES)


def _mail_domain() -> str:
    """A domain of two or more labels, the last one of letters."""
    profiles = ((63, 2), (30, 6), (15, 11))
    return "|".join(rf"(?:{_label(longest)}\.){{1,{most}}}[A-Za-z]{{2,63}}" for longest, most in profiles)


_MAIL_CHARACTERS: Final = r"A-Za-z0-9!#$%&'*+/=?^_`{|}~\-"


def _email() -> str:
    """A dotted local part of at most 64 characters at a domain."""
    char = f"[{_MAIL_CHARACTERS}]"
    return rf"(?:{char}{{1,64}}|{char}(?:\.?{char}){{0,31}})@(?:{_mail_domain()})"


def _idn_email() -> str:
    """An `_email`, or one with a local part of up to 16 characters of any script, or an internationalized domain."""
    char = f"[{_MAIL_CHARACTERS}]"
    wide = rf"[{_MAIL_CHARACTERS}\u0080-\u{{10FFFF}}]"
    local = rf"(?:{char}{{1,64}}|{char}(?:\.?{char}){{0,31}}|{wide}{{1,16}}|{wide}(?:\.?{wide}){{0,7}})"
    label = _wide_label()
    return rf"{local}@(?:{_mail_domain()}|{label}{_WIDE_DOT}{label}(?:{_WIDE_DOT}{label})?)"


@cache
def _label_letters() -> str:
    """Letters that IDNA 2008 takes in any position of a left-to-right label, as the inside of a class.

    They are lower case and stable under compatibility composition; the big East Asian blocks are so as a whole.
    """
    points = [
        point
        for point in range(0xDF, 0x530)
        if unicodedata.category(chr(point)) in ("Ll", "Lo")
        and unicodedata.bidirectional(chr(point)) == "L"
        and unicodedata.normalize("NFKC", chr(point).casefold()) == chr(point)
    ]
    blocks = r"\u3041-\u3096\u30a1-\u30fa\u3400-\u4db5\u4e00-\u9fa5\uac00-\ud7a3"
    return "".join(f"\\u{point:04x}" for point in points) + blocks


def _idn_hostname() -> str:
    """Host names, and names of up to three labels of up to 9 letters and digits of any of those scripts."""
    return rf"{_hostname()}|{_wide_label()}(?:{_WIDE_DOT}{_wide_label()}){{0,2}}"


_WIDE_DOT: Final = r"[.\u3002\uff0e\uff61]"


def _wide_label() -> str:
    """A label of up to 63 ASCII characters or 9 of those letters, whose encoded form has at most 63 too."""
    return f"(?:{_label(63)}|[a-z0-9{_label_letters()}]{{1,9}})"


_PERCENT: Final = "%[0-9A-Fa-f]{2}"
_UNRESERVED: Final = r"A-Za-z0-9\-._~"
_DELIMITERS: Final = r"!$&'()*+,;="
_WIDE: Final = (
    r"\u00a0-\u200d\u2010-\u2029\u202f-\ud7ff\uf900-\ufdcf\ufdf0-\uffef"
    + "".join(rf"\u{{{plane:x}0000}}-\u{{{plane:x}FFFD}}" for plane in range(1, 14))
    + r"\u{E1000}-\u{EFFFD}"
)
"""Characters that are unescaped in an IRI, without marks of writing direction."""
_PRIVATE: Final = r"\ue000-\uf8ff\u{F0000}-\u{FFFFD}\u{100000}-\u{10FFFD}"


def _resource(wide: str, private: str, *, relative: bool) -> str:
    """A URI (nothing wide) or IRI; `relative`: a reference."""
    plain = f"{_UNRESERVED}{_DELIMITERS}{wide}"
    char = f"(?:[{plain}:@]|{_PERCENT})"
    segments = f"(?:/{char}*)*"
    address = rf"\[(?:{_IPV6}|[vV][0-9A-Fa-f]+\.[{_UNRESERVED}{_DELIMITERS}:]+)\]"
    authority = f"(?:(?:[{plain}:]|{_PERCENT})*@)?(?:{address}|(?:[{plain}]|{_PERCENT})*)(?::[0-9]*)?"
    after = rf"(?:\?(?:[{plain}:@/?{private}]|{_PERCENT})*)?(?:#(?:[{plain}:@/?]|{_PERCENT})*)?"
    rooted = f"//{authority}{segments}|/(?:{char}+{segments})?"
    absolute = rf"[A-Za-z][A-Za-z0-9+.\-]*:(?:{rooted}|{char}+{segments})?{after}"
    if not relative:
        return absolute
    return f"{absolute}|(?:{rooted}|(?:[{plain}@]|{_PERCENT})+{segments})?{after}"


def _uri_template() -> str:
    literal = rf"(?:[!#$&'()*+,\-./0-9:;=?@A-Z[\]_a-z~{_WIDE}{_PRIVATE}]|{_PERCENT})"
    char = f"(?:[A-Za-z0-9_]|{_PERCENT})"
    variable = rf"{char}(?:\.?{char})*(?::[1-9][0-9]{{0,3}}|\*)?"
    return rf"(?:{literal}|\{{[+#./;?&]?{variable}(?:,{variable})*\}})*"


_HEX: Final = "[0-9A-Fa-f]"


def _uuid_of(version: int) -> Callable[[], str]:
    return lambda: f"{_HEX}{{8}}-{_HEX}{{4}}-{version}{_HEX}{{3}}-[89ABab]{_HEX}{{3}}-{_HEX}{{12}}"


def _base64(characters: str) -> str:
    char = f"[A-Za-z0-9{characters}]"
    return f"(?:{char}{{4}})*(?:{char}{{2}}==|{char}{{3}}=)?"


_PATTERNS: Final[dict[str, Callable[[], str]]] = {
    "date": lambda: _DATE,
    "time": lambda: _TIME,
    "date-time": lambda: f"{_DATE}[Tt]{_TIME}",
    "duration": lambda: f"P(?:(?:{_CALENDAR})(?:T(?:{_CLOCK}))?|T(?:{_CLOCK})|[0-9]+W)",
    "uuid": lambda: "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "json-pointer": lambda: _POINTER,
    "relative-json-pointer": lambda: f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "regex": _regular_expression,
    "ipv4": lambda: _IPV4,
    "ipv6": lambda: _IPV6,
    "hostname": _hostname,
    "idn-hostname": _idn_hostname,
    "email": _email,
    "idn-email": _idn_email,
    "uri": lambda: _resource("", "", relative=False),
    "uri-reference": lambda: _resource("", "", relative=True),
    "iri": lambda: _resource(_WIDE, _PRIVATE, relative=False),
    "iri-reference": lambda: _resource(_WIDE, _PRIVATE, relative=True),
    "uri-template": _uri_template,
    # What pydantic calls its own types. An address is a network and an interface too.
    **{f"uuid{version}": _uuid_of(version) for version in range(1, 9)},
    **{f"ipv4{what}": lambda: _IPV4 for what in ("network", "interface")},
    **{f"ipv6{what}": lambda: _IPV6 for what in ("network", "interface")},
    **{f"ipvany{what}": lambda: f"{_IPV4}|{_IPV6}" for what in ("address", "network", "interface")},
    "base64": lambda: _base64("+/"),
    "base64url": lambda: _base64("_-"),
}


class _Formats(Mapping[str, Regex]):
    """The language of each format by its name; made when first asked for."""

    def __init__(self) -> None:
        self._made: dict[str, Regex] = {}

    def __getitem__(self, name: str) -> Regex:
        found = self._made.get(name)
        if found is None:
            found = self._made[name] = read_pattern(_PATTERNS[name](), search=False)
        return found

    def __contains__(self, name: object) -> bool:
        return name in _PATTERNS

    def __iter__(self) -> Iterator[str]:
        return iter(_PATTERNS)

    def __len__(self) -> int:
        return len(_PATTERNS)


FORMATS: Final[Mapping[str, Regex]] = _Formats()
