"""`Standing`: where a state stands in its conversation, and thereby what may be said next."""

from __future__ import annotations

from dataclasses import dataclass

from radixrt.errors import shown
from radixrt.lang.core.primitives import Expr, TextWord
from radixrt.lang.errors import ProgramError


@dataclass(frozen=True, slots=True)
class Standing:
    """See the module's docstring. A program speaks in messages or in plain text, not in both.

    Attributes:
        role: of the open message, or None.
        form: "roles" or "plain", once something has been said.
    """

    role: str | None = None
    form: str | None = None

    def begin(self, role: str) -> Standing:
        """A message begins; raises ProgramError."""
        if self.role is not None:
            raise ProgramError(f"a {role} message begins inside the {self.role} message; end that first")
        if self.form == "plain":
            raise ProgramError(
                f"a {role} message after text without a role; put that text into rt.user(...) or rt.system"
            )
        return Standing(role, "roles")

    def end(self, role: str) -> Standing:
        """The open message ends, which is of that role ("": whichever); raises ProgramError."""
        if self.role is None:
            raise ProgramError(f"the end of a {role or 'message'} where none is open")
        if role and role != self.role:
            raise ProgramError(f"the end of a {role} message where the {self.role} message is open")
        return Standing(None, "roles")

    def say(self, item: Expr) -> Standing:
        """Something is said; raises ProgramError where it would have no place in the conversation."""
        if self.role is not None:
            return self
        if self.form == "roles":
            what = f"the text {shown(item.text)}" if isinstance(item, TextWord) else f"a {type(item).__name__.lower()}"
            raise ProgramError(f"{what} outside of a message; put it into rt.user(...) or rt.assistant(...)")
        return Standing(None, "plain")
