"""The page `/ui`: the scheduler's radix tree, requests and cache, live."""
