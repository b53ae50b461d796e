"""Scheduler end of tenants: requests of several API keys take turns in the queue, so that no key starves another.

Without the part, a request waits for all requests before it, whoever sent them. `Tenants` keeps the service that each
tenant has received, in tokens divided by the tenant's weight, and admission always continues with the waiting tenant
that has received the least service: the virtual token counter of Sheng et al. (Fairness in Serving Large Language
Models, OSDI 2024). Within a tenant, requests have the order of the schedule policy, priorities included. Requests
without a tenant, which the server itself sends, come first.

- Prompt tokens count when a request is admitted, output tokens when the request ends.
- A tenant without open requests saves nothing: when the tenant comes back, it continues at the least service of the
  tenants that were served meanwhile.
- If all rows are taken, a tenant that has fewer rows than its share gets one from the tenant with the most rows above
  its share (`Tenants.gives_way`): the latest request of that tenant goes back to the queue. The computed tokens of the
  request stay in the cache, so little is computed again.
- A tenant with no more open requests than its share of the rows is *light*. While it has open requests, the prompts of
  other tenants are limited so that a step takes at most 1 / share times as long as with the work of the light tenant
  alone: a light tenant is served as by an engine of its share's speed.

The moments of each step are off unless requests of two tenants are open, so a server with one key or none pays nothing.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator

from radixrt.messages.request import Request, Row
from radixrt.scheduler.part import Core, End, Part
from radixrt.scheduler.queue_order import Order, Turns
from radixrt.scheduler.req import Req, ReqState

OUTPUT_COST = 2.0
"""Service that an output token counts, in prompt tokens, as in the paper."""
STEP_SHARE = 0.8
"""Part of the time that a light tenant's share leaves for its steps; the rest is for steps that were in flight when its
request arrived."""
MIN_TOKENS = 16
"""Number of prompt tokens of other tenants for which each step has time, whatever a light tenant has a right to."""
MIN_STEPS = 8
"""Number of steps with prompts, and without, that the model of step times needs."""


class _Share:
    """Service of a tenant, of which there is one for each API key.

    Attributes:
        weight: share of the tenant in relation to others.
        served: prompt tokens that the tenant has received, or their equivalent, divided by the weight.
        open: number of open requests, rows of groups included.
    """

    def __init__(self, served: float) -> None:
        self.weight = 1.0
        self.served = served
        self.open = 0


class Tenants(Part):
    """See the module's docstring."""

    name = "tenants"

    def __init__(self) -> None:
        self._shares: dict[str, _Share] = {}
        self._least = 0.0  # service of the tenant that was admitted last, before that admission
        self._num_open = 0  # tenants with open requests
        self._offered: set[Req] = set()  # waiting requests for which a row has been taken from another tenant
        self._receiver = ""  # tenant for which a row was taken while the step is decided

    def attach(self, core: Core) -> None:
        self._requests = core.requests
        self._parts = core.scheduler.parts
        self._kv = core.kv
        self._step_time = core.step_time
        self._max_rows = core.admission.max_active
        self._watch_steps()

    def _watch_steps(self) -> None:
        """Let steps ask the part while requests of several tenants are open."""
        self._parts.enable(self, ("turns", "gives_way"), on=self._num_open > 1)

    # --- service ---

    def queued(self, req: Req, row: Row, message: Request, now: float) -> None:
        if not req.tenant:
            return
        share = self._shares.get(req.tenant)
        if share is None:
            share = self._shares[req.tenant] = _Share(self._least)
        share.weight = message.envelope.weight
        share.open += 1
        if share.open == 1:
            share.served = max(share.served, self._least)
            self._num_open += 1
            self._watch_steps()

    def admitted(self, req: Req, prompt_tokens: int, cached_tokens: int, *, again: bool) -> None:
        if not req.tenant:
            return
        self._offered.discard(req)
        share = self._shares[req.tenant]
        self._least = max(self._least, share.served)
        share.served += (prompt_tokens - cached_tokens) / share.weight

    def ended(self, end: End) -> None:
        req = end.req
        if req is None or not req.tenant:
            return
        self._offered.discard(req)
        share = self._shares[req.tenant]
        share.served += OUTPUT_COST * req.num_output / share.weight
        share.open -= 1
        if not share.open:
            self._num_open -= 1
            self._watch_steps()

    # --- steps ---

    def turns(self, tokens: int) -> Turns:
        light = self._light()
        return _Turns(self._shares, light, self._tokens_of_heavy(light, tokens), self._receiver)

    def gives_way(self, *, at_once: bool) -> Req | None:
        requests, self._receiver = self._requests, ""
        if len(requests.active) < self._max_rows:
            return None
        # Rows above the share of each tenant. A tenant receives a row only if it then has no more than its share, and
        # gives one only if it has more, so no row goes back and forth.
        rows = Counter(req.tenant for req in requests.active)
        excess = {tenant: rows[tenant] - share for tenant, share in self._row_shares().items()}
        short = {tenant for tenant, above in excess.items() if above <= -1.0}
        giver = max(excess, key=excess.__getitem__)
        if not short or excess[giver] <= 0.0:
            return None
        receiver = next((req for req in requests.waiting if req.tenant in short and req not in self._offered), None)
        giving = [req for req in requests.active if req.tenant == giver and req.state is ReqState.RUNNING]
        if receiver is None or not giving:
            return None
        # A request gets a row in this way once: if something else keeps it waiting, nobody loses more rows for it.
        if at_once:
            self._offered.add(receiver)
            self._receiver = receiver.tenant
        return max(giving, key=lambda req: (-req.priority, req.seq))

    def _light(self) -> set[str]:
        """Return the tenants with open requests that ask for no more rows than their share."""
        rows = self._row_shares()
        return {tenant for tenant, share in rows.items() if self._shares[tenant].open <= share}

    def _row_shares(self) -> dict[str, float]:
        """Return the number of rows that each tenant with open requests may have while all rows are taken."""
        weights = {tenant: share.weight for tenant, share in self._shares.items() if share.open}
        whole = sum(weights.values())
        return {tenant: max(weight / whole * self._max_rows, 1.0) for tenant, weight in weights.items()}

    def _tokens_of_heavy(self, light: set[str], tokens: int) -> int:
        """Return the number of prompt tokens that heavy tenants may have in a step of `tokens` prompt tokens.

        A light tenant has a right to its share of the engine. So its requests may take 1 / share times as long as with
        the engine for itself, and STEP_SHARE of that is spent in its steps.
        """
        times = self._step_time.times
        if not light or times.decode_steps < MIN_STEPS or times.extend_steps < MIN_STEPS:
            return tokens
        rows: Counter[str] = Counter()
        context: Counter[str] = Counter()
        prompts: Counter[str] = Counter()
        for req in self._requests.active:
            if req.state is ReqState.RUNNING:
                rows[req.tenant] += 1
                context[req.tenant] += req.known_len
            elif req.tenant in light:
                prompts[req.tenant] += req.known_len - self._kv.computed_len(req)
        for req in self._requests.waiting:
            if req.tenant in light:
                prompts[req.tenant] += req.known_len
        whole = sum(share.weight for share in self._shares.values() if share.open)
        own_tokens = min(sum(prompts.values()), tokens)
        longest = STEP_SHARE * min(
            whole
            / self._shares[tenant].weight
            * times.seconds(rows[tenant], context[tenant], min(prompts[tenant], tokens))
            for tenant in light
        )
        left = longest - times.seconds(rows.total(), context.total(), own_tokens)
        fitting = max(int(left / times.token), MIN_TOKENS)
        return min(fitting, tokens - min(own_tokens, tokens // 2))


class _Turns:
    """Turns of the tenants in one step.

    Args:
        shares: service of the tenants so far.
        light: tenants whose prompts are not limited.
        tokens: number of prompt tokens of all other tenants together.
        receiver: tenant whose turn it is, because another one gave a row to it; "" for the one with the least service.
    """

    def __init__(self, shares: dict[str, _Share], light: set[str], tokens: int, receiver: str) -> None:
        self._shares = shares
        self._light = light
        self._tokens = tokens
        self._receiver = receiver

    def tokens_left(self, req: Req) -> int | None:
        return None if self._is_free(req.tenant) else self._tokens

    def spend(self, req: Req, tokens: int) -> None:
        if not self._is_free(req.tenant):
            self._tokens -= tokens

    def order(self, waiting: list[Req], arrange: Callable[[list[Req]], list[Req]]) -> Order:
        return _Order(self._queues(waiting, arrange), self)

    def play(self, waiting: list[Req], arrange: Callable[[list[Req]], list[Req]]) -> Iterator[Req]:
        queues, played = self._queues(waiting, arrange), dict.fromkeys(self._shares, 0.0)

        def served(tenant: str) -> float:
            return self._shares[tenant].served + played[tenant] if tenant else -1.0

        while queues:
            tenant = min(queues, key=served)
            req = queues[tenant].popleft()
            if not queues[tenant]:
                del queues[tenant]
            if tenant:
                cost = req.known_len + OUTPUT_COST * max(req.remaining, 0)
                played[tenant] += cost / self._shares[tenant].weight
            yield req

    def served(self, tenant: str) -> float:
        """Return the service by which tenants take turns; the server itself comes first."""
        if not tenant:
            return -2.0
        return -1.0 if tenant == self._receiver else self._shares[tenant].served

    def has_turn(self, tenant: str) -> bool:
        """Return True if a request of the tenant may begin in this step."""
        return self._tokens > 0 or self._is_free(tenant)

    def _is_free(self, tenant: str) -> bool:
        return not tenant or tenant in self._light

    @staticmethod
    def _queues(waiting: list[Req], arrange: Callable[[list[Req]], list[Req]]) -> dict[str, deque[Req]]:
        queues: dict[str, list[Req]] = {}
        for req in waiting:
            queues.setdefault(req.tenant, []).append(req)
        return {tenant: deque(arrange(queue)) for tenant, queue in queues.items()}


class _Order:
    """Waiting requests in the order of the tenants' turns. Each admission changes the next turn."""

    def __init__(self, queues: dict[str, deque[Req]], turns: _Turns) -> None:
        self._queues = queues
        self._turns = turns

    def __len__(self) -> int:
        return sum(len(queue) for tenant, queue in self._queues.items() if self._turns.has_turn(tenant))

    def popleft(self) -> Req:
        tenants = [tenant for tenant, queue in self._queues.items() if queue and self._turns.has_turn(tenant)]
        return self._queues[min(tenants, key=self._turns.served)].popleft()

    def appendleft(self, req: Req) -> None:
        self._queues[req.tenant].appendleft(req)
