"""Watch: streams of what happens to the cache and to requests, for routers and pages."""
