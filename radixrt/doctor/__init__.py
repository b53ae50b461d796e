"""`radixrt doctor`: checks this machine for serving and names the command that fixes each missing part."""

from __future__ import annotations

import dataclasses
import json

from radixrt.doctor.advice import advise
from radixrt.doctor.model import model_needs
from radixrt.doctor.probes import gather
from radixrt.doctor.report import as_dict, as_text
from radixrt.doctor.roles import role_layout


def run(
    *,
    device: str,
    attention_backend: str,
    as_json: bool,
    model: str | None = None,
    dtype: str = "auto",
    tp: int = 1,
    pp: int = 1,
    quantization: str = "auto",
    text_only: bool = False,
    disk: str | None = None,
    roles: str | None = None,
) -> int:
    """Examine the machine and print the findings; return 0 if serving works as requested, else 1. Errors of probes are
    findings and never raise.

    Args:
        device, attention_backend, dtype, tp, pp, quantization, text_only: values of the options of these names.
        model: folder of a model to look at too.
        disk: folder whose disk is to be measured too.
        roles: value of the option of this name; None without replicas.
    """
    facts = gather(device=device, attention_backend=attention_backend, model=model, disk=disk)
    facts = dataclasses.replace(facts, ranks=tp * pp)
    if roles is not None:
        facts = dataclasses.replace(facts, layout=role_layout(roles, facts.memory_left))
    if model is not None:
        kind = "cuda" if facts.uses_cuda else "cpu"
        needs = model_needs(
            model,
            device=kind,
            free_bytes=facts.device_memory,
            dtype=dtype,
            tp=tp,
            pp=pp,
            quantization=quantization,
            text_only=text_only,
        )
        facts = dataclasses.replace(facts, model=needs)
    findings = advise(facts)
    print(json.dumps(as_dict(facts, findings), indent=2) if as_json else as_text(facts, findings))
    return int(any(finding.severity == "error" for finding in findings))
