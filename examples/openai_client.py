"""A conversation with a running server through the openai package; each turn finds the earlier turns in the cache.

radixrt launch &
python examples/openai_client.py
"""

import argparse

import openai


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--base-url", default="http://127.0.0.1:30000", help="the server")
    args = parser.parse_args()
    client = openai.OpenAI(base_url=f"{args.base_url}/v1", api_key="none")
    model = client.models.list().data[0].id
    messages: list[dict[str, str]] = []
    for question in ("Name a large city in Japan.", "What is it known for?", "Name one in Italy."):
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model=model, messages=messages, max_tokens=48, temperature=0)
        text = answer.choices[0].message.content
        messages.append({"role": "assistant", "content": text})
        cached, total = answer.usage.prompt_tokens_details.cached_tokens, answer.usage.prompt_tokens
        print(f"> {question}\n{text}\n  [{cached} of {total} prompt tokens from the cache]\n")


if __name__ == "__main__":
    main()
