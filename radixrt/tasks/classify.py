"""Classification: scores of the labels of a sequence classification model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from radixrt.errors import RequestError
from radixrt.messages.client import EngineReady, Input, RequestOutput
from radixrt.messages.parts import Usage
from radixrt.messages.request import Envelope
from radixrt.messages.wire import Float32Array
from radixrt.tasks.run import ROWS_PER_REQUEST, activate, check_types, pooled_requests, usage_of, values_of


@dataclass(frozen=True)
class Classification:
    """Classified prompts.

    Attributes:
        scores: float32 [n, labels], in the order of the prompts: probabilities, or what else the model's files make of
            its logits; the reward of a reward model.
        classes: names of the labels.
        usage: token counts of all prompts together.
    """

    scores: Float32Array
    classes: tuple[str, ...]
    usage: Usage

    @property
    def labels(self) -> list[str]:
        """The label with the highest score of each prompt."""
        return [self.classes[i] for i in self.scores.argmax(1).tolist()]


class Classify:
    """A call of the task; see `TaskCall`.

    Args:
        inputs: texts, token ids and conversations.
        activation: False for logits, True for what the model's own files make of them.
        at_once: prompts of each request.

    Raises:
        RequestError: an argument is not valid, or the model is of another kind; names the argument.
    """

    def __init__(
        self,
        info: EngineReady,
        inputs: Sequence[Input],
        envelope: Envelope,
        *,
        activation: bool = True,
        at_once: int = ROWS_PER_REQUEST,
    ) -> None:
        if not inputs:
            raise RequestError("prompts must hold at least one prompt", param="prompts")
        check_types({"activation": activation}, {"activation": bool}, optional=False)
        if not info.labels:
            raise RequestError(
                f"{info.model} is not a sequence classification model (such as Qwen3ForSequenceClassification); "
                "/v1/decisions scores answers of a generative model",
                param="model",
                code="not_a_classifier",
            )
        self._classes = info.labels
        self._activation = info.activation if activation else "none"
        self.requests = pooled_requests(envelope, "classify", inputs, "last", at_once=at_once)

    def answer(self, outputs: Sequence[RequestOutput]) -> Classification:
        """Apply the activation to the logits."""
        logits = values_of(self.requests, outputs)
        return Classification(activate(logits, self._activation), self._classes, usage_of(outputs))
