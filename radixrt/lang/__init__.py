"""The frontend language: programs of many model calls whose structure the engine can see.

core/       programs: primitives that a function appends (`primitives`, `expr`), the state (`state`, `state_reader`),
            the event loop that runs the calls (`runtime`, `program`, `branch`, `calls`), and the prompt of a call
            (`transcript`, `prompt`, `chat_format`, `tools`). `function` has run, async_run, stream, batch.
observe/    the log of a run (`run_log`), and its readers: usage, reports, traces, replays, `explain`.
pictures    a picture of a program, which prompts share.
backends/   targets of calls: an engine of this process, a radixrt server, any OpenAI-compatible server.

A program's function runs in the caller's thread, or in one of its own for `async_run`, `stream` and `batch`. One event
loop in one thread (`core.runtime`) does the work of every program of the process. Values cross from the loop to the
function as `core.values.Slot` only.
"""
