"""Types that pydantic has a JSON schema for: every field type with its constraints, alone and in containers."""

from __future__ import annotations

import collections
import dataclasses
import datetime
import decimal
import enum
import ipaddress
import pathlib
import re
import uuid
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import annotated_types as at
from pydantic import (
    UUID1,
    UUID3,
    UUID4,
    UUID5,
    UUID6,
    UUID7,
    UUID8,
    AwareDatetime,
    Base64Bytes,
    Base64Str,
    Base64UrlBytes,
    Base64UrlStr,
    BaseModel,
    ByteSize,
    ConfigDict,
    Field,
    FiniteFloat,
    IPvAnyAddress,
    IPvAnyInterface,
    IPvAnyNetwork,
    Json,
    NaiveDatetime,
    NegativeFloat,
    NonPositiveInt,
    OnErrorOmit,
    PositiveInt,
    RootModel,
    Secret,
    SecretBytes,
    SecretStr,
    SkipValidation,
    StrictBool,
    StrictBytes,
    StrictFloat,
    StrictInt,
    StrictStr,
    StringConstraints,
    Tag,
)
from pydantic.networks import (
    AnyHttpUrl,
    AnyUrl,
    FileUrl,
    FtpUrl,
    HttpUrl,
    KafkaDsn,
    PostgresDsn,
    RedisDsn,
    WebsocketUrl,
)
from typing_extensions import TypedDict


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: float


class Movie(TypedDict, total=False):
    title: str
    year: Annotated[int, Field(ge=1900, le=2100)]


class Node(BaseModel):
    value: int
    children: list[Node] = []


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int


class Dog(BaseModel):
    kind: Literal["dog"]
    name: str


class Closed(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    a: int
    b: str | None = None


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    a: int


class Aliased(BaseModel):
    a: int = Field(alias="the-a")


T = TypeVar("T")


class Box(BaseModel, Generic[T]):
    item: T


class Names(RootModel[list[str]]):
    pass


def _pattern(pattern: str) -> Any:
    return Annotated[str, StringConstraints(pattern=pattern)]


SCALARS: dict[str, Any] = {
    "str": str,
    "str min": Annotated[str, Field(min_length=2)],
    "str max": Annotated[str, Field(max_length=5)],
    "str both": Annotated[str, Field(min_length=1, max_length=3)],
    "bytes": bytes,
    "int": int,
    "float": float,
    "bool": bool,
    "none": None,
    "int gt": Annotated[int, Field(gt=3)],
    "int ge": Annotated[int, Field(ge=3)],
    "int lt": Annotated[int, Field(lt=3)],
    "int range": Annotated[int, Field(ge=0, le=255)],
    "int multiple": Annotated[int, Field(multiple_of=5)],
    "int 997": Annotated[int, Field(multiple_of=997)],
    "int 4096": Annotated[int, Field(multiple_of=4096, ge=0, le=10**7)],
    "int 86400": Annotated[int, Field(multiple_of=86400)],
    "int 123457": Annotated[int, Field(multiple_of=123457)],
    "float gt": Annotated[float, Field(gt=0)],
    "float range": Annotated[float, Field(ge=-1.5, lt=1.5)],
    "float step": Annotated[float, Field(multiple_of=0.5)],
    "float finite": Annotated[float, Field(allow_inf_nan=False)],
    "decimal": decimal.Decimal,
    "decimal bound": Annotated[decimal.Decimal, Field(ge=0, le=1)],
    "decimal digits": Annotated[decimal.Decimal, Field(max_digits=5, decimal_places=2)],
    "date": datetime.date,
    "datetime": datetime.datetime,
    "time": datetime.time,
    "timedelta": datetime.timedelta,
    "aware": AwareDatetime,
    "uuid": uuid.UUID,
    "uuid4": UUID4,
    "ipv4": ipaddress.IPv4Address,
    "ipv6": ipaddress.IPv6Address,
    "network": ipaddress.IPv4Network,
    "ip": IPvAnyAddress,
    "url": AnyUrl,
    "http": HttpUrl,
    "base64": Base64Str,
    "json": Json[int],
    "enum": Color,
    "int enum": Level,
    "literal": Literal["a", 1, None],
    "any": Any,
    "point": Point,
    "movie": Movie,
    "closed": Closed,
    "open": Open,
    "aliased": Aliased,
    "node": Node,
    "box": Box[int],
    "names": Names,
    "len": Annotated[list[int], at.Len(1, 3)],
    "pets": Annotated[Cat | Dog, Field(discriminator="kind")],
}
PATTERNS = {
    "anchored": r"^[a-z]{2,5}$",
    "unanchored": r"\d+",
    "word": r"^\w+$",
    "nonword": r"^\W{2}$",
    "space": r"^\S+\s\S+$",
    "dot": r"^a.b$",
    "boundary": r"\bcat\b",
    "absolute": r"\A[a-z]+\z",
    "class": r"^[^\d\s]+$",
    "negated": r"^\D+$",
    "property": r"^\p{Lu}\p{Ll}+$",
    "script": r"^\p{Script=Greek}+$",
    "posix": r"^[[:alpha:]]+$",
    "operation": r"^[a-z&&[^aeiou]]+$",
    "flag": r"^(?i:abc)$",
    "group": r"^(?P<year>\d{4})-(?:0[1-9]|1[0-2])$",
    "lazy": r"^a+?b$",
}


class Flag(enum.IntFlag):
    A = 1
    B = 2


class Word(enum.StrEnum):
    A = "a"
    B = "b"


@dataclasses.dataclass
class Record:
    a: int
    b: str = "x"


class Typed(BaseModel):
    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]
    a: int


