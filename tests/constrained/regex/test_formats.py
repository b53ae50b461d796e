"""Formats against the official suite where it is there, against parsers of the standard library, and by hand."""

from __future__ import annotations

import ipaddress
import json
import os
import re
import uuid
from collections.abc import Iterator
from datetime import date, datetime, time
from pathlib import Path
from random import Random
from urllib.parse import urlsplit

import pytest

from radixrt.constrained.regex import FORMATS, is_subset, matches
from tests.constrained.regex.languages import walk

_DATA = Path(os.environ.get("RADIXRT_TEST_DATA", Path(__file__).parents[4] / "shared" / "data"))
_SUITE = _DATA / "json_schema_test_suite.jsonl"


def _suite() -> Iterator[tuple[str, str, bool, str]]:
    for line in _SUITE.read_text().splitlines():
        case = json.loads(line)
        if case["file"].startswith("optional/format/") and isinstance(case["data"], str):
            name = case["schema"].get("format")
            if name in FORMATS:
                yield name, case["data"], case["valid"], case["test"]


def test_official_suite() -> None:
    if not _SUITE.exists():
        pytest.skip(f"RADIXRT_TEST_DATA: {_SUITE} is not there")
    valid = taken = 0
    for name, text, expected, title in _suite():
        found = matches(FORMATS[name], text)
        assert expected or not found, f"{name}: {title}"
        valid += expected
        taken += found
    assert taken >= 0.75 * valid


def _random_strings(name: str, count: int = 300) -> Iterator[str]:
    random = Random(name)
    for _ in range(count):
        text = walk(FORMATS[name], random)
        assert text is not None
        assert matches(FORMATS[name], text)
        yield text


def test_times_are_read_by_datetime() -> None:
    for text in _random_strings("date"):
        date.fromisoformat(text)
    for text in _random_strings("time"):
        assert time.fromisoformat(_cut(text)).tzinfo is not None
    for text in _random_strings("date-time"):
        assert datetime.fromisoformat(_cut(text)).tzinfo is not None


def _cut(text: str) -> str:
    """As datetime reads it: at most six fraction digits, upper case."""
    return re.sub(r"(\.\d{6})\d+", r"\1", text.upper())


def test_every_day_of_a_leap_cycle() -> None:
    days = FORMATS["date"]
    for year in (1896, 1900, 2000, 2023, 2024, 2100, 9999):
        for month in range(1, 13):
            for day in range(1, 33):
                text = f"{year:04d}-{month:02d}-{day:02d}"
                try:
                    date(year, month, day)
                except ValueError:
                    assert not matches(days, text)
                else:
                    assert matches(days, text)


def test_addresses() -> None:
    for text in _random_strings("ipv4"):
        ipaddress.IPv4Address(text)
    for text in _random_strings("ipv6", 600):
        ipaddress.IPv6Address(text)
    random = Random(6)
    for _ in range(300):
        address = ipaddress.IPv6Address(random.getrandbits(128) & random.getrandbits(128) & random.getrandbits(128))
        assert matches(FORMATS["ipv6"], str(address))
        assert matches(FORMATS["ipv6"], address.exploded)
    for text in _random_strings("uuid", 20):
        assert str(uuid.UUID(text)) == text.lower()


def test_names_keep_their_lengths() -> None:
    for text in _random_strings("hostname"):
        assert len(text) <= 253
        assert all(0 < len(label) <= 63 for label in text.split("."))
        assert not any(label.startswith("-") or label.endswith("-") or label[2:4] == "--" for label in text.split("."))
    longest = FORMATS["hostname"].max_length
    assert longest is not None
    assert longest <= 253
    assert matches(FORMATS["hostname"], "a" * 63 + ".com")
    assert not matches(FORMATS["hostname"], "a" * 64 + ".com")
    for text in _random_strings("email"):
        local, domain = text.rsplit("@", 1)
        assert len(local) <= 64
        assert matches(FORMATS["hostname"], domain)


def test_international_names_fit_when_encoded() -> None:
    for text in _random_strings("idn-hostname", 600):
        labels = re.split("[.\u3002\uff0e\uff61]", text)
        encoded = [label if label.isascii() else "xn--" + label.encode("punycode").decode() for label in labels]
        assert all(0 < len(label) <= 63 for label in encoded)
        assert len(".".join(encoded)) <= 253
    for text in _random_strings("idn-email"):
        assert len(text.rsplit("@", 1)[0].encode()) <= 64


def test_resources() -> None:
    for name in ("uri", "iri"):
        for text in _random_strings(name):
            assert matches(FORMATS[f"{name}-reference"], text)
            assert urlsplit(text.replace("[v", "[V").split("[V")[0]).scheme
    for text in _random_strings("uri"):
        assert matches(FORMATS["iri"], text)
    assert is_subset(FORMATS["uri"], FORMATS["iri"])
    for text in ("http://a/%4", "http://a b", "//a", "1a:b", "http://[::g]", "http://a:b:c@d:e"):
        assert not matches(FORMATS["uri"], text)
    assert not matches(FORMATS["uri-reference"], "1:b")
    assert matches(FORMATS["uri-reference"], "./1:b")


def test_patterns_are_read_by_re() -> None:
    for text in _random_strings("regex", 500):
        re.compile(text)
    for text in (r"^[a-z]+\d{2,}(foo|bar)*$", "", "a|b", r"^(?:(a|b)+?c)*$", r"[^\]\w]"):
        assert matches(FORMATS["regex"], text), text
    for text in ("(", ")", "[", "*", "a**", r"\a", "(?<n>", "(?i)x", "a{2,1}", "[b-a]", "\\"):
        assert not matches(FORMATS["regex"], text), text


def test_none_needs_an_intersection() -> None:
    assert not any(regex.has_boolean for regex in FORMATS.values())
    assert "email" in FORMATS
    assert "color" not in FORMATS
    assert len(FORMATS) == 36
