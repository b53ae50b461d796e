"""Chat semantics without HTTP: prompts, tools, reasoning and the parts of an answer.

`radixrt.server` and `radixrt.lang` are built on this package. It imports no web framework and builds no HTTP body.
Every function that checks a client's values raises `RequestError` with the name of the field in `param`.
"""
