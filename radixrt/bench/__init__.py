"""`radixrt bench`: a load for any OpenAI-compatible server, or for an Engine of this process.

`options` are the flags, `datasets` and `traces` make requests, `load` sends them to a server, `result` sums up, and
`serve` and `offline` are the commands.
"""
