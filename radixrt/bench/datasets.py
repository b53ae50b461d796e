"""Requests of a benchmark: random words, shared prefixes, a ShareGPT file, or a trace file of Mooncake's.

Prompts are texts, because a server need not tell its tokenizer. Their lengths in tokens come from a `Ruler`, which the
server's own counts calibrate.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from radixrt.bench.traces import MOONCAKE_BLOCK, TraceLine, read_trace
from radixrt.bench.words import prose
from radixrt.errors import ConfigError

SAMPLE_TOKENS = (20, 100)
"""Sizes of the texts that calibrate a Ruler: small enough for models with a context of 512 tokens."""

SHAREGPT_PROMPT, SHAREGPT_TOTAL = 1024, 2048
"""Longest prompt, and prompt with answer, of a ShareGPT conversation that is used, in tokens; as in vLLM."""


@dataclass(frozen=True)
class BenchRequest:
    """A request: at most `output_len` tokens after `prompt`, sent `at` seconds after the first; None: by the rate."""

    prompt: str
    output_len: int
    at: float | None = None


@dataclass(frozen=True)
class DatasetOptions:
    """Shape of a dataset; the flags of `radixrt bench` document the fields."""

    name: str = "random"
    path: str | None = None
    num_prompts: int = 100
    input_len: int = 1024
    output_len: int = 128
    prefix_len: int = 1024
    num_prefixes: int = 1
    sharegpt_output_len: int | None = None
    max_input_len: int | None = None
    trace_speed: float = 1.0
    seed: int = 0


@dataclass(frozen=True)
class Ruler:
    """Sizes of texts in tokens of one model.

    Attributes:
        overhead: tokens of a prompt beside its text: the chat template, a token that begins each prompt.
    """

    tokens_per_word: float
    tokens_per_character: float
    overhead: float

    def words(self, seed: object, tokens: float) -> str:
        """Return random words, about so many tokens; the same for the same seed."""
        return prose(random.Random(f"{seed}"), max(tokens, 1), self.tokens_per_word)


def calibration_texts(seed: int) -> tuple[str, str]:
    """Return a short and a long text, by whose token counts `calibrated` makes a Ruler."""
    short, long = (prose(random.Random(f"{seed}/ruler/{n}"), n) for n in SAMPLE_TOKENS)
    return short, long


def calibrated(texts: tuple[str, str], counts: tuple[int, int]) -> Ruler:
    """Make the Ruler of a model that counts so many tokens in two prompts."""
    tokens = max(counts[1] - counts[0], 1)
    words = [len(text.split()) for text in texts]
    per_word = tokens / (words[1] - words[0])
    return Ruler(per_word, tokens / (len(texts[1]) - len(texts[0])), max(counts[0] - per_word * words[0], 0.0))


def make_requests(options: DatasetOptions, ruler: Ruler) -> list[BenchRequest]:
    """Make the requests of a dataset, at most `num_prompts`; the same for equal arguments.

    Raises:
        ConfigError: the file is missing, unreadable, or holds no request; names it.
    """
    return _MAKERS[options.name](options, ruler)


def _random(options: DatasetOptions, ruler: Ruler) -> list[BenchRequest]:
    length = options.input_len - ruler.overhead
    return [
        BenchRequest(ruler.words(f"{options.seed}/{n}", length), options.output_len) for n in range(options.num_prompts)
    ]


def _shared_prefix(options: DatasetOptions, ruler: Ruler) -> list[BenchRequest]:
    prefixes = [ruler.words(f"{options.seed}/prefix/{n}", options.prefix_len) for n in range(options.num_prefixes)]
    length = options.input_len - ruler.overhead
    return [
        BenchRequest(
            f"{prefixes[n % len(prefixes)]} {ruler.words(f'{options.seed}/{n}', length)}", options.output_len
        )
        for n in range(options.num_prompts)
    ]  # fmt: skip


def _sharegpt(options: DatasetOptions, ruler: Ruler) -> list[BenchRequest]:
    path = _path(options)
    try:
        talks = json.loads(path.read_text(encoding="utf-8"))
        pairs = [[str(turn["value"]) for turn in talk["conversations"][:2]] for talk in talks]
    except OSError as error:
        raise ConfigError(f"the dataset {path} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f'the dataset {path} is not in ShareGPT\'s form, [{{"conversations": [{{"value": ...}}, ...]}}]: {error!r}'
        ) from None
    random.Random(options.seed).shuffle(pairs)
    longest = min(options.max_input_len or SHAREGPT_PROMPT, SHAREGPT_PROMPT)
    made: list[BenchRequest] = []
    for pair in pairs:
        if len(pair) < 2 or len(made) == options.num_prompts:
            continue
        prompt, answer = (round(len(text) * ruler.tokens_per_character) for text in pair)
        output = options.sharegpt_output_len or answer
        if 4 <= prompt <= longest and output >= 4 and prompt + output <= SHAREGPT_TOTAL:
            made.append(BenchRequest(pair[0], output))
    if not made:
        raise ConfigError(f"the dataset {path} has no conversation of two turns of a usable length")
    return made


def _trace(options: DatasetOptions, ruler: Ruler) -> list[BenchRequest]:
    path = _path(options)
    try:
        lines = read_trace(path, "mooncake", options.num_prompts)
    except OSError as error:
        raise ConfigError(f"the trace {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None
    first = lines[0].at
    return [
        BenchRequest(
            _trace_prompt(line, options.max_input_len, ruler), max(line.output_length, 1),
            (line.at - first) / options.trace_speed,
        )
        for line in lines
    ]  # fmt: skip


def _trace_prompt(line: TraceLine, longest: int | None, ruler: Ruler) -> str:
    """Make the prompt of a trace's request: equal hashes become equal blocks of words, the last one is cut."""
    left = max(line.input_length if longest is None else min(line.input_length, longest), 1) - ruler.overhead
    blocks: list[str] = []
    for block in line.hash_ids:
        if left <= 0 and blocks:
            break
        words = ruler.words(f"block {block}", MOONCAKE_BLOCK).split()
        blocks.append(" ".join(words[: max(1, round(left / ruler.tokens_per_word))]))
        left -= MOONCAKE_BLOCK
    return " ".join(blocks) or ruler.words("empty", 1)


def _path(options: DatasetOptions) -> Path:
    if options.path is None:
        raise ConfigError(f"the dataset {options.name} is a file; name it with --dataset-path")
    return Path(options.path).expanduser()


_MAKERS: dict[str, Callable[[DatasetOptions, Ruler], list[BenchRequest]]] = {
    "random": _random,
    "shared-prefix": _shared_prefix,
    "sharegpt": _sharegpt,
    "trace": _trace,
}
