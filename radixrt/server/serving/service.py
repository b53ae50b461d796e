"""`Service`: the state that all routes share; `BodyBudget`: a bound on the memory of bodies that are being received."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from radixrt.chat.dialect import Dialect
from radixrt.client.engine_client import EngineClient
from radixrt.config import ServerConfig, parse_decision_temperature
from radixrt.errors import RequestError
from radixrt.server.access.tenants import Accounts, Tenant
from radixrt.server.answers.response_store import ResponseStore
from radixrt.server.metrics import Metrics
from radixrt.server.metrics.throughput import Throughput
from radixrt.server.serving.deep_check import DeepCheck
from radixrt.server.serving.large_work import LargeWork
from radixrt.server.serving.request_groups import RequestGroups
from radixrt.server.ui.hub import Hub
from radixrt.vision.fetch import ImageFetcher
from radixrt.vision.limits import MAX_IMAGE_BYTES

if TYPE_CHECKING:
    from radixrt.engine.replica_set import ReplicaSet
    from radixrt.server.metrics.spans import Tracing


logger = logging.getLogger(__name__)

LARGE_BODIES_BYTES = 256 * 1024 * 1024
CLIENTS = 4
"""One client may take this part of the budget."""


class Service:
    """State that all routes share, a part for each subject.

    Attributes:
        created: time at which this server started, in seconds since 1970.
        groups: open groups of requests.
        accounts: what each tenant uses.
        responses: stored responses of /v1/responses.
        background_tasks: tasks that generate background responses.
        throughput: rates of the engine; the server's loop ticks it.
        ui: what the pages of /ui share; the server's loop ticks its samples.
        large_work: decodes and prepares large requests beside the event loop.
        decision_temperature: divides the log-probabilities of answers to questions.
        dialect: the model's support for tools and reasoning.
        replicas: the engine's replicas, if it has a router.
        model_name, model_names: name that answers carry, and all names that requests may have.
    """

    def __init__(
        self, client: EngineClient, config: ServerConfig, model_name: str, dialect: Dialect | None = None,
        tracing: Tracing | None = None, replicas: ReplicaSet | None = None, aliases: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.dialect = dialect or Dialect()
        self.client = client
        self.replicas = replicas
        self.config = config
        self.model_name = model_name
        self.model_names = tuple(dict.fromkeys((model_name, *aliases)))
        self.accounts = Accounts()
        self.responses = ResponseStore(config.max_stored_responses, config.max_stored_response_bytes)
        self.background_tasks: set[asyncio.Task[None]] = set()
        self.decision_temperature = parse_decision_temperature(config.decision_temperature)
        self.throughput = Throughput(client, config.log_stats_interval_s)
        self.metrics = Metrics(client, model_name, self.accounts, self.responses, self.throughput, replicas)
        self.ui = Hub(client)
        self._hubs: dict[int, Hub] = {}
        self.deep_check = DeepCheck(client)
        self.created = int(time.time())
        self.body_budget = BodyBudget(config.max_body_bytes)
        self._has_warned = False
        self.large_work = LargeWork()
        hosts = [host.strip() for host in config.image_hosts.split(",") if host.strip()]
        fetcher = ImageFetcher(hosts, MAX_IMAGE_BYTES)
        self.groups = RequestGroups(client, self.accounts, self.metrics.requests, model_name, tracing, fetcher)

    def hub(self, replica: int | None) -> Hub:
        """State shared by the pages that show the tree of a replica, or, without replicas, that of the engine."""
        if replica is None:
            return self.ui
        if replica not in self._hubs:
            self._hubs[replica] = Hub(self.client, self.ui.samples, replica)
        return self._hubs[replica]

    def untrained_vectors(self, model: str) -> None:
        """Warn, the first time, that embeddings are asked of a model that was not trained to embed."""
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s was not trained to embed: its vectors are last hidden states of a language model", model)

    def release(self, tenant: Tenant, program: str, branch: str | None) -> None:
        """Announce that a tenant's program, or a branch of it, sends no more requests."""
        self.client.release(tenant.program(program), branch)


class BodyBudget:
    """Bounds the memory of all large bodies that arrive or wait to be decoded, and the part of one client in it."""

    def __init__(self, max_body_bytes: int) -> None:
        self._total = max(LARGE_BODIES_BYTES, CLIENTS * max_body_bytes)
        self._held: Counter[str] = Counter()

    def take(self, client: str, size: int) -> None:
        """Account for bytes that have arrived; raises RequestError (503) if they are too many."""
        if self._held[client] + size > self._total // CLIENTS or self._held.total() + size > self._total:
            raise RequestError("too many large bodies are being received; try again", code="busy", status=503)
        self._held[client] += size

    def give_back(self, client: str, size: int) -> None:
        self._held[client] -= size
        if not self._held[client]:
            del self._held[client]
