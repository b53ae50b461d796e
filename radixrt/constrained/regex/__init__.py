"""Regular languages over code points: expressions, their derivatives, ECMA-262 patterns, JSON strings and numbers."""

from radixrt.constrained.regex.algebra import alternate, chars, concat, literal, literals, optional, repeat
from radixrt.constrained.regex.base import EMPTY, Regex, RegexTooComplex
from radixrt.constrained.regex.boolean import complement, intersect
from radixrt.constrained.regex.charset import CharSet
from radixrt.constrained.regex.formats import FORMATS
from radixrt.constrained.regex.json_text import json_string
from radixrt.constrained.regex.multiples import multiple_of, remainder
from radixrt.constrained.regex.nodes import ANY, ANY_CHAR, EPSILON
from radixrt.constrained.regex.numbers import integer_range, number_range
from radixrt.constrained.regex.parse import parse_regex
from radixrt.constrained.regex.pattern_tree import RegexError
from radixrt.constrained.regex.rust import to_rust
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
    "encode",
    "integer_range",
    "intersect",
    "json_string",
    "literal",
    "literals",
    "multiple_of",
    "number_range",
    "optional",
    "parse_regex",
    "remainder",
    "repeat",
    "to_rust",
]