class Deep(BaseModel):
    x: Deep | None = None
    y: list[Deep] = Field(default=[], max_length=2)


class Tree(RootModel[dict[str, "Tree"]]):
    pass


OTHERS: dict[str, Any] = {
    **{f"{kind.__name__}": kind[int] for kind in (collections.deque, Sequence, Iterable)},
    **{f"{kind.__name__}": kind[str, int] for kind in (collections.defaultdict, collections.OrderedDict, Mapping)},
    "Counter": collections.Counter[str],
    "int keys": dict[int, str],
    "float keys": dict[float, str],
    "bool keys": dict[bool, int],
    "uuid keys": dict[uuid.UUID, int],
    "date keys": dict[datetime.date, int],
    "literal keys": dict[Literal["a", "b"], int],
    "flag": Flag,
    "string enum": Word,
    "dataclass": Record,
    "regex": re.Pattern,
    "path": pathlib.Path,
    "secret": SecretStr,
    "secret bytes": SecretBytes,
    "secret int": Secret[int],
    "naive": NaiveDatetime,
    "byte size": ByteSize,
    "uuid1": UUID1,
    "uuid3": UUID3,
    "uuid5": UUID5,
    "uuid6": UUID6,
    "uuid7": UUID7,
    "uuid8": UUID8,
    "strict int": StrictInt,
    "strict str": StrictStr,
    "strict float": StrictFloat,
    "strict bool": StrictBool,
    "strict bytes": StrictBytes,
    "positive": PositiveInt,
    "not positive": NonPositiveInt,
    "negative": NegativeFloat,
    "finite": FiniteFloat,
    **{one.__name__: one for one in (AnyHttpUrl, FileUrl, WebsocketUrl, FtpUrl, PostgresDsn, RedisDsn, KafkaDsn)},
    "IPv6Network": ipaddress.IPv6Network,
    "IPv4Interface": ipaddress.IPv4Interface,
    "IPv6Interface": ipaddress.IPv6Interface,
    "IPvAnyNetwork": IPvAnyNetwork,
    "IPvAnyInterface": IPvAnyInterface,
    "base64 bytes": Base64Bytes,
    "base64url": Base64UrlStr,
    "base64url bytes": Base64UrlBytes,
    "decimal step": Annotated[decimal.Decimal, at.MultipleOf(decimal.Decimal("0.01"))],
    "hashable": Hashable,
    "typed extra": Typed,
    "deep": Deep,
    "tree": Tree,
    "int step": Annotated[int, Field(gt=1, multiple_of=3)],
    "large step": Annotated[int, Field(multiple_of=1_000_003)],
    "step below": Annotated[int, Field(multiple_of=12, ge=-1000)],
    "float large step": Annotated[float, Field(multiple_of=0.037, ge=0, le=100)],
    "bounded bytes": Annotated[bytes, Field(max_length=3)],
    "lower": Annotated[str, StringConstraints(pattern="^a", to_lower=True, max_length=3)],
    "strip": Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)],
    "after a date": Annotated[datetime.date, Field(gt=datetime.date(2020, 1, 1))],
    "longer than a day": Annotated[datetime.timedelta, Field(gt=datetime.timedelta(1))],
    "list of pets": list[Annotated[Cat | Dog, Field(discriminator="kind")]],
    "not validated": SkipValidation[int],
    "omitted": OnErrorOmit[int],
    "many literals": Literal[tuple(f"v{i}" for i in range(300))],
    "sets in a tuple": tuple[set[int], frozenset[str]],
    "three or four members": Annotated[dict[str, int], Field(min_length=3, max_length=4)],
    "long": Annotated[str, Field(max_length=100_000)],
    **{f"any {kind.__name__}": kind for kind in (list, dict, set, tuple)},
    "no items": tuple[()],
}
"""Further types of the standard library and of pydantic, once each. Types that depend on the time or on files, such as
PastDate and FilePath, have no schema that says so."""


def types() -> Iterator[tuple[str, Any]]:
    """Yield (name, type); names are unique."""
    yield from SCALARS.items()
    yield from OTHERS.items()
    for name, pattern in PATTERNS.items():
        yield f"pattern {name}", _pattern(pattern)
    for name in ("str", "str both", "int", "int range", "float", "date", "uuid", "enum", "closed", "literal"):
        inner = SCALARS[name]
        yield f"list of {name}", list[inner]  # type: ignore[valid-type]
        yield f"bounded list of {name}", Annotated[list[inner], Field(min_length=1, max_length=3)]  # type: ignore[valid-type]
        yield f"tuple of {name}", tuple[inner, str]  # type: ignore[valid-type]
        yield f"open tuple of {name}", tuple[inner, ...]  # type: ignore[valid-type]
        yield f"dict of {name}", dict[str, inner]  # type: ignore[valid-type]
        yield f"optional {name}", inner | None
        yield f"union with {name}", inner | list[bool]
        yield f"set of {name}", set[inner]  # type: ignore[valid-type]
    yield "frozenset", frozenset[str]
    yield "set of at least two", Annotated[set[int], Field(min_length=2)]
    yield "dict of enum keys", dict[Color, int]
    yield "dict of patterned keys", dict[Annotated[str, Field(pattern="^x-")], int]
    yield "dict of at least two", Annotated[dict[str, int], Field(min_length=2)]
    yield "dict of at most two", Annotated[dict[str, int], Field(max_length=2)]
    yield "tagged", Annotated[Annotated[Cat, Tag("cat")] | Annotated[Dog, Tag("dog")], Field(discriminator="kind")]
