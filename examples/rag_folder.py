"""Questions about a folder: Python selects a document for each question; questions about one document share it.

python examples/rag_folder.py
python examples/rag_folder.py --folder examples/data/handbook "How much may a hotel cost?"

Forks within forks: the instructions are computed once, each document once, and then only the questions.
"""

from __future__ import annotations

import re
from collections import Counter
from math import log
from pathlib import Path

import common

import radixrt as rt

QUESTIONS = (
    "How many days of vacation does an employee have?",
    "How much may a hotel cost?",
    "When is a laptop replaced?",
    "On which day are dogs welcome?",
    "Within how many days are receipts handed in?",
    "Until when can vacation days be used?",
    "Where do guests sign in?",
    "How fast does the help desk answer?",
)


def words(text: str) -> set[str]:
    return {word.rstrip("s") for word in re.findall(r"\w+", text.lower())}


def best_document(documents: dict[str, str], question: str) -> str:
    """Return the name of the document that has the most words of the question; rare words count more."""
    bags = {name: words(text) for name, text in documents.items()}
    found_in = Counter(word for bag in bags.values() for word in bag)
    return max(bags, key=lambda name: sum(log(len(bags) / found_in[w]) for w in words(question) & bags[name]))


@rt.function(temperature=0, max_tokens=32, stop="\n")
def ask(s: rt.State, documents: dict[str, str], questions: list[str]) -> list[tuple[str, str, rt.State]]:
    about: dict[str, list[str]] = {}
    for question in questions:
        about.setdefault(best_document(documents, question), []).append(question)

    asked = []
    for reader, name in s.fork(about).items():
        reader += rt.system(f"You answer questions about this document in one short sentence.\n\n{documents[name]}")
        for branch, question in reader.fork(about[name]).items():
            branch += rt.user(question) + rt.assistant(rt.gen("answer"))
            asked.append((question, name, branch))
    return asked


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("questions", nargs="*", default=QUESTIONS)
    parser.add_argument("--folder", type=Path, default=common.DATA / "handbook", help="with the documents (*.md)")
    args = parser.parse_args()
    documents = {path.name: path.read_text() for path in sorted(args.folder.glob("*.md"))}
    with common.backend(args):
        state = ask.run(documents, args.questions)
        for question, name, branch in state.returned:
            print(f"{question}\n  {branch['answer']}  [{name}]")
        print(common.reuse(state))


if __name__ == "__main__":
    main()
