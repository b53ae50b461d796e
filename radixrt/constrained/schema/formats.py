"""What is certainly not of a format.

The language of a format (`regex.FORMATS`) may be a part of what its specification allows: no string of it is ever
wrong. Where a format must *not* hold (`not`, the other options of `oneOf`, an `if` that fails), the opposite is needed:
a language that has every string of the format, of which the complement is taken.
"""

from __future__ import annotations

from functools import cache

from radixrt.constrained.regex import FORMATS, Regex, parse_regex

EXACT = frozenset({"date", "ipv4", "json-pointer", "uuid"})
"""Formats whose language is all of what their specification allows."""

_VISIBLE = r"[^\u0000-\u0020]"
_OFFSET = r"([Zz]|[+-][0-9]{2}:[0-9]{2})"
_CLOCK = rf"[0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]+)?{_OFFSET}"
_WIDE = {
    "date-time": rf"[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[^0-9]{_CLOCK}",
    "duration": r"P[0-9A-Z.,]+",
    "email": r"[^]*@[^]*",
    "hostname": r"[A-Za-z0-9._-]+",
    "idn-email": r"[^]*@[^]*",
    "idn-hostname": rf"{_VISIBLE}+",
    "ipv6": r"[0-9A-Fa-f:.]{2,}",
    "iri": rf"[A-Za-z][A-Za-z0-9+.-]*:{_VISIBLE}*",
    "iri-reference": rf"{_VISIBLE}*",
    "relative-json-pointer": r"[0-9][^]*",
    "time": _CLOCK,
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:[!-~]*",
    "uri-reference": r"[!-~]*",
    "uri-template": rf"{_VISIBLE}*",
}


@cache
def wide_language(name: str) -> Regex | None:
    """A language that has every string of the format, and others; None if none is known."""
    if name in EXACT:
        return FORMATS[name]
    pattern = _WIDE.get(name)
    return None if pattern is None else parse_regex(pattern, search=False)
