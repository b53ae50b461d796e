"""Events of a scheduler's prefix cache, from which a reader builds a replica of the radix tree.

reader -> scheduler   WatchCacheReq, CacheAck, NodeTokensReq
scheduler -> reader   CacheEvents, RequestViews, NodeTokens

The reader is the main process, which gets these messages through the tokenizer process, or a router of replicas. A
stream is a sequence of `CacheEvents` batches, at most one for each turn of the scheduler's loop. The stream begins with
a snapshot: the tree as events, in slices between which other events may stand, so that no turn of the loop takes long.
The batch that ends the snapshot has `complete` set, and so has every later batch: after each of them the replica equals
the tree.

A reader may also ask for the trees of the tiers (`radixrt.parts.tiers`). Each tier has a stream of its own, whose
batches name the tier. A run in a tier has no tokens for the state behind a prefix; its node ends where the state is.

The reader acknowledges batches. The scheduler sends no more than a window of unacknowledged events. When the window is
full, the scheduler stops recording, and begins a new snapshot once the reader has caught up. So neither side ever holds
more than the window, and a slow reader costs the scheduler nothing.

Tokens do not leave the scheduler. A node has the chain hashes (`radixrt.mem_cache.granules`) of the granules that end
in the node, and `NodeTokensReq` asks for the tokens of one node.
"""

from __future__ import annotations

import msgspec

from radixrt.messages.wire import Message


