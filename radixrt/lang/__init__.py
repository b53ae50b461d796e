"""The frontend language: programs of many model calls whose structure the engine can see.

The program's side runs in the caller's thread, or in one of its own for `async_run`, `stream` and `batch`:

    words.py        what can be appended: text, roles, gen, select, join
    state.py        State: takes words apart into steps, keeps the names, waits for what is read
    branches.py     the states of a fork, and join
    function.py     run, async_run, stream, batch; run_stream.py and batch.py hold what they return

One event loop in one thread (runtime.py) does the work of every program of the process:

    program.py      one run: its branches, its log, its end
    branch.py       one coroutine for each state, which takes its steps in order
    calls.py        the steps that call the model
    transcript.py   what was said: an immutable list, so that a fork is one more reference to its tip
    chat_format.py  a conversation as the chat template's text, in pieces
    prompt.py       the prompt that a transcript makes: known token ids, and the text after them
    slot.py         a value that is asked for and will be there: all that passes from the loop to the program
    backend.py      where calls go: engine_backend.py, endpoint.py, openai_backend.py

What a run did is in its log (events.py), which reports, traces and usage are read from.
"""
