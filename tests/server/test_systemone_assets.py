"""Pictures in /v1/systemone: assets in JSON, and in forms as TypeSafe's own client writes them; refused ones."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
import typesafe_sdk
from msgspec.structs import replace
from typesafe_sdk import Choice, Image, Noul, Score, TypeSafeClient

from radixrt.config import ServerConfig
from radixrt.errors import RequestError
from radixrt.messages.parts import ImageInput
from radixrt.server.http.forms import MAX_PARTS, Form
from radixrt.server.protocol import assets
from radixrt.server.serving import request_groups
from tests.server.fake_engine import FakeEngine, Sent
from tests.server.helpers import Caller, check_error
from tests.vision.pictures import picture

FIRST, SECOND = picture(40, 40), picture(40, 40, 1)
NOUL = {"type": "noul", "instructions": "Is it a cat?"}
IMAGE = {"type": "image"}


def encoded(data: bytes = FIRST, **fields: Any) -> dict[str, Any]:
    return {"type": "image", "format": "png", "data_base64": base64.b64encode(data).decode(), **fields}


def ask(caller: Caller, state: Any, given: Any = None, **questions: Any) -> Any:
    body = {
        "state": state,
        "questions": questions or {"q": NOUL},
        "assets": {"photo": encoded()} if given is None else given,
    }
    return caller.post("/v1/systemone", body)


def content_of(question: Sent) -> Any:
    assert question.chat is not None
    (message,) = json.loads(question.chat.messages)
    return message["content"]


def files_of(question: Sent) -> list[bytes]:
    assert question.chat is not None
    return [image.data for image in question.chat.images]


def text(written: str) -> dict[str, str]:
    return {"type": "text", "text": written}


# --- where a picture stands ---


@pytest.mark.parametrize(
    ("state", "parts"),
    [
        ("photo", [IMAGE]),
        ("Look: photo.", [text("Look: "), IMAGE, text(".")]),
        ("photo and photo", [IMAGE, text(" and "), IMAGE]),
        ({"photo": "photo"}, [text('{"photo":"'), IMAGE, text('"}')]),
        (["a", {"b": 'the "photo" é'}], [text('["a",{"b":"the \\"'), IMAGE, text('\\" é"}]')]),
    ],
)
def test_an_asset_stands_where_its_name_is(caller: Caller, state: Any, parts: list[Any]) -> None:
    body = json.dumps(
        {"state": state, "questions": {"q": NOUL}, "assets": {"photo": encoded(detail="low")}}, separators=(",", ":")
    )
    answer = caller.post("/v1/systemone", content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200, answer.text
    (question,) = caller.engine.questions
    *before, gap, asked = content_of(question)
    assert [*before, gap][: len(parts)] == parts
    assert f"{gap['text'] if len(before) == len(parts) else ''}{asked['text']}".endswith("Answer with Yes or No.")
    assert question.chat is not None
    assert question.chat.images == [ImageInput(FIRST, "low", "assets.photo")] * sum(part == IMAGE for part in parts)


def test_escapes_in_json_are_read(caller: Caller) -> None:
    """Encoders differ in what they escape; Go's writes `<` as an escape."""
    name = "<image:ü/1>"
    for written in ("<image:ü/1>", "\\u003cimage:\\u00fc\\/1\\u003e"):
        rest = json.dumps({"questions": {"q": NOUL}, "assets": {name: encoded()}})
        body = f'{{"state": {{"a": "x {written}"}}, {rest[1:]}'
        answer = caller.post("/v1/systemone", content=body.encode(), headers={"content-type": "application/json"})
        assert answer.status_code == 200, answer.text
        assert content_of(caller.engine.questions[-1])[:3] == [text('{"a": "x '), IMAGE, text('"}')]


def test_the_longest_name_counts(caller: Caller) -> None:
    given = {"photo": encoded(FIRST), "photo 2": encoded(SECOND)}
    assert ask(caller, "photo, photo 2", given).status_code == 200
    assert files_of(caller.engine.questions[0]) == [FIRST, SECOND]


