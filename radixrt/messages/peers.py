"""Messages by which a replica gets a prefix that another replica of the engine has.

router         -> scheduler B   PrefixComing, and then the request
router         -> scheduler A   PrefixAsk
scheduler A    -> router -> B   PrefixPages

A replica that is about to leave hands its prefixes over:

router         -> scheduler A   HandOver
scheduler A    -> router        PrefixPages, one for each prefix, and HandedOver
router         -> scheduler B   PrefixPages, each with its source
scheduler B    -> router        PrefixTaken

All replicas run on one machine, and the main process has the memory of their host tiers. So B's ranks read the pages
from A's memory: the messages name them, and keys and values travel in no message. Nobody waits for an answer without a
bound, and no page is held for a reader: `radixrt.parts.tiers.peers` says why that is safe.
"""

from __future__ import annotations

from radixrt.messages.wire import Message


class PrefixAsk(Message, frozen=True, array_like=True, tag=True):
    """Question which pages of the host tier have a prefix. What only the KV pool has is copied to the host tier first.

    Attributes:
        rid: request that waits for the answer.
        token_ids: int32[n], the prefix from position 0 on.
        namespace: see `radixrt.messages.request.Envelope.cache_salt`.
    """

    rid: str
    token_ids: bytes
    namespace: str = ""


class PrefixComing(Message, frozen=True, array_like=True, tag=True):
    """Notice that a `PrefixPages` for a request will follow.

    Attributes:
        tokens: length of the prefix that another replica has.
    """

    rid: str
    tokens: int


class PrefixPages(Message, frozen=True, array_like=True, tag=True):
    """Pages of a host tier that have a prefix.

    Attributes:
        token_ids: int32[n * page], tokens of the pages, from position 0 on.
        layout: what the bytes of a page depend on; pages of another layout are of no use.
        arena, records: where the pages and their records are; see `radixrt.parts.tiers.settings.TierSettings`.
        pages: int32[n]; empty if there are none.
        source: replica that hands the prefix over; -1 for the answer to a `PrefixAsk`.
    """

    rid: str
    token_ids: bytes = b""
    namespace: str = ""
    layout: bytes = b""
    arena: str = ""
    records: str = ""
    pages: bytes = b""
    source: int = -1


class HandOver(Message, frozen=True, array_like=True, tag=True):
    """Order to name the prefixes of the KV pool, the last used ones first, so that other replicas copy them.

    Attributes:
        tokens: largest number of tokens of all prefixes together.
    """

    tokens: int


class HandedOver(Message, frozen=True, array_like=True, tag=True):
    """End of the answers to a `HandOver`.

    Attributes:
        prefixes: number of answers.
    """

    prefixes: int


class PrefixTaken(Message, frozen=True, array_like=True, tag=True):
    """Notice that the copy of a prefix that was handed over has ended, or does not begin.

    Attributes:
        source: see `PrefixPages`.
    """

    source: int


ToPeer = PrefixAsk | PrefixComing | PrefixPages | HandOver
"""Messages of the router to a scheduler."""

FromPeer = PrefixPages | HandedOver | PrefixTaken
"""Messages of a scheduler to the router."""
