"""A conversation: each turn finds all earlier turns in the prefix cache, including the model's answers.

python examples/multi_turn_chat.py
python examples/multi_turn_chat.py "What is the largest planet?" "How many moons has it?"
"""

from __future__ import annotations

import common

import radixrt as rt

QUESTIONS = ("What is the capital of Japan?", "What is the capital of Italy?", "And of Egypt?")


@rt.function(temperature=0, max_tokens=40)
def chat(s: rt.State, questions: list[str]) -> None:
    s += rt.system("You are a helpful assistant. You answer in one short sentence.")
    for question in questions:
        s += rt.user(question) + rt.assistant(rt.gen("answer"))  # returns at once; a read of s["answer"] would wait


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help="what to ask, turn by turn")
    args = parser.parse_args()
    with common.backend(args):
        # A stream yields the events of all gens. `stream.text("answer")` would yield the text of one gen.
        stream = chat.stream(args.questions)
        for event in stream:
            if event.text and event.text == event.so_far:  # the first event of a turn
                print("> " + args.questions[event.call])
            print(event.text, end="\n" if event.done else "", flush=True)

        state = stream.result()
        for turn, call in enumerate(state.log.calls, 1):
            print(f"turn {turn}: {call.prompt_tokens} prompt tokens, {call.cached_tokens} of them from the cache")
        print(common.reuse(state))


if __name__ == "__main__":
    main()
