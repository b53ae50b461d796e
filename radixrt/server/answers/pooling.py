"""Answers of embeddings, reranking, scores and classification."""

from __future__ import annotations

from typing import Literal

from msgspec import UNSET, UnsetType

from radixrt.server.answers.base import Answer
from radixrt.server.answers.parts import PromptUsage


class Embedding(Answer, kw_only=True):
    """Vector of one prompt: numbers, or the base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class Embeddings(Answer, kw_only=True):
    """Vectors of all prompts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: PromptUsage


class RankedDocument(Answer):
    """Text of a document."""

    text: str


class Ranked(Answer):
    """Relevance of one document."""

    index: int
    relevance_score: float
    document: RankedDocument | UnsetType = UNSET


class Ranking(Answer):
    """Documents in descending order of relevance."""

    id: str
    model: str
    results: list[Ranked]
    usage: PromptUsage


class Scored(Answer, kw_only=True):
    """Score of one pair."""

    index: int
    object: Literal["score"] = "score"
    score: float


class Scores(Answer, kw_only=True):
    """Scores of all pairs."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Scored]
    usage: PromptUsage


class Classified(Answer):
    """Scores of the labels for one prompt; `label` is the one with the highest."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class Classification(Answer, kw_only=True):
    """Scores of the labels for all prompts."""

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[Classified]
    usage: PromptUsage
