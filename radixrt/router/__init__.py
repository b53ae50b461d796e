"""The router of replicas, without sockets, clocks or torch: callers pass messages and `now`, in seconds.

replica_index.py   prefixes that each replica caches, from its `CacheEvents`
replica_load.py    work of each replica, as the router knows it
prices.py          seconds that a choice costs; forks
request_queue.py   requests that are bound to a replica and not sent yet
routed_request.py  a request on its way
router.py          `Router`: messages in, messages out
"""
