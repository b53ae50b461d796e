"""The page `/ui`: what the scheduler's radix tree, its requests and its cache do, live."""
