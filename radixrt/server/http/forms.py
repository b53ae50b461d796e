"""Bodies of the type multipart/form-data (RFC 7578): the JSON of a request, with files beside it."""

from __future__ import annotations

import re

from radixrt.errors import RequestError, shown

FORM_TYPE = "multipart/form-data"
JSON_PART = "request"
"""Name of the part that has the request's JSON, as TypeSafe's client sends it."""

MAX_PARTS = 256
MAX_HEAD_BYTES = 8 * 1024
"""Most bytes of the header lines of a part."""

_BOUNDARY = re.compile(r';\s*boundary=(?:"([^"]{1,70})"|([^\s;",]{1,70}))', re.ASCII | re.IGNORECASE)
_NAME = re.compile(
    rb'^content-disposition:[^\r\n]*?;\s*name=(?:"([^"\r\n]*)"|([^\s;"]+))', re.IGNORECASE | re.MULTILINE
)
_END_OF_BOUNDARY = re.compile(rb"[ \t]*\r\n")


class Form:
    """The form that a request may send in place of JSON.

    Attributes:
        files: contents of the parts beside the JSON, by name, once `read` has returned.
    """

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type
        self.files: dict[str, bytes] = {}

    def read(self, body: bytes) -> bytes:
        """Return the request's JSON: the part `request` of a form, or the body itself where it is no form.

        Raises:
            RequestError: 400, the body is not the form that its content type announces.
        """
        if not is_form(self._content_type):
            return body
        found = _BOUNDARY.search(self._content_type)
        if found is None:
            raise _malformed("its content type names no boundary")
        self.files = _parts(body, (found[1] or found[2]).encode())
        if JSON_PART not in self.files:
            raise _malformed(f"it needs a part named {JSON_PART!r}, with the JSON of the request")
        return self.files.pop(JSON_PART)


def is_form(content_type: str) -> bool:
    return content_type.partition(";")[0].strip().lower() == FORM_TYPE


def _parts(body: bytes, boundary: bytes) -> dict[str, bytes]:
    """Return the contents of a form's parts by name; a later part may not have the name of an earlier one."""
    mark = b"--" + boundary
    if not body.startswith(mark):
        raise _malformed("it does not begin with its boundary")
    parts: dict[str, bytes] = {}
    at = len(mark)
    while body[at : at + 2] != b"--":
        if len(parts) == MAX_PARTS:
            raise _malformed(f"it has more than {MAX_PARTS} parts")
        line_end = _END_OF_BOUNDARY.match(body, at)
        end = body.find(b"\r\n" + mark, at)
        if line_end is None or end < 0:
            raise _malformed("it does not end with its boundary")
        head_end = body.find(b"\r\n\r\n", line_end.end(), min(end, line_end.end() + MAX_HEAD_BYTES))
        named = _NAME.search(body, line_end.end(), max(head_end, line_end.end()))
        if named is None:
            raise _malformed("one of its parts has no header Content-Disposition: form-data; name=...")
        name = (named[1] if named[1] is not None else named[2]).decode(errors="replace")
        if name in parts:
            raise _malformed(f"two of its parts are named {shown(name)}")
        parts[name] = body[head_end + 4 : end]
        at = end + 2 + len(mark)
    return parts


def _malformed(reason: str) -> RequestError:
    return RequestError(f"the {FORM_TYPE} body cannot be read: {reason}", code="invalid_form")
