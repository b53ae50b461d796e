"""lm-eval's command on local data: local-completions and local-chat-completions, with the server's tokenizer."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import MODEL, V1, case, main

FOLDER = Path(tempfile.mkdtemp(prefix="lm-eval-"))
CHOICES = """
task: colours
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{question}}\\nAnswer:"
doc_to_choice: "{{options}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
GENERATED = """
task: words
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: "{{word}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 16, do_sample: false, temperature: 0.0}
metric_list: [{metric: exact_match}]
"""
ROLLING = """
task: texts
dataset_path: json
dataset_kwargs: {data_files: {test: DATA}}
test_split: test
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{question}}"
metric_list: [{metric: word_perplexity}]
"""
ROWS = [
    {"question": "What colour is the sky?", "options": ["blue", "red"], "answer": 0, "word": "blue"},
    {"question": "What colour is blood?", "options": ["green", "red"], "answer": 1, "word": "red"},
]
data = FOLDER / "data.jsonl"
data.write_text("\n".join(json.dumps(row) for row in ROWS))
for name, task in (("colours", CHOICES), ("words", GENERATED), ("texts", ROLLING)):
    (FOLDER / f"{name}.yaml").write_text(task.replace("DATA", str(data)))


def evaluate(model: str, route: str, tasks: str, *options: str, **more: object) -> dict:
    """Run `lm_eval` and return its results by task."""
    arguments = {"model": MODEL, "base_url": f"{V1}/{route}", "max_length": 2048, "max_retries": 1, **more}
    out = Path(tempfile.mkdtemp(dir=FOLDER))
    command = [
        sys.executable, "-m", "lm_eval", "--model", model, "--tasks", tasks, "--include_path", str(FOLDER),
        "--model_args", ",".join(f"{key}={value}" for key, value in arguments.items()), "--output_path", str(out),
        *options,
    ]  # fmt: skip
    subprocess.run(command, check=True, stdout=sys.stderr, cwd=FOLDER)
    (found,) = out.rglob("results*.json")
    return json.loads(found.read_text())["results"]


REMOTE = {"tokenizer_backend": "remote"}


@case
def completions_multiple_choice():
    assert 0 <= evaluate("local-completions", "completions", "colours", **REMOTE)["colours"]["acc,none"] <= 1


@case
def completions_generate():
    assert evaluate("local-completions", "completions", "words", "--apply_chat_template", **REMOTE)["words"]


@case
def completions_rolling():
    assert evaluate("local-completions", "completions", "texts", **REMOTE)["texts"]["word_perplexity,none"] > 1


@case
def completions_batches():
    """Several prompts in a request, and several requests at a time."""
    more = {**REMOTE, "num_concurrent": 2}
    assert evaluate("local-completions", "completions", "colours", "--batch_size", "2", **more)["colours"]


@case
def chat_generate():
    assert evaluate("local-chat-completions", "chat/completions", "words", "--apply_chat_template")["words"]


@case
def chat_generate_remote_tokenizer():
    """The chat model takes the option too; it sends messages and asks for no tokens."""
    out = evaluate(
        "local-chat-completions", "chat/completions", "words", "--apply_chat_template", "--limit", "1", **REMOTE
    )
    assert out["words"]


main()
