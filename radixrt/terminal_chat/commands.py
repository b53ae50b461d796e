"""Commands inside a chat: /system, /schema, /save, /clear and /help change or show the conversation."""

from __future__ import annotations

import difflib
import json
from pathlib import Path

from radixrt.errors import RequestError
from radixrt.terminal_chat.conversation import Conversation

HELP = """\
/system TEXT   set the system message; without TEXT, remove it
/schema FILE   answers satisfy the JSON schema in FILE; without FILE, free text again
/save FILE     write the messages as JSON
/clear         forget the messages; the system message and the schema stay
/help          show this
/quit          leave, as Ctrl-D does
Ctrl-C ends an answer and keeps what came of it. //text sends a message that begins with a slash."""

NAMES = ("/system", "/schema", "/save", "/clear", "/help", "/quit")


class Commands:
    """Carries out the commands of one chat."""

    def __init__(self, conversation: Conversation, model: str) -> None:
        self._conversation = conversation
        self._model = model
        self._saved: set[Path] = set()

    def run(self, line: str) -> str | None:
        """Carry out a line such as "/system Be brief."; return the confirmation to show, None to leave the chat.

        Raises:
            RequestError: there is no such command, or its file cannot be read or written; says the fix.
        """
        name, _, rest = line.partition(" ")
        rest = rest.strip()
        match name:
            case "/quit" | "/exit":
                return None
            case "/help":
                return HELP
            case "/clear":
                self._conversation.turns.clear()
                return "The messages are forgotten."
            case "/system":
                self._conversation.system = rest or None
                return "The system message is set." if rest else "There is no system message now."
            case "/schema":
                return self._schema(rest)
            case "/save":
                return self._save(rest)
            case _:
                close = difflib.get_close_matches(name, NAMES, 1)
                meant = f"did you mean {close[0]}?" if close else "/help lists the commands"
                raise RequestError(f"there is no command {name}; {meant}")

    def _schema(self, file: str) -> str:
        if not file:
            self._conversation.schema = None
            return "Answers are free text."
        self._conversation.schema = read_schema(file)
        return f"Answers satisfy {file}."

    def _save(self, file: str) -> str:
        if not file:
            raise RequestError("/save needs the name of a file")
        path = Path(file).expanduser()
        if path.exists() and path.resolve() not in self._saved:
            raise RequestError(f"{file} exists, and this chat did not write it; choose another name")
        messages = self._conversation.messages()
        text = json.dumps({"model": self._model, "messages": messages}, ensure_ascii=False, indent=2)
        try:
            path.write_text(text + "\n", encoding="utf-8")
        except OSError as error:
            raise RequestError(f"{file} cannot be written: {error.strerror}") from None
        self._saved.add(path.resolve())
        return f"{len(messages)} messages are in {file}."


def read_schema(file: str) -> dict[str, object]:
    """Read a JSON schema.

    Raises:
        RequestError: the file cannot be read, or holds no JSON object; names the file.
    """
    try:
        schema = json.loads(Path(file).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"the schema {file} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise RequestError(f"the schema {file} is no JSON: {error}") from None
    if not isinstance(schema, dict):
        raise RequestError(f"the schema {file} must be a JSON object, not {type(schema).__name__}")
    return schema
