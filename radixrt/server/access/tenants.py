"""Tenants: the clients that API keys tell apart, kept out of each other's cache and requests, and within their limits.

Each API key is one tenant. A tenant's requests carry its name in all names that the engine knows: the namespace of the
radix cache and the ids of programs. The ids of requests are made by the server (`RequestContext.rid`). So no client can
read from, extend, release or abort what is another's, whatever its requests contain.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from radixrt.errors import RequestError
from radixrt.messages.client import ClientRequest, RequestOutput
from radixrt.messages.request import Envelope


@dataclass(frozen=True, slots=True)
class Tenant:
    """The client that an API key stands for.

    Attributes:
        name: name of the key, never the key itself; "" if the server has no keys.
        is_admin: may use the routes of operators.
        cache_group: tenants of one group share the radix cache; None for a tenant alone.
        max_requests: requests of the engine that may be open at a time; None for any number.
        tokens_per_minute: prompt and output tokens, on average; None for any number.
        tokens_per_day: prompt and output tokens of a day of UTC; None for any number.
        weight: share of the engine while requests of several tenants wait, in relation to the other tenants.
    """

    name: str
    is_admin: bool = False
    cache_group: str | None = None
    max_requests: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    weight: float = 1.0

    @property
    def is_limited(self) -> bool:
        """True if the tenant has any limit."""
        return any(limit is not None for limit in (self.max_requests, self.tokens_per_minute, self.tokens_per_day))

    def namespace(self, salt: str) -> str:
        """Return the namespace of the radix cache for a client's `cache_salt`, the same in every process and run.

        No two pairs of a tenant, or a group, and a salt have the same namespace: the length before the name ends it,
        and the letter tells groups from tenants.
        """
        if self == EVERYONE:
            return salt
        if self.cache_group is not None:
            return f"g{len(self.cache_group)}:{self.cache_group}{salt}"
        return f"k{len(self.name)}:{self.name}{salt}"

    def program(self, program: str) -> str:
        """Return the engine's id of a client's program."""
        return program if self == EVERYONE else f"{len(self.name)}:{self.name}{program}"

    def own(self, request: ClientRequest, rid: str, address: str = "") -> ClientRequest:
        """Return the request with the id `rid`, the tenant's name, and its names in the tenant's namespaces.

        Args:
            address: of the client, which tells clients without a key apart.
        """
        given = request.envelope
        hint = given.program
        if hint is not None:
            hint = msgspec.structs.replace(hint, program=self.program(hint.program))
        own = Envelope(
            rid,
            given.priority,
            self.namespace(given.cache_salt),
            given.timeout_s,
            hint,
            self.name,
            self.weight,
            self.name or address,
        )
        return msgspec.structs.replace(request, envelope=own)


EVERYONE = Tenant("", is_admin=True)
"""The one tenant of a server without keys."""

NOBODY = Tenant("-")
"""The client of a request without a valid key, on a server that has keys."""


DAY_S = 86_400

RATE_LIMIT_PARTS = ("limit", "remaining", "reset")
RATE_LIMIT_HEADERS = tuple(
    f"x-ratelimit-{part}-{name}" for name in ("requests", "tokens", "tokens-day") for part in RATE_LIMIT_PARTS
)
"""Names of the headers that tell a client its limits."""

OPEN_WAIT_S = 1.0
"""Delay that a client is asked for while all of its requests are open: nobody knows when one of them will end."""


class TokenBucket:
    """Tokens that a tenant may still use: a minute's worth at first and at most, refilled at the rate of its limit.

    Tokens are taken when they are known, at the end of a request, so that the bucket can be overdrawn by what is open;
    nothing is admitted then until it is refilled.
    """

    def __init__(self, now: float) -> None:
        self._used = 0.0
        self._since = now

    def take(self, tokens: int, per_minute: int, now: float) -> None:
        self._used = self.used(per_minute, now) + tokens
        self._since = now

    def wait_s(self, per_minute: int, now: float) -> float:
        """Return the seconds until the bucket holds a token; 0 if it does."""
        return max(0.0, self.used(per_minute, now) + 1 - per_minute) * 60 / per_minute

    def used(self, per_minute: int, now: float) -> float:
        """Return the tokens that are used and not yet refilled."""
        return max(0.0, self._used - (now - self._since) * per_minute / 60)


class DayCount:
    """Tokens that a tenant has used on the present day of UTC, since the server started.

    A clock that is set back keeps the count: a day only begins once.
    """

    def __init__(self, now: float) -> None:
        self._day = int(now // DAY_S)
        self._used = 0

    def take(self, tokens: int, now: float) -> None:
        self._used = self.used(now) + tokens

    def used(self, now: float) -> int:
        """Return the tokens that were used on the day of `now`, in seconds of UTC."""
        day = int(now // DAY_S)
        if day > self._day:
            self._day, self._used = day, 0
        return self._used

    def left_s(self, now: float) -> float:
        """Return the seconds until the day ends."""
        return (self._day + 1) * DAY_S - now


class Account:
    """Use of the server by one tenant. Only the server's event loop reads and writes it.

    Attributes:
        in_flight: requests of the engine that are open.
        ended: requests of the engine that have ended.
        prompt_tokens, cached_tokens, output_tokens: tokens of these; the prompt of n completions counts once.
        refused: HTTP requests that were refused, by limit.
    """

    def __init__(self, clock: Callable[[], float], utc: Callable[[], float]) -> None:
        self._clock = clock
        self._utc = utc
        self._bucket = TokenBucket(clock())
        self._day = DayCount(utc())
        self.in_flight = 0
        self.ended = 0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.output_tokens = 0
        self.refused = {"requests": 0, "tokens": 0, "tokens_day": 0}

    def admit(self, tenant: Tenant, count: int) -> None:
        """Count `count` requests as open. Each must end with `end` or `withdraw`.

        Raises:
            RequestError: 429, a limit of the tenant is reached; 400, `count` alone is over it.
        """
        most = tenant.max_requests
        if most is not None and count > most:
            raise RequestError(
                f"this request asks for {count} completions; the API key {tenant.name!r} allows {most} at a time",
                code="key_limit",
            )
        if most is not None and self.in_flight + count > most:
            raise self._refusal("requests", tenant, f"{most} open requests at a time", OPEN_WAIT_S)
        if tenant.tokens_per_minute is not None:
            wait_s = self._bucket.wait_s(tenant.tokens_per_minute, self._clock())
            if wait_s > 0:
                raise self._refusal("tokens", tenant, f"{tenant.tokens_per_minute} tokens a minute", wait_s)
        if tenant.tokens_per_day is not None and self._day.used(self._utc()) >= tenant.tokens_per_day:
            limit = f"{tenant.tokens_per_day} tokens a day, which begins at 00:00 UTC"
            raise self._refusal("tokens_day", tenant, limit, self._day.left_s(self._utc()))
        self.in_flight += count

    def _refusal(self, limit: str, tenant: Tenant, allowed: str, wait_s: float) -> RequestError:
        self.refused[limit] += 1
        seconds = max(1, math.ceil(wait_s))
        message = f"the API key {tenant.name!r} allows {allowed}; try again in {seconds} s"
        return RequestError(message, code="rate_limit_exceeded", status=429, retry_after_s=wait_s)

    def headers(self, tenant: Tenant) -> list[tuple[bytes, bytes]]:
        """Return the headers of a response that tell a client its limits, with OpenAI's names.

        Each limit has a number, what remains of it now, and the time until all of it remains, in seconds ("12s").
        """
        limits: list[tuple[str, int, float, float]] = []
        if tenant.max_requests is not None:
            wait_s = OPEN_WAIT_S if self.in_flight else 0.0
            limits.append(("requests", tenant.max_requests, self.in_flight, wait_s))
        if tenant.tokens_per_minute is not None:
            used = self._bucket.used(tenant.tokens_per_minute, self._clock())
            limits.append(("tokens", tenant.tokens_per_minute, used, 60 * used / tenant.tokens_per_minute))
        if tenant.tokens_per_day is not None:
            day = self._day.used(self._utc())
            limits.append(("tokens-day", tenant.tokens_per_day, day, self._day.left_s(self._utc()) if day else 0.0))
        made = []
        for name, limit, used, wait_s in limits:
            values = (f"{limit}", f"{max(0, math.floor(limit - used))}", f"{math.ceil(wait_s)}s")
            for part, value in zip(RATE_LIMIT_PARTS, values, strict=True):
                made.append((f"x-ratelimit-{part}-{name}".encode(), value.encode()))
        return made

    def withdraw(self, count: int) -> None:
        """End requests that were admitted and not sent."""
        self.in_flight -= count

    def end(self, tenant: Tenant, last: RequestOutput, *, counts_prompt: bool) -> None:
        """End a request.

        Args:
            last: its last output, which carries its usage unless nothing was computed.
            counts_prompt: False for a completion whose prompt another one has counted.
        """
        self.in_flight -= 1
        self.ended += 1
        if last.usage is None:
            return
        prompt = last.usage.prompt_tokens if counts_prompt else 0
        self.prompt_tokens += prompt
        self.cached_tokens += last.usage.cached_tokens if counts_prompt else 0
        self.output_tokens += last.usage.completion_tokens
        tokens = prompt + last.usage.completion_tokens
        if tenant.tokens_per_minute is not None:
            self._bucket.take(tokens, tenant.tokens_per_minute, self._clock())
        if tenant.tokens_per_day is not None:
            self._day.take(tokens, self._utc())


class Accounts:
    """The accounts of one server, by tenants' names, which are few: those of its keys."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, utc: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._utc = utc
        self.by_name: dict[str, Account] = {}

    def of(self, tenant: Tenant) -> Account:
        account = self.by_name.get(tenant.name)
        if account is None:
            account = self.by_name[tenant.name] = Account(self._clock, self._utc)
        return account
