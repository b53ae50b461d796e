"""RadixCache against a naive model, driven the way the scheduler drives it.

The model knows no tree: it is a dict from every cached prefix of whole pages to that prefix's last page of slots and
its age, plus the set of prefixes where an entry or a match once ended (a leaf is evicted back to the last of these).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from radixrt.mem_cache import EVICTION_POLICIES, RadixCache, ReqToTokenPool, TokenToKVPoolAllocator, TreeNode

Prefix = tuple[str, tuple[int, ...]]  # namespace and tokens, whole pages
NUM_PAGES = 20
MAX_LEN = 8 * 16


@dataclass
class Page:
    slots: list[int]
    created: int
    last_access: int
    hits: int
    priority: int


@dataclass
class Model:
    policy: str
    page_size: int
    pages: dict[Prefix, Page] = field(default_factory=dict)
    ends: set[Prefix] = field(default_factory=set)
    locks: list[Prefix] = field(default_factory=list)
    clock: int = 0

    def prefixes(self, namespace: str, key: list[int]) -> list[Prefix]:
        """The prefixes of whole pages that are cached, shortest first."""
        found = []
        for end in range(self.page_size, len(key) + 1, self.page_size):
            prefix = (namespace, tuple(key[:end]))
            if prefix not in self.pages:
                break
            found.append(prefix)
        return found

    def slots(self, prefix: Prefix) -> list[int]:
        return [slot for p in self.prefixes(prefix[0], list(prefix[1])) for slot in self.pages[p].slots]

    def match(self, namespace: str, key: list[int]) -> Prefix:
        found = self.prefixes(namespace, key)
        if not found:
            return (namespace, ())
        self.clock += 1
        self.ends.add(found[-1])
        for prefix in found:
            self.pages[prefix].hits += 1
            self.pages[prefix].last_access = self.clock
        return found[-1]

    def insert(self, namespace: str, key: list[int], slots: list[int], priority: int) -> tuple[int, Prefix]:
        size = self.page_size
        whole = len(key) - len(key) % size
        found = self.prefixes(namespace, key)
        if whole == 0:
            return 0, (namespace, ())
        self.clock += 1
        if found:
            self.ends.add(found[-1])
        for prefix in found:
            page = self.pages[prefix]
            page.last_access = self.clock
            page.priority = max(page.priority, priority)
        existing = len(found) * size
        for start in range(existing, whole, size):
            new = Page(slots[start : start + size], self.clock, self.clock, 0, priority)
            self.pages[namespace, tuple(key[: start + size])] = new
        end = (namespace, tuple(key[:whole]))
        self.ends.add(end)
        return existing, end

    def locked(self, prefix: Prefix) -> bool:
        return any(lock[0] == prefix[0] and lock[1][: len(prefix[1])] == prefix[1] for lock in self.locks)

    def value(self, prefix: Prefix) -> tuple[int, ...]:
        page = self.pages[prefix]
        return {
            "lru": (page.last_access,),
            "lfu": (page.hits, page.last_access),
            "fifo": (page.created,),
            "priority": (page.priority, page.last_access),
        }[self.policy]

    def evict(self, num_slots: int) -> int:
        freed = 0
        while freed < num_slots:
            inner = {(name, tokens[: -self.page_size]) for name, tokens in self.pages}
            leaves = [prefix for prefix in self.pages if prefix not in inner and not self.locked(prefix)]
            if not leaves:
                break
            name, tokens = min(leaves, key=self.value)
            while True:
                del self.pages[name, tokens]
                self.ends.discard((name, tokens))
                freed += self.page_size
                tokens = tokens[: -self.page_size]
                if not tokens or (name, tokens) in self.ends:
                    break
        return freed

    def protected(self) -> int:
        return self.page_size * sum(self.locked(prefix) for prefix in self.pages)


@dataclass
class Request:
    namespace: str
    tokens: list[int]
    row: int
    kv_len: int
    protected_len: int
    node: TreeNode
    lock: Prefix
    priority: int


class CacheMachine(RuleBasedStateMachine):
    """Requests come, decode, are cached midway, finish or are dropped, in a pool too small for them."""

    policy = ""

    @initialize(page_size=st.sampled_from([1, 2, 16]))
    def start(self, page_size: int) -> None:
        policy = self.policy
        self.allocator = TokenToKVPoolAllocator(NUM_PAGES * page_size, page_size)
        self.pool = ReqToTokenPool(4, MAX_LEN)
        self.cache = RadixCache(self.allocator, policy)
        self.model = Model(policy, page_size)
        self.live: list[Request] = []
        self.history: list[tuple[str, list[int]]] = []

    # --- what the scheduler does ---

    def make_room(self, need: int) -> bool:
        missing = need - self.allocator.available()
        if missing > 0:
            assert self.cache.evict(missing) == self.model.evict(missing)
        return need <= self.allocator.available()

    def lock(self, node: TreeNode, prefix: Prefix) -> None:
        self.cache.inc_lock_ref(node)
        self.model.locks.append(prefix)

    def unlock(self, node: TreeNode, prefix: Prefix) -> None:
        self.cache.dec_lock_ref(node)
        self.model.locks.remove(prefix)

    def insert(self, req: Request, keep: bool) -> None:
        """Offers what the request has; afterwards it goes on with a new lock, or is gone."""
        row = self.pool.table[req.row]
        tokens = req.tokens[: req.kv_len]
        key, slots = np.array(tokens, np.int32), row[: req.kv_len]
        result = self.cache.insert(key, slots, req.namespace, req.priority)
        existing, end = self.model.insert(req.namespace, tokens, slots.tolist(), req.priority)
        assert (result.existing_len, result.retained_len) == (existing, len(end[1]))
        assert req.protected_len <= existing <= result.retained_len <= req.kv_len
        expected = self.model.slots(end)
        assert self.cache.path_slots(result.node).tolist() == expected
        self.allocator.free(row[req.protected_len : existing])
        if keep:
            row[req.protected_len : existing] = expected[req.protected_len : existing]
            self.lock(result.node, end)
            self.unlock(req.node, req.lock)
            req.node, req.lock, req.protected_len = result.node, end, result.retained_len
        else:
            self.allocator.free(row[result.retained_len : req.kv_len])
            self.finish(req)

    def finish(self, req: Request) -> None:
        self.unlock(req.node, req.lock)
        self.pool.free(req.row)
        self.live.remove(req)

    # --- rules ---

    def draw_key(self, data: st.DataObject) -> tuple[str, list[int]]:
        """Often a beginning of an earlier key, gone on with in another way."""
        size = self.model.page_size
        namespace, tokens = data.draw(st.sampled_from([*self.history, ("", []), ("a", [])]))
        cut = data.draw(st.integers(0, len(tokens)))
        if data.draw(st.booleans()):
            cut -= cut % size
        fresh = data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3))
        tail = data.draw(st.integers(0, size - 1))
        tokens = [*tokens[:cut], *(page for page in fresh for _ in range(size)), *[1] * tail][: 6 * size]
        self.history.append((namespace, tokens))
        return namespace, tokens

    def admit(self, namespace: str, tokens: list[int], priority: int) -> Request | None:
        key = np.array(tokens, np.int32)
        assert self.cache.match_len(key, namespace) == self.model.page_size * len(
            self.model.prefixes(namespace, tokens)
        )
        slots, node, *_ = self.cache.match_prefix(key, namespace)
        prefix = self.model.match(namespace, tokens)
        assert slots.tolist() == self.model.slots(prefix) == self.cache.path_slots(node).tolist()
        self.lock(node, prefix)
        matched = len(slots)
        num_new = len(tokens) - matched
        if not self.make_room(self.allocator.new_slots_for_extend(matched, num_new)):
            self.unlock(node, prefix)
            return None
        new = self.allocator.alloc_extend(matched, num_new, int(slots[-1]) if matched else 0)
        row = self.pool.alloc()
        assert new is not None
        assert row is not None
        self.pool.table[row, :matched] = slots
        self.pool.table[row, matched : len(tokens)] = new
        req = Request(namespace, tokens, row, len(tokens), matched, node, prefix, priority)
        self.live.append(req)
        return req

    @precondition(lambda self: len(self.live) < 4)
    @rule(data=st.data(), priority=st.integers(0, 2))
    def begin(self, data: st.DataObject, priority: int) -> None:
        self.admit(*self.draw_key(data), priority)

    @precondition(lambda self: len(self.live) < 4)
    @rule(data=st.data(), priority=st.integers(0, 2))
    def run_to_the_end(self, data: st.DataObject, priority: int) -> None:
        for _ in range(data.draw(st.integers(2, 5))):
            req = self.admit(*self.draw_key(data), priority)
            if req is not None:
                self.insert(req, keep=False)

    @rule(data=st.data())
    def only_ask(self, data: st.DataObject) -> None:
        namespace, tokens = self.draw_key(data)
        slots = self.cache.match_prefix(np.array(tokens, np.int32), namespace).slots
        assert slots.tolist() == self.model.slots(self.model.match(namespace, tokens))

    @precondition(lambda self: self.live)
    @rule(token=st.sampled_from([1, 2, 3]))
    def decode(self, token: int) -> None:
        seq_lens = np.array([req.kv_len for req in self.live], np.int32)
        if seq_lens.max() == MAX_LEN or not self.make_room(self.allocator.new_slots_for_decode(seq_lens)):
            return
        rows = np.array([req.row for req in self.live])
        slots = self.allocator.alloc_decode(seq_lens, self.pool.table[rows, seq_lens - 1])
        assert slots is not None
        self.pool.table[rows, seq_lens] = slots
        for req in self.live:
            req.tokens.append(token)
            req.kv_len += 1

    @precondition(lambda self: self.live)
    @rule(data=st.data(), keep=st.booleans())
    def insert_one(self, data: st.DataObject, keep: bool) -> None:
        self.insert(data.draw(st.sampled_from(self.live)), keep)

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        """A request aborted without caching anything."""
        req = data.draw(st.sampled_from(self.live))
        self.allocator.free(self.pool.table[req.row, req.protected_len : req.kv_len])
        self.finish(req)

    @precondition(lambda self: self.cache.evictable_size > 0)
    @rule(num_pages=st.integers(1, 3), extra=st.integers(-1, 1))
    def evict(self, num_pages: int, extra: int) -> None:
        num_slots = num_pages * self.model.page_size + extra
        before = self.allocator.available()
        freed = self.cache.evict(num_slots)
        assert freed == self.model.evict(num_slots) == self.allocator.available() - before

    @precondition(lambda self: len(self.history) > 12)
    @rule()
    def reset(self) -> None:
        locked = self.model.protected() > 0
        assert self.cache.reset() is not locked
        if not locked:
            self.model.pages.clear()
            self.model.ends.clear()

    # --- what must hold ---

    @invariant()
    def cache_is_the_model(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_invariants([req.node for req in self.live])
        self.allocator.check_invariants()
        found: dict[Prefix, list[int]] = {}
        for namespace, root in self.cache._roots.items():
            for node in root.descendants():
                tokens = tuple(int(token) for above in node.path() for token in above.key)
                size = self.model.page_size
                for i in range(node.num_tokens // size):
                    end = len(tokens) - node.num_tokens + (i + 1) * size
                    found[namespace, tokens[:end]] = node.value[i * size : (i + 1) * size].tolist()
        assert found == {prefix: page.slots for prefix, page in self.model.pages.items()}
        assert self.cache.protected_size == self.model.protected()

    @invariant()
    def every_slot_has_one_owner(self) -> None:
        """free + evictable + protected + private pages == all pages; row[:protected_len] == slots on the tree path."""
        if not hasattr(self, "cache"):
            return
        size = self.model.page_size
        private = 0
        for req in self.live:
            row = self.pool.table[req.row]
            assert row[: req.protected_len].tolist() == self.cache.path_slots(req.node).tolist()
            private += -(-(req.kv_len - req.protected_len) // size) * size
        assert self.allocator.available() + self.cache.total_size + private == self.allocator.num_slots
        assert self.pool.in_use() == sorted(req.row for req in self.live)

    def teardown(self) -> None:
        if hasattr(self, "cache"):
            for req in list(self.live):
                self.insert(req, keep=False)
            assert self.cache.reset()
            assert self.allocator.available() == self.allocator.num_slots


@pytest.mark.timeout(120)
@pytest.mark.parametrize("eviction_policy", EVICTION_POLICIES)
def test_radix_cache_against_the_model(eviction_policy: str) -> None:
    class Machine(CacheMachine):
        policy = eviction_policy

    run_state_machine_as_test(Machine, settings=settings(max_examples=40, stateful_step_count=50, deadline=None))
