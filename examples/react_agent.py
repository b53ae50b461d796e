"""A ReAct agent with two real tools: a calculator, and a lookup in a file. The model decides, Python acts.

python examples/react_agent.py
python examples/react_agent.py "How many people live in Bergen and Oslo together?"

Each step continues all earlier steps, so only the output of a tool is new to the model. Tools, cities and expressions
are constrained to those that exist, so nothing has to be parsed and no unknown tool is called.

After Yao et al., "ReAct: Synergizing Reasoning and Acting in Language Models", arXiv 2210.03629.
"""

from __future__ import annotations

import ast
import csv
import operator
from collections.abc import Callable

import common

import radixrt as rt

EXAMPLES = """Question: How many more people live in Lyon than in Nice?
Thought: I need the people of Lyon.
Action: lookup Lyon
Result: Lyon = 522
Thought: I need the people of Nice.
Action: lookup Nice
Result: Nice = 343
Thought: I subtract the two.
Action: calculate Lyon - Nice
Result: 179
Thought: I have the answer.
Action: finish

Question: How many people live in Porto and Braga together?
Thought: I need the people of Porto.
Action: lookup Porto
Result: Porto = 232
Thought: I need the people of Braga.
Action: lookup Braga
Result: Braga = 193
Thought: I add the two.
Action: calculate Porto + Braga
Result: 425
Thought: I have the answer.
Action: finish

"""
SIGNS: dict[type, Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
}


def calculate(expression: str, names: dict[str, int]) -> int:
    """Return the value of an expression with + - * over whole numbers and names."""

    def value(node: ast.AST) -> int:
        match node:
            case ast.Constant(int(number)):
                return number
            case ast.Name(name):
                return names[name]
            case ast.BinOp(left, sign, right) if type(sign) in SIGNS:
                return SIGNS[type(sign)](value(left), value(right))
        raise ValueError(f"cannot calculate {expression!r}")

    return value(ast.parse(expression, mode="eval").body)


@rt.function(temperature=0)
def agent(s: rt.State, question: str, cities: dict[str, int], max_steps: int = 5) -> int | None:
    s += EXAMPLES + f"Question: {question}\n"
    known: dict[str, int] = {}
    result = None
    for _ in range(max_steps):
        s += "Thought:" + rt.gen("thought", max_tokens=24, stop="\n") + "\n"
        # Offer only what is possible: nothing can be calculated before something has been looked up.
        s += "Action:" + rt.select("action", [" lookup", " calculate", " finish"] if known else [" lookup"])
        if s["action"] == " finish":
            break
        # Each input ends in a newline. Without one, the only way to end a name would be to end the whole text.
        if s["action"] == " lookup":
            s += rt.gen("input", choices=[f" {city}\n" for city in cities])
            city = s["input"].strip()
            known[city] = cities[city]
            s += f"Result: {city} = {known[city]}\n"
        else:
            name = "|".join(known)
            s += rt.gen("input", regex=f" ({name}) [-+*] ({name})\n")
            result = calculate(s["input"].strip(), known)
            s += f"Result: {result}\n"
    return result


def main() -> None:
    parser = common.parser(__doc__)
    parser.add_argument("question", nargs="?", default="How many people live in Bergen and Oslo together?")
    args = parser.parse_args()
    with (common.DATA / "cities.csv").open() as file:
        cities = {row["city"]: int(row["thousand people"]) for row in csv.DictReader(file)}
    with common.backend(args):
        state = agent.run(args.question, cities)
        print(state.text().removeprefix(EXAMPLES))
        print(f"answer: {state.returned} thousand")
        print(common.reuse(state))


if __name__ == "__main__":
    main()
