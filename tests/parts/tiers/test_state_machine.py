"""Random sequences of all events of a scheduler with tiers, whose moves end late, fail, or are lost."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.parts.tiers.events import CHOICES, Events


class TiersMachine(RuleBasedStateMachine):
    @initialize(data=st.data())
    def start(self, data: st.DataObject) -> None:
        self.events = Events(
            **{key: data.draw(st.sampled_from(values)) for key, values in CHOICES.items()}, check=False
        )

    @rule(data=st.data())
    def event(self, data: st.DataObject) -> None:
        self.events.happens(lambda values: data.draw(st.sampled_from(values)))

    def teardown(self) -> None:
        if hasattr(self, "events"):
            self.events.end()
            self.events.h.close()


TestTiers = TiersMachine.TestCase
TestTiers.settings = settings(max_examples=25, stateful_step_count=50, deadline=None)
