"""Regular languages over code points: expressions, their derivatives, ECMA-262 patterns, JSON strings and numbers."""

from radixrt.constrained.regex.algebra import alternate, chars, concat, literal, literals, optional, repeat
from radixrt.constrained.regex.assertions import RegexError
from radixrt.constrained.regex.boolean import complement, intersect
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.regex.derivatives import derive, matches, remainder
from radixrt.constrained.regex.formats import FORMATS
from radixrt.constrained.regex.interning import ANY, ANY_CHAR
from radixrt.constrained.regex.json_text import json_string
from radixrt.constrained.regex.multiples import has_remainder, multiple_of, multiples_between, without_remainders
from radixrt.constrained.regex.nodes import EMPTY, EPSILON, Regex, RegexTooComplex
from radixrt.constrained.regex.numbers import integer_range, number_range
from radixrt.constrained.regex.parse import parse_regex
from radixrt.constrained.regex.product import divide
from radixrt.constrained.regex.search import (
    enumerate_strings,
    is_disjoint,
    is_empty,
    is_subset,
    shortest_length,
    shortest_string,
)
from radixrt.constrained.regex.wire import decode, encode

__all__ = [
    "ANY",
    "ANY_CHAR",
    "EMPTY",
    "EPSILON",
    "FORMATS",
    "CharSet",
    "Regex",
    "RegexError",
    "RegexTooComplex",
    "alternate",
    "chars",
    "complement",
    "concat",
    "decode",
    "derive",
    "divide",
    "encode",
    "enumerate_strings",
    "has_remainder",
    "integer_range",
    "intersect",
    "is_disjoint",
    "is_empty",
    "is_subset",
    "json_string",
    "literal",
    "literals",
    "matches",
    "multiple_of",
    "multiples_between",
    "number_range",
    "optional",
    "parse_regex",
    "remainder",
    "repeat",
    "shortest_length",
    "shortest_string",
    "without_remainders",
]
