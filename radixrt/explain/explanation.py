"""`explain`: an analysis of a constraint before generation: the enforced parts, the backend and the cost.

Needs no engine, only the tokenizer of the model, because the shortest output and the masks depend on the tokens. A
constraint is compiled by the same worker process as in an engine, so a constraint that would time out in the engine
times out here as well.
"""

from __future__ import annotations

import atexit
import functools
import itertools
import select
import time
from typing import Any

from radixrt.config import DEFAULT_MODEL, ConstrainedConfig, ModelConfig
from radixrt.constrained.compile.client import CompileClient
from radixrt.constrained.compile.protocol import CompileResult, WorkerSettings
from radixrt.constrained.productions import AnyOrder, Productions
from radixrt.constrained.schema import SchemaRefused, Unsupported, normalize
from radixrt.constrained.vocabulary import Vocabulary
from radixrt.constrained.well_formed import read_json
from radixrt.constraint import Constraint, as_structured_options
from radixrt.errors import RequestError
from radixrt.explain.normalized_schema import normalized_schema
from radixrt.explain.report import Cost, Finding, Report
from radixrt.explain.text_checker import TextChecker
from radixrt.models.loading.source import prepare_model
from radixrt.models.model_config import load_model_spec
from radixrt.sampling_params import SamplingParams

POLL_S = 0.05


def explain(
    *,
    json_schema: Any = None,
    regex: str | None = None,
    ebnf: str | None = None,
    choices: Any = None,
    structural_tag: Any = None,
    model: str | None = None,
    **options: Any,
) -> Report:
    """Analyze one constraint.

    Args:
        json_schema, regex, ebnf, choices, structural_tag: the constraint, as `SamplingParams` takes it; exactly one.
        model: whose tokenizer counts: a model folder, a hub id, or the embedded default.
        options: fields of `StructuredOptions`, e.g. whitespace=2 or on_unsupported="ignore".

    Returns:
        A report, for constraints that are refused too.

    Raises:
        RequestError: no constraint or two of them, an unknown option, or a Python type without a JSON form.
        ModelLoadError: there is no such model.
    """
    params = SamplingParams(
        json_schema=json_schema,
        regex=regex,
        ebnf=ebnf,
        choices=choices,
        structural_tag=structural_tag,
        structured=as_structured_options(options),
    ).validate()
    if params.constraint is None:
        raise RequestError("explain needs json_schema, regex, ebnf, choices or structural_tag", param="json_schema")
    return _explainer(model).explain(params.constraint)


@functools.lru_cache(maxsize=4)
def _explainer(model: str | None) -> Explainer:
    made = Explainer(model)
    atexit.register(made.close)
    return made


class Explainer:
    """Analyzes constraints for one model. Owns a worker process: close the explainer, or use it in a `with` block.

    Args:
        model: a model folder, a hub id, or None for the embedded default.
        compile_timeout_s: a constraint that takes longer is refused; the engine's own default if not given.

    Raises:
        ModelLoadError: there is no such model.
    """

    def __init__(self, model: str | None = None, *, compile_timeout_s: float | None = None) -> None:
        folder = prepare_model(ModelConfig(model=model or DEFAULT_MODEL, load_format="dummy")).folder
        spec = load_model_spec(folder, reads_images=False)
        self._timeout_s = compile_timeout_s or ConstrainedConfig().compile_timeout_s
        settings = WorkerSettings(str(folder), spec.vocab_size, list(spec.eos_token_ids))
        # The second worker takes over if the first must be killed.
        self._client = CompileClient(settings, max_workers=2)
        self._client.start(time.monotonic())
        self._jobs = itertools.count()
        self._vocabulary = Vocabulary.from_folder(folder, spec.vocab_size, spec.eos_token_ids)
        self._ask(Constraint(kind="json_schema", source="true"))  # warms up, so that no figure includes one-time work

    def __enter__(self) -> Explainer:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker process."""
        self._client.close()

    def explain(self, constraint: Constraint) -> Report:
        """Return a report, also for a constraint that is refused."""
        found: dict[str, Any] = {}
        try:
            if constraint.kind == "json_schema":
                found |= _normalize_fields(constraint)
            if "error" not in found:
                found |= self._compile(constraint)
        except RequestError as error:
            found["error"] = error
        return Report(constraint, **found)

    def _compile(self, constraint: Constraint) -> dict[str, Any]:
        """Return the report's fields from compiling the constraint. Raises RequestError."""
        result = self._ask(constraint)
        if result.error is not None:
            error = result.error
            raise RequestError(error.message, param=error.param, code=error.code, status=error.status)
        compiled = result.compiled
        assert compiled is not None
        if not compiled.productions:
            raise RequestError(f"no text can be explained; {compiled.ignored[0]}", param="ebnf", code="not_translated")
        productions = Productions.decode(compiled.productions)
        checker = TextChecker(productions, self._vocabulary, compiled.obligations)
        shortest = checker.shortest()
        return {
            "backend": compiled.backend,
            "why": compiled.why,
            "cost": Cost(productions.size, compiled.compile_s, compiled.mask_s or 0.0),
            "in_any_order": tuple([len(e.parts) for e in productions.layout.order if isinstance(e, AnyOrder)]),
            "min_tokens": compiled.min_tokens,
            "min_characters": len(shortest),
            "shortest": shortest,
            "_checker": checker,
        }

    def _ask(self, constraint: Constraint) -> CompileResult:
        """Return the worker's result; the timeout is the engine's and begins once the worker has started."""
        self._client.submit(next(self._jobs), constraint, time.monotonic(), self._timeout_s, thorough=True)
        while True:
            select.select([self._client.fileno()], [], [], POLL_S)
            if results := self._client.poll(time.monotonic()):
                return results[0]


def _normalize_fields(constraint: Constraint) -> dict[str, Any]:
    """Return the report's fields from normalizing the schema."""
    options = constraint.options
    try:
        schema = normalize(
            read_json(constraint.source, "json_schema"),
            on_unsupported=options.on_unsupported,
            closed=bool(options.closed),
            formats=options.formats,
            key_order=options.key_order,
        )
    except (SchemaRefused, Unsupported) as error:
        each = error.errors if isinstance(error, SchemaRefused) else [error]
        return {"error": error, "refused": [Finding(e.pointer, e.keyword, e.reason, e.fix) for e in each]}
    return {
        "draft": schema.draft,
        "normalized": normalized_schema(schema),
        "ignored": [Finding(e.pointer, e.keyword, e.reason, e.fix) for e in schema.ignored],
        "annotations": [Finding(pointer, keyword) for pointer, keyword in schema.annotations],
        "misspelt": [
            Finding(at, name, "an unknown keyword constrains nothing", f"Is {meant} meant?")
            for at, name, meant in schema.misspelt
        ],
        "_schema": schema,
    }
