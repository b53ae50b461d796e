"""Benchmarks of radixrt and its peers, run as modules, for example `python -m benchmarks.serving`.

    serving    OpenAI-compatible servers over HTTP: `serving`, `serving.transformers_generate`
    offline    throughput of `radixrt.Engine` on the shapes of public models
    programs   programs in the frontend language, and the same calls made plainly
    structure  grammars, masks and constrained rows: `structure`, `structure.rounds`
    soak       a server under a mixed load for long: memory, descriptors and slots over time
    host       scheduler, tokenizer and client without a device
    kernels    one step, one kernel or one collective at a time
    cache      the radix tree
    common     machine facts, tables, model shapes, servers, ranks

The first line of each benchmark names the table of docs/ that it makes.
"""
