"""`check_exchange`: a request and its answer against the OpenAPI description of the server."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import httpx
import jsonschema

from radixrt.server.routes.description import describe
from radixrt.server.routes.table import ROUTES


@cache
def description() -> dict[str, Any]:
    return describe(ROUTES, needs_key=False)


@cache
def _validator(schema: str) -> jsonschema.Draft202012Validator:
    """Validate against a schema of the description, given as JSON."""
    return jsonschema.Draft202012Validator({**json.loads(schema), "components": description()["components"]})


def validate(value: Any, schema: dict[str, Any]) -> None:
    error = jsonschema.exceptions.best_match(_validator(json.dumps(schema)).iter_errors(value))
    assert error is None, f"{error.message} at {error.json_path} of {str(value)[:2000]}"


def operation(method: str, path: str) -> dict[str, Any] | None:
    for name, methods in description()["paths"].items():
        pattern = re.escape(name).replace(r"\{model\}", ".*").replace(r"\{file\}", "[^/]+")
        if re.fullmatch(re.sub(r"\\\{\w+\\\}", "[^/]+", pattern), path) and method.lower() in methods:
            found: dict[str, Any] = methods[method.lower()]
            return found
    return None


def check_exchange(method: str, path: str, sent: Any, answer: httpx.Response) -> None:
    """Hold an answer to the description, and a request that was not refused."""
    found = operation(method, path)
    if found is None:
        return
    if sent is not None and answer.status_code < 400:
        validate(sent, found["requestBody"]["content"]["application/json"]["schema"])
    status = str(answer.status_code)
    response = found["responses"].get(status) or found["responses"].get(f"{status[0]}XX")
    assert response is not None, f"no answer {status} of {method} {path} is described"
    kind = answer.headers["content-type"].partition(";")[0]
    content = response["content"][kind]
    if kind == "application/json":
        validate(answer.json(), content["schema"])
    elif kind == "text/event-stream":
        for line in answer.text.splitlines():
            data = line.removeprefix("data: ")
            if data == line or data == "[DONE]":
                continue
            event = json.loads(data)
            failed = set(event) == {"error"}
            validate(event, {"$ref": "#/components/schemas/ErrorBody"} if failed else content["x-item-schema"])
