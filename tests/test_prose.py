"""Docstrings and comments name things: few of their sentences are full of pronouns."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.prose import ROOT, Sentence, folder_sentences, sentences, vague_share

REWRITTEN = (
    "attention",
    "bench",
    "channel.py",
    "chat",
    "cli",
    "client",
    "config",
    "constrained",
    "constraint.py",
    "distributed",
    "doctor",
    "engine",
    "errors.py",
    "executor",
    "explain",
    "forward_batch",
    "heartbeat.py",
    "kernels",
    "lang",
    "layers",
    "live_tree",
    "logs.py",
    "mem_cache",
    "memory_file.py",
    "messages",
    "models",
    "openai_api.py",
    "os_process.py",
    "parts",
    "pydantic_schema.py",
    "python_types.py",
    "router",
    "runner",
    "sampling_params.py",
    "scheduler",
    "start_log.py",
    "peer_options.py",
    "suggestions.py",
    "task_thread.py",
    "tasks",
    "terminal_chat",
    "tokenizer",
)
"""Packages and modules of radixrt whose prose has been rewritten. The list only grows."""
MOST = 0.02
"""Highest share of vague sentences of such a package."""


@pytest.mark.parametrize("name", REWRITTEN)
def test_few_sentences_of_a_rewritten_package_are_vague(name: str) -> None:
    found = folder_sentences(ROOT / "radixrt" / name)
    assert found
    vague = "\n".join(
        f"{sentence.path.name}:{sentence.line}: {sentence.text}" for sentence in found if sentence.is_vague
    )
    assert vague_share(found) <= MOST, vague


def test_docstrings_and_comments_are_split_into_sentences(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        '"""Hand the states of a published chunk to the cache, as requested by the scheduler there.\n'
        "\n"
        "- The first item of this list is a sentence of more than ten words that ends here. Short one.\n"
        '- The second item of this list is another sentence of more than ten words."""\n'
        "x = 1  # noqa: this comment is an instruction to a linter and not a sentence of the module\n"
        "# A comment in two lines is a single sentence, and inline `code of any length` does not\n"
        "# count towards the number of words.\n"
    )
    found = sentences(path)
    assert [(sentence.line, len(sentence.words)) for sentence in found] == [(1, 16), (3, 17), (4, 14), (6, 19)]
    assert vague_share(found) == 0.0


@pytest.mark.parametrize(
    ("text", "vague"),
    [
        ("those inside, and the one behind it if it is wanted there", True),
        ("It is what those of the other rank have, and its one is theirs.", True),
        ("Requests still open after a timeout move to other replicas of the same model.", False),
        ("It is what it is.", False),  # too short to count
    ],
)
def test_a_sentence_is_vague_if_every_fifth_word_is_a_pronoun(text: str, vague: bool) -> None:
    assert Sentence(Path("module.py"), 1, text).is_vague is vague
