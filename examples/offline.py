"""The offline API: one prompt, many prompts, a stream, and what the cache saved.

python examples/offline.py
"""

import radixrt

CHAT = (
    "<|im_start|>system\nYou answer in one short sentence.<|im_end|>\n"
    "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
)
NEXT = "<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"


def main() -> None:
    with radixrt.Engine() as engine:
        answer = engine.generate("The capital of Japan is", {"max_tokens": 8, "temperature": 0})
        print(f"one:    {answer.text!r} ({answer.finish_reason})")

        questions = ["Why is the sky blue?", "Why is grass green?", "Why is snow white?"]
        answers = engine.generate([CHAT.format(question=q) for q in questions], {"max_tokens": 40, "temperature": 0})
        for question, answer in zip(questions, answers, strict=True):
            used = answer.usage
            print(
                f"many:   {question} {answer.text!r} ({used.cached_tokens} of {used.prompt_tokens} tokens were cached)"
            )

        # A follow-up continues the whole conversation, which the cache has: only the new question is computed.
        follow_up = CHAT.format(question=questions[-1]) + answer.text + NEXT.format(question="And why is coal black?")
        answer = engine.generate(follow_up, {"max_tokens": 40, "temperature": 0})
        used = answer.usage
        print(f"again:  {answer.text!r} ({used.cached_tokens} of {used.prompt_tokens} tokens were cached)")

        print("stream: ", end="")
        for chunk in engine.stream("Once upon a time", {"max_tokens": 32, "temperature": 0.8, "seed": 7}):
            print(chunk.text, end="", flush=True)
        print()


if __name__ == "__main__":
    main()