def test_pictures_of_a_question_go_to_that_question_alone(caller: Caller) -> None:
    given = {"one": encoded(FIRST), "two": encoded(SECOND)}
    questions = {
        "plain": NOUL,
        "same": {"type": "noul", "instructions": "Like two?", "criteria": {"true": "as two is"}},
        "which": {"type": "choice", "criteria": {"two": ["two"], "none": None}},
        "level": {"type": "score", "criteria": ["less than two", "more"]},
    }
    answer = ask(caller, "one", given, **questions).json()
    plain, same, which, level = caller.engine.questions
    assert [files_of(each) for each in (plain, same, which, level)] == [
        [FIRST], [FIRST, SECOND, SECOND], [FIRST, SECOND], [FIRST, SECOND],
    ]  # fmt: skip
    assert content_of(plain)[0] == content_of(same)[0] == IMAGE
    assert content_of(same)[1:6] == [text("\n\n"), text("Like "), IMAGE, text("?\n\nYes means: as "), IMAGE]
    assert content_of(which)[2:4] == [text('Answer with one of these, and nothing else:\n- "two": ["'), IMAGE]
    assert which.rows[0].continuations.texts == ['"two"', '"none"'], "names of options are answers, which are texts"
    assert answer["answers"]["level"]["legend"] == {"0": "less than two", "1": "more"}


def test_pictures_of_questions_alone_leave_the_state_a_text(caller: Caller) -> None:
    asked = {"type": "noul", "instructions": "photo?"}
    assert ask(caller, "The state.", None, q=NOUL, p=asked).status_code == 200
    plain, shown = caller.engine.questions
    assert content_of(plain).startswith("The state.\n\nIs it a cat?")
    assert content_of(shown)[:3] == [text("The state."), text("\n\n"), IMAGE]


# --- TypeSafe's client ---


def test_the_client_of_typesafe(live: str, engine: FakeEngine) -> None:
    first, second = Image(FIRST), Image.from_base64(base64.b64encode(SECOND).decode())
    with TypeSafeClient(base_url=live, api_key="none", model="fake", compression=False) as client:
        made = client.system_one(
            state={"photo": first, "note": f"beside {first}"},
            questions={
                "cat": Noul(instructions="A cat?"),
                "like": Choice(instructions=["Which is like", second], criteria={"a": second, "b": None}),
                "level": Score(instructions="How good?", criteria=["bad", "good"]),
            },
        )
        assert set(made.answers) == {"cat", "like", "level"}
        cat, like, _ = engine.questions
        assert files_of(cat) == [FIRST, FIRST]
        assert content_of(cat)[1:4:2] == [IMAGE, IMAGE]
        assert files_of(like) == [FIRST, FIRST, SECOND, SECOND]
        client.system_one(state={"photo": first}, questions={"q": Noul(instructions="?")}, assets={"photo": first})
        assert files_of(engine.questions[-1]) == [FIRST]
        with client.attach_assets(second):
            client.system_one(state=f"Look: {second}", questions={"q": Noul(instructions="?")})
        assert content_of(engine.questions[-1])[:2] == [text("Look: "), IMAGE]
        with pytest.raises(typesafe_sdk.TypeSafeBadRequestError, match=r"assets\.alias is not used"):
            client.system_one(state="no picture", questions={"q": Noul(instructions="?")}, assets={"alias": first})


# --- refused ---


