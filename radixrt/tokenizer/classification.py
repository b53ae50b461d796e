"""`ClassifyState`: state of one live classification request, from its prompts to the scores of their labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from radixrt.errors import RequestError
from radixrt.messages.client import ClassifyReq
from radixrt.messages.request import Request
from radixrt.messages.wire import Float32Array, pack_f32
from radixrt.models.classifier_spec import ClassifierSpec
from radixrt.tokenizer.pooled_state import PooledState, activate, check_finite, check_prompts, pooled_request


def check_classification(req: ClassifyReq) -> None:
    """Check that prompts are given in exactly one form, and their number; raises RequestError naming the field."""
    if req.chat is None:
        check_prompts(req.prompts, req.input_ids)
    elif req.prompts is not None or req.input_ids is not None:
        raise RequestError("exactly one of prompts, input_ids and messages must be given", param="prompts")


class ClassifyState(PooledState):
    """Converts a request's logits to the scores of its labels."""

    def __init__(self, req: ClassifyReq, prompts: Sequence[bytes], spec: ClassifierSpec) -> None:
        super().__init__(req.rid)
        self._req = req
        self._prompts = list(prompts)
        self._spec = spec

    def request(self) -> Request:
        return pooled_request(self._req, self._prompts, "last")

    def read(self, values: Float32Array) -> Mapping[str, Any]:
        """Apply the activation: [n * labels] -> `pooled_scores`, the same."""
        logits = check_finite(values).reshape(len(self._prompts), len(self._spec.labels))
        return {"pooled_scores": pack_f32(activate(logits, self._spec.activation if self._req.activation else "none"))}
