"""Watch: streams of events of the cache and of requests, for routers and pages."""
