"""The formats of JSON Schema as languages of string values.

A string in a language always satisfies its format. The reverse does not hold everywhere: where a format says more than
a regular language can (the validity of internationalized labels, lengths over several parts), or lets in what common
parsers do not read (leap seconds, the year 0, quoted local parts of addresses), the language is a part of the format.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from radixrt.constrained.regex import internet
from radixrt.constrained.regex.base import Regex
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


_PATTERNS: Final[dict[str, Callable[[], str]]] = {
    "date": lambda: _DATE,
    "time": lambda: _TIME,
    "date-time": lambda: f"{_DATE}[Tt]{_TIME}",
    "duration": lambda: f"P(?:(?:{_CALENDAR})(?:T(?:{_CLOCK}))?|T(?:{_CLOCK})|[0-9]+W)",
    "uuid": lambda: "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "json-pointer": lambda: _POINTER,
    "relative-json-pointer": lambda: f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "regex": _regular_expression,
    "ipv4": lambda: internet.IPV4,
    "ipv6": lambda: internet.IPV6,
    "hostname": internet.hostname,
    "idn-hostname": internet.idn_hostname,
    "email": internet.email,
    "idn-email": internet.idn_email,
    "uri": internet.uri,
    "uri-reference": internet.uri_reference,
    "iri": internet.iri,
    "iri-reference": internet.iri_reference,
    "uri-template": internet.uri_template,
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