@pytest.mark.parametrize(
    ("given", "param", "message"),
    [
        ({}, "assets", "must hold 1 to 64"),
        ({f"photo{i}": encoded() for i in range(65)}, "assets", "must hold 1 to 64"),
        ({" ": encoded()}, "assets", "1 to 256 characters"),
        ({"x" * 257: encoded()}, "assets", "1 to 256 characters"),
        ({"photo": {}}, "assets.photo.data_base64", "is required"),
        ({"photo": {"type": "video", "data_base64": ""}}, "assets.photo.type", "must be image, not 'video'"),
        ({"photo": encoded(data_base64="%%")}, "assets.photo", "is not valid base64"),
        ({"photo": encoded(detail="best")}, "assets.photo.detail", "must be auto, low, high"),
        ({"photo": {"part": "asset-0"}}, "assets.photo.part", "is no part of the request; send it as part"),
        ({"other": encoded()}, "assets.other", "is not used"),
        ({"photo": 5}, "assets[...]", "Expected"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_refused_assets(caller: Caller, given: Any, param: str, message: str) -> None:
    assert message in check_error(ask(caller, "photo", given), 400, param)
    assert not caller.engine.questions


def test_uses_are_bounded(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "MAX_USES", 5)
    assert ask(caller, "photo " * 5).status_code == 200
    assert "may occur 5 times" in check_error(ask(caller, ["photo", "photo " * 5]), 400, "assets.photo")


def test_a_picture_counts_as_often_as_it_is_sent_to_the_engine(caller: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_groups, "MAX_COPIES_BYTES", 5 * len(FIRST))
    assert ask(caller, "photo " * 5).status_code == 200
    check_error(ask(caller, "photo " * 6), 400, "assets.photo", "images_too_large")
    caller.engine.client.info = replace(caller.engine.client.info, max_images=4)
    check_error(ask(caller, "photo " * 5), 400, "assets.photo", "too_many_images")
    assert len(caller.engine.questions) == 1


def form(*parts: tuple[str, bytes], boundary: str = "b") -> bytes:
    lines = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n'.encode() + data + b"\r\n"
        for name, data in parts
    ]
    return b"".join([*lines, f"--{boundary}--\r\n".encode()])


def send(caller: Caller, body: bytes, kind: str = "multipart/form-data; boundary=b", **headers: str) -> Any:
    return caller.post("/v1/systemone", content=body, headers={"content-type": kind, **headers})


def request(**given: Any) -> bytes:
    return json.dumps({"state": "photo", "questions": {"q": NOUL}, "assets": given}).encode()


PART = {"photo": {"part": "file"}}


def test_a_form(caller: Caller) -> None:
    for kind in ("multipart/form-data; boundary=b", 'Multipart/Form-Data; charset=utf-8; boundary="b"'):
        assert send(caller, form(("file", FIRST), ("request", request(**PART))), kind).status_code == 200
        assert files_of(caller.engine.questions[-1]) == [FIRST]


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (form(("request", request(**PART))), "assets.photo.part", "is no part of the request"),
        (form(("request", request(**PART)), ("file", FIRST), ("more", b"x")), "assets", "'more' of the form belongs"),
        (form(("request", request(photo={"part": "file"}, other={"part": "file"})), ("file", FIRST)),
         "assets.other.part", "another asset has already"),
        (form(("request", b'{"state": "x", "questions": {"q": {"type": "noul", "instructions": "y"}}}'), ("f", b"")),
         "assets", "'f' of the form belongs to no asset"),
        (form(("request", b"{")), None, "JSON"),
        (form(("file", FIRST)), None, "needs a part named 'request'"),
        (form(("request", b"{}"), ("request", b"{}")), None, "two of its parts are named 'request'"),
        (form(("request", b"{}"), boundary="c"), None, "does not begin with its boundary"),
        (form(("request", b"{}"))[:-6], None, "does not end with its boundary"),
        (b"--b", None, "does not end with its boundary"),
        (b"--b\r\n\r\n{}\r\n--b--", None, "no header Content-Disposition"),
        (form(*((f"p{i}", b"") for i in range(MAX_PARTS + 1))), None, f"more than {MAX_PARTS} parts"),
        (b"", None, "does not begin"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_refused_forms(caller: Caller, body: bytes, param: str | None, message: str) -> None:
    assert message in check_error(send(caller, body), 400, param)
    assert not caller.engine.questions


def test_a_form_without_a_boundary(caller: Caller) -> None:
    answer = send(caller, form(("request", b"{}")), "multipart/form-data")
    assert "names no boundary" in check_error(answer, 400, None, "invalid_form")


def test_forms_of_pages(engine: FakeEngine) -> None:
    """A browser sends a form to another origin without asking, but names the page's origin."""
    page, body = "https://elsewhere.example", form(("request", request(**PART)), ("file", FIRST))
    check_error(send(Caller(engine), body, origin=page), 403, "Origin")
    assert not engine.questions
    assert send(Caller(engine, ServerConfig(cors_origins=page)), body, origin=page).status_code == 200


def test_files_keep_every_byte() -> None:
    files = {"a": b"", "b": b"\r\n", "c": b"--b", "d": b"\r\n\r\n--", "e": bytes(range(256)), "f": b"\r\n-b\r\n--"}
    read = Form("multipart/form-data; boundary=bound")
    assert read.read(form(("request", b"{}"), *files.items(), boundary="bound")) == b"{}"
    assert read.files == files


def test_mutated_forms_are_read_or_refused() -> None:
    rng = random.Random(0)
    whole = form(("request", b"{}"), ("file", FIRST[:60]), ("more", b"\r\n--"))
    refused = []
    for _ in range(2_000):
        body = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(body))
            new = rng.choice([b"", b"\r\n", b"--b", b"--", b'"', b"\x00", bytes([rng.randrange(256)])])
            body[at : at + rng.randint(0, 4)] = new
        try:
            Form("multipart/form-data; boundary=b").read(bytes(body))
        except RequestError as error:
            refused.append(error.code)
    assert 200 < len(refused) < 2_000
    assert set(refused) == {"invalid_form"}
