"""POST /v1/embeddings: vectors of texts, as OpenAI has it.

input               str, [str], [int] or [[int]]: one prompt or at most 2,048, as texts or as token ids
encoding_format     "float" or "base64" (float32, little-endian)
dimensions          cut vectors to their first numbers, so many, for models trained so (Matryoshka)
normalize           scale vectors to length 1, after the cut; by default what the model's own files say
prompt_name         name of the model's prompt that is written before each text, e.g. "query"; default: its default one
prompt              this text is written before each text, in place of a prompt of the model
model, rid, priority, cache_salt, timeout, program (as /generate has it)
-> `radixrt.server.answers.pooling.Embeddings`
"""

from __future__ import annotations

import base64
from typing import Any, Literal

import msgspec
from starlette.responses import Response

from radixrt.client.validation import MAX_ROWS
from radixrt.messages.client import EngineReady
from radixrt.server.access.request_context import RequestContext
from radixrt.server.answers.parts import prompt_usage
from radixrt.server.answers.pooling import Embedding, Embeddings
from radixrt.server.http.connection import answered
from radixrt.server.http.receive import received
from radixrt.server.protocol.fields import RoutingFields, envelope_of
from radixrt.server.protocol.prompts import read_inputs
from radixrt.server.serving.service import Service
from radixrt.tasks.embed import Embed


class EmbeddingRequest(RoutingFields, kw_only=True):
    """POST /v1/embeddings"""

    input: str | list[str | int | list[int]]
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None
    prompt_name: str | None = None
    prompt: str | None = None


embedding_decoder = msgspec.json.Decoder(EmbeddingRequest)


@received(embedding_decoder)
def embeddings(service: Service, context: RequestContext, body: EmbeddingRequest, info: EngineReady) -> Response:
    """See the module's docstring."""
    if info.tokenizer_info and info.relevance.scorer != "cosine" and not info.labels:
        service.untrained_vectors(info.model)
    asked = Embed(
        info,
        read_inputs(body.input, info),
        envelope_of(body, context),
        name="input",
        dimensions=body.dimensions,
        normalize=body.normalize,
        prompt_name=body.prompt_name,
        prompt=body.prompt,
        at_once=MAX_ROWS,
    )

    async def answer() -> Embeddings:
        found = await service.groups.run(context, asked, {})
        if body.encoding_format == "base64":
            values: list[Any] = [base64.b64encode(vector.tobytes()).decode() for vector in found.vectors]
        else:
            values = found.vectors.tolist()
        data = [Embedding(index=i, embedding=value) for i, value in enumerate(values)]
        return Embeddings(data=data, model=service.model_name, usage=prompt_usage(found.usage))

    return answered(answer)
