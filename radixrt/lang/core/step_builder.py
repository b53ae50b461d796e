"""`StepBuilder`: converts the primitives that are appended to a state to steps of its branch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from radixrt.errors import shown
from radixrt.lang.core.branch import Step, Write, WriteJoined
from radixrt.lang.core.calls import Choose, Embed, Generate, Rerank
from radixrt.lang.core.embedding import EmbedTexts
from radixrt.lang.core.expr import Expr, Gen, ImageWord, Join, RoleBegin, RoleEnd, Select, Sequence_, TextWord
from radixrt.lang.core.reranking import RerankTexts
from radixrt.lang.core.transcript import Begin, End, Image, Text, Tools
from radixrt.lang.core.values import Names, Slot, TextlessSlot
from radixrt.lang.errors import ProgramError

if TYPE_CHECKING:
    from radixrt.lang.core.tools import Offer


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The open message and the form of a conversation. A program writes messages or plain text, not both.

    Attributes:
        role: role of the open message, or None.
        form: "roles" or "plain", once something has been appended.
    """

    role: str | None = None
    form: str | None = None

    def begin(self, role: str) -> ConversationState:
        """Return the state after the beginning of a message; raises ProgramError if no message can begin here."""
        if self.role is not None:
            raise ProgramError(f"a {role} message begins inside the {self.role} message; end that first")
        if self.form == "plain":
            raise ProgramError(
                f"a {role} message after text without a role; put that text into rt.user(...) or rt.system"
            )
        return ConversationState(role, "roles")

    def end(self, role: str) -> ConversationState:
        """Return the state after the end of the open message; raises ProgramError if the message has a different role.
        "" stands for any role."""
        if self.role is None:
            raise ProgramError(f"the end of a {role or 'message'} where none is open")
        if role and role != self.role:
            raise ProgramError(f"the end of a {role} message where the {self.role} message is open")
        return ConversationState(None, "roles")

    def say(self, item: Expr) -> ConversationState:
        """Return the state after a text or a call; raises ProgramError if a message is required but none is open."""
        is_picture = isinstance(item, ImageWord)
        if is_picture and self.role not in (None, "user"):
            raise ProgramError(f"a picture in the {self.role} message; models read pictures in rt.user(...)")
        if self.role is not None:
            return self
        if self.form == "roles":
            what = f"the text {shown(item.text)}" if isinstance(item, TextWord) else f"a {type(item).__name__.lower()}"
            if is_picture:
                raise ProgramError("a picture outside of a message; put it into rt.user(...)")
            raise ProgramError(f"{what} outside of a message; put it into rt.user(...) or rt.assistant(...)")
        return ConversationState(None, "plain")


class StepBuilder:
    """Checks that each primitive may stand at its position, and gives each value a slot under its name.

    Args:
        branch: id of the branch.
        defaults: sampling parameters for gens that do not set their own.
        names: slots of the names that can be read.
        conversation: state of the conversation at the end of the transcript.
    """

    def __init__(
        self,
        branch: str,
        defaults: Mapping[str, Any],
        names: Names | None = None,
        conversation: ConversationState | None = None,
    ) -> None:
        self.names = names or Names()
        self._branch = branch
        self._defaults = dict(defaults)
        self._conversation = conversation or ConversationState()

    @property
    def in_message(self) -> bool:
        """Whether a message is open."""
        return self._conversation.role is not None

    def fork(self) -> Names:
        """Return the names up to here, which branches inherit. Later names belong only to this state."""
        inherited = self.names
        self.names = Names(inherited)
        return inherited

    def child(self, branch: str, inherited: Names) -> StepBuilder:
        """The builder of a branch that continues from here."""
        return StepBuilder(branch, self._defaults, Names(inherited), self._conversation)

    def steps(self, item: Expr) -> list[Step]:
        """Return the steps of a primitive other than a program.

        Raises:
            ProgramError: the primitive may not stand here.
            RequestError: a sampling parameter of the program is not valid.
            TypeError: the primitive cannot be appended.
        """
        if isinstance(item, RoleBegin):
            self._conversation = self._conversation.begin(item.role)
            return [Write(Begin(item.role))]
        if isinstance(item, RoleEnd):
            self._conversation = self._conversation.end(item.role)
            return [Write(End())]
        if isinstance(item, TextWord) and not item.text:
            return []
        if isinstance(item, EmbedTexts):
            return [Embed(item, self._textless(item.name, "embed", "vectors"))]
        if isinstance(item, RerankTexts):
            return [Rerank(item, self._textless(item.name, "rerank", "ranked documents"))]
        self._conversation = self._conversation.say(item)
        if isinstance(item, TextWord):
            return [Write(Text(item.text))]
        if isinstance(item, ImageWord):
            return [Write(Image(item.picture))]
        if isinstance(item, Join):
            return [WriteJoined(item)]
        if isinstance(item, Gen):
            sampling = item.params(self._defaults)
            slot = self._named(item.name, "gen", item.tools, item.python_type)
            generate = Generate(item, sampling, slot)
            return [generate] if item.tools is None else [Write(Tools(item.tools)), generate]
        if isinstance(item, Select):
            return [Choose(item, self._named(item.name, "select"))]
        raise TypeError(f"{type(item).__name__} cannot be appended to a state")

    @contextlib.contextmanager
    def defaults(self, sampling: Mapping[str, Any]) -> Iterator[None]:
        """Inside the block, these sampling parameters apply to gens that do not set their own."""
        before, self._defaults = self._defaults, {**self._defaults, **sampling}
        try:
            yield
        finally:
            self._defaults = before

    def _named(self, name: str | None, kind: str, offer: Offer | None = None, python_type: Any = None) -> Slot:
        label = f'{kind} "{name}"' if name else f"a {kind} without a name"
        slot = Slot(name, label, self._branch, None if offer is None else offer.functions, python_type)
        if name is not None:
            self.names[name] = slot
        return slot

    def _textless(self, name: str, kind: str, content: str) -> Slot:
        self.names[name] = slot = TextlessSlot(name, f'{kind} "{name}"', self._branch, content)
        return slot


def flat(item: Expr) -> Iterator[Expr]:
    """The primitives of a nested sequence, one by one."""
    if isinstance(item, Sequence_):
        for part in item.items:
            yield from flat(part)
    else:
        yield item