class Event(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base class of events; the garbage collector need not visit them."""


class RootOpened(Event, frozen=True, tag="root"):
    """The tree of a namespace (cache salt) has its first node.

    Attributes:
        seed: seed of the namespace's chain hashes, which does not disclose the salt.
        locks: see `NodeInserted`.
    """

    node: int
    seed: bytes
    locks: int = 0


class NodeInserted(Event, frozen=True, tag="insert"):
    """A node was added below `parent`: a leaf, or in a snapshot any node, after its parent.

    Attributes:
        node: number of the node, which is not used again in this stream.
        tokens: length of the node's run.
        hashes: chain hashes of 8 bytes of the granules that end in the run.
        created, last_access: ticks of the cache's clock.
        hits: number of matches that went through the node.
        locks: locks held by requests on this node and on nodes below it; while it is not 0 the node is not evicted.
        has_state: the node holds a state of recurrent layers.
    """

    node: int
    parent: int
    tokens: int
    hashes: bytes
    created: int
    last_access: int
    hits: int = 0
    priority: int = 0
    retention: int = 1
    locks: int = 0
    has_state: bool = False


class NodeSplit(Event, frozen=True, tag="split"):
    """The first `tokens` tokens of a node's run moved to a new parent, `prefix`.

    The prefix gets copies of all fields but the state, which stays with the node, and the retention level, which is
    normal. Each hash moves with the token at which its granule ends.
    """

    node: int
    prefix: int
    tokens: int


class NodeEvicted(Event, frozen=True, tag="evict"):
    """A leaf was evicted, or the root of a namespace without nodes was dropped."""

    node: int


class PathUsed(Event, frozen=True, tag="use"):
    """A match or an insert went through all nodes from the root to `node`, at tick `clock`.

    Nodes with the retention level RETAIN_DONE (`radixrt.mem_cache.tree_node`) become RETAIN_NORMAL.

    Attributes:
        hits: 1 for a match, 0 for an insert.
        priority: priority of an insert, to which the nodes' priorities rise; None for a match.
    """

    node: int
    clock: int
    hits: int
    priority: int | None = None


class PathLocked(Event, frozen=True, tag="lock"):
    """A request locked (1) or unlocked (-1) all nodes from the root to `node`."""

    node: int
    change: int


class RetentionSet(Event, frozen=True, tag="retain"):
    """A program's hint set a node's retention level; see `radixrt.mem_cache.tree_node.held_level`."""

    node: int
    retention: int


class StateSet(Event, frozen=True, tag="state"):
    """A node got a state of recurrent layers, or lost it."""

    node: int
    has_state: bool


class CacheCleared(Event, frozen=True, tag="clear"):
    """All nodes and all roots were dropped."""


class RequestAdmitted(Event, frozen=True, tag="admit"):
    """A request was admitted for the first time.

    Attributes:
        node: node in which the cached prefix of the prompt ends; 0 if nothing is cached.
        prompt_tokens: length of the prompt.
        cached_tokens, matched_tokens: see `radixrt.messages.parts.Usage`.
        reusable_tokens: length of the longest prefix that a cache could have had: all but the last token, or 0 for a
            request whose whole prompt must be computed, because log-probabilities of the prompt were requested.
        program, branch: see `radixrt.messages.parts.ProgramHint`; empty without a hint.
        fetched_tokens: see `radixrt.messages.parts.Usage`.
    """

    rid: str
    node: int
    prompt_tokens: int
    cached_tokens: int
    matched_tokens: int
    reusable_tokens: int
    program: str = ""
    branch: str = ""
    fetched_tokens: dict[str, int] = {}


class RequestPublished(Event, frozen=True, tag="publish"):
    """A request inserted its computed tokens [start, end) into the tree, where they end in `node`. Tokens before
    `existing` were in the tree already: another request had computed the same tokens at the same time."""

    rid: str
    node: int
    start: int
    existing: int
    end: int


class RequestEnded(Event, frozen=True, tag="end"):
    """A request ended.

    Attributes:
        reason: reason of the request's `Finish`.
        first_token_s: seconds from the arrival at the scheduler to the first token; None without output.
    """

    rid: str
    reason: str
    output_tokens: int = 0
    first_token_s: float | None = None


CacheEvent = (
    RootOpened
    | NodeInserted
    | NodeSplit
    | NodeEvicted
    | PathUsed
    | PathLocked
    | RetentionSet
    | StateSet
    | CacheCleared
    | RequestAdmitted
    | RequestPublished
    | RequestEnded
)
"""Events in the order in which they happened. A reader that knows only prefixes needs events of roots and nodes."""


class SnapshotHeader(msgspec.Struct, frozen=True, array_like=True):
    """Properties of the cache that do not change.

    Attributes:
        num_slots: tokens that the KV pool holds.
        page_size: tokens of a page; runs are whole pages.
        granule: tokens of a granule.
        policy: eviction policy.
        enabled: False if the prefix cache is off, and the tree always empty.
    """

    num_slots: int
    page_size: int
    granule: int
    policy: str
    enabled: bool = True


class CacheEvents(Message, frozen=True, array_like=True, tag=True):
    """Batch of events (scheduler to reader).

    Attributes:
        seq: number of the batch, which grows by 1. A reader that misses a batch asks for a snapshot by another
            `WatchCacheReq`.
        clock: tick of the cache's clock, the number of matches and inserts so far, after these events.
        complete: after this batch the replica equals the tree.
        header: set if the batch begins a snapshot; the reader forgets the tree that it had before.
        tier: tier whose tree the events describe; "" for the KV pool.
    """

    seq: int
    clock: int
    complete: bool
    events: list[CacheEvent] = []
    header: SnapshotHeader | None = None
    tier: str = ""


class WatchCacheReq(Message, frozen=True, array_like=True, tag=True):
    """Request of the reader for a snapshot and the events from then on, or for the end of the stream.

    Attributes:
        watch: False to end the stream.
        requests: send events of requests, and `RequestViews`, too.
        usage: send `PathUsed`, `PathLocked` and `RetentionSet` too, which do not matter to an index of prefixes.
        tiers: send events of the tiers' trees, too.
    """

    watch: bool = True
    requests: bool = False
    usage: bool = True
    tiers: bool = False


class CacheAck(Message, frozen=True, array_like=True, tag=True):
    """Acknowledgement of the reader for all batches of the KV pool, or of a tier, up to `seq`."""

    seq: int
    tier: str = ""


class NodeTokensReq(Message, frozen=True, array_like=True, tag=True):
    """Request of the reader for the tokens of a node; `NodeTokens` with the same id answers it.

    Attributes:
        limit: maximum number of tokens, from the node's first one.
    """

    id: str
    node: int
    limit: int


class NodeTokens(Message, frozen=True, array_like=True, tag=True):
    """Answer to a NodeTokensReq.

    Attributes:
        token_ids: int32 column; None if there is no such node any more.
        kept: number of tokens from the root to the node's end whose keys and values are outside of the KV pool too, by
            tier; see `radixrt.messages.scheduler_stats.TierStats`.
    """

    id: str
    token_ids: bytes | None = None
    kept: dict[str, int] = {}


class QueueView(msgspec.Struct, frozen=True, array_like=True):
    """Prefix that a waiting request would find in the cache if it were admitted now, and why it is not admitted.

    Attributes:
        matched_tokens: tokens with cached keys and values; more than `RequestView.cached_tokens` only if the nearest
            state of recurrent layers is further up.
        reusable_tokens: see `RequestAdmitted`.
        continuations: number of cached continuations from which the prompt parts after the matched tokens; 0 if no
            cached prompt begins in the same way.
        obstacle: one of OBSTACLES.
        needed_slots: KV slots that the request is expected to take.
        free_slots: free and evictable KV slots, less the slots that running requests are expected to take yet.
        hashes: chain hashes of the granules of the input, once for each request and reader, and only as far as
            `radixrt.parts.watch.queue_views.HASHED_TOKENS` goes; None in all other views.
        kept: number of leading tokens that tiers have, by tier.
    """

    matched_tokens: int
    reusable_tokens: int
    continuations: int
    obstacle: str
    needed_slots: int
    free_slots: int
    hashes: bytes | None = None
    kept: dict[str, int] = {}


OBSTACLES = ("", "requests", "prefix", "slots", "programs", "restart")
"""Reasons why a request is not admitted.

- "": none but the order of the queue.
- "requests": the maximum number of requests runs.
- "prefix": an active request is computing a prefix that the request can reuse soon.
- "slots": not enough slots are free.
- "programs": the free slots are reserved for programs that began earlier.
- "restart": the ModelRunner is being restarted.
"""


class RequestView(msgspec.Struct, frozen=True, array_like=True):
    """Present state of one request in the scheduler.

    Attributes:
        state: "waiting", "prefill" or "running".
        node: end of the path that the request has locked; 0 for none.
        program, branch: see `radixrt.messages.parts.ProgramHint`; empty without a hint.
        seed: first bytes of its namespace's chain hashes, as in `RootOpened`.
        kind: "generate", or "score" for a row of a scoring or embedding request.
        cached_tokens: prompt tokens that the cache saved, or would save a waiting request now; -1 far back in the
            queue.
        computed_tokens: tokens of the prompt and the output whose keys and values are computed, or will be after the
            steps in flight.
        max_tokens: maximum number of output tokens.
        constrained: a grammar constrains the output.
        waited_s: seconds in the queue so far.
        age_s: seconds since the arrival.
        queue: of a waiting request; None far back in the queue.
    """

    rid: str
    state: str
    node: int
    program: str
    branch: str
    seed: bytes
    kind: str
    priority: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    output_tokens: int
    max_tokens: int
    constrained: bool
    retractions: int
    waited_s: float
    age_s: float
    queue: QueueView | None = None


class ProgramHold(msgspec.Struct, frozen=True, array_like=True):
    """Node that is retained for a program's next call."""

    node: int
    program: str
    retention: int


class RequestViews(Message, frozen=True, array_like=True, tag=True):
    """Snapshot of the requests in the scheduler, a few times a second.

    Attributes:
        views: running requests in order of admission, then waiting requests in order of arrival, together at most
            `radixrt.parts.watch.scheduler.MAX_VIEWS`.
        running, waiting: numbers of running and of waiting requests.
        holds: nodes retained for programs, at most MAX_VIEWS.
    """

    running: int
    waiting: int
    views: list[RequestView] = []
    holds: list[ProgramHold] = []


FromWatched = CacheEvents | RequestViews | NodeTokens
"""Messages to the reader of a cache."""

ToWatched = WatchCacheReq | CacheAck | NodeTokensReq
"""Messages of the reader of a cache."""


class PageWatch(Message, frozen=True, array_like=True, tag=True):
    """Message from a page to one replica's scheduler. The page has its own event stream, besides the router's."""

    replica: int
    message: ToWatched


class PageWatched(Message, frozen=True, array_like=True, tag=True):
    """Message from a replica's scheduler to a page."""

    replica: int
    message: FromWatched
