"""`ProgramUsage`: the sums over the calls of a run."""

from __future__ import annotations

from dataclasses import dataclass

from radixrt.lang.observe.run_log import RunLog


@dataclass(frozen=True)
class ProgramUsage:
    """See the module's docstring. Tokens are as the backend counts them.

    Attributes:
        calls: of the model, failed ones included; `errors` are those.
        cached_tokens: prompt tokens that were not computed again.
        forced_tokens: output tokens that a grammar left no choice about.
        rerendered: calls whose conversation had to be rendered whole, because the chat template rewrote what had been
            sent before.
    """

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    forced_tokens: int = 0
    rerendered: int = 0
    errors: int = 0


def usage_of(log: RunLog, branch: str) -> ProgramUsage:
    """Of a branch and all that was forked from it."""
    calls = log.calls_of(branch)
    return ProgramUsage(
        calls=len(calls),
        prompt_tokens=sum(call.prompt_tokens for call in calls),
        cached_tokens=sum(call.cached_tokens for call in calls),
        completion_tokens=sum(call.completion_tokens for call in calls),
        forced_tokens=sum(call.forced_tokens for call in calls),
        rerendered=sum(call.rerendered for call in calls),
        errors=sum(call.error is not None for call in calls),
    )
