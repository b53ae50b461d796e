"""Pictures in requests: from each API's form to the engine's request, and what is refused before the engine."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace

from radixrt.chat.dialect import make_dialect
from radixrt.config import ServerConfig
from radixrt.errors import RequestError
from radixrt.messages.parts import ImageInput
from radixrt.server.answers import response_messages
from radixrt.vision.fetch import ImageFetcher
from tests.chat import templates
from tests.server.fake_engine import FakeEngine
from tests.server.helpers import Caller, check_error
from tests.vision.pictures import picture

DATA = picture(40, 40)
TEXT = base64.b64encode(DATA).decode()
URL = f"data:image/png;base64,{TEXT}"
HTTPS = "https://pictures.test/a.png"


@pytest.fixture
def engine():
    engine = FakeEngine()
    assert engine.client.info is not None
    engine.client.info = replace(engine.client.info, max_images=32)
    yield engine
    engine.close()


@pytest.fixture
def caller(engine):
    return Caller(engine, ServerConfig(image_hosts="pictures.test"))


def image(url: Any = URL, **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, **more}}


def ask(caller: Caller, *parts: dict[str, Any], role: str = "user", **fields: Any):
    return caller.post("/v1/chat/completions", {"messages": [{"role": role, "content": list(parts)}], **fields})


def sent(caller: Caller) -> tuple[list[dict[str, Any]], list[ImageInput]]:
    chat = caller.engine.requests[-1].chat
    return json.decode(chat.messages), chat.images


def test_chat(caller):
    text = {"type": "text", "text": "What is this?"}
    answer = ask(caller, text, image(detail="low"), image())
    assert answer.status_code == 200
    messages, images = sent(caller)
    assert messages == [{"role": "user", "content": [text, {"type": "image"}, {"type": "image"}]}]
    assert images == [
        ImageInput(DATA, "low", "messages[0].content[1].image_url"),
        ImageInput(DATA, "auto", "messages[0].content[2].image_url"),
    ]
    assert ask(caller, {"type": "image_url", "image_url": URL}, stream=True).status_code == 200
    assert sent(caller)[1][0].data == DATA


def test_messages_without_pictures_stay_texts(caller):
    ask(caller, {"type": "text", "text": "a"}, {"type": "text", "text": "b"})
    assert sent(caller) == ([{"role": "user", "content": "ab"}], [])


def test_tools_are_described_in_front_of_a_picture(caller):
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    assert ask(caller, image(), {"type": "text", "text": "Hi"}, tools=[tool]).status_code == 200
    messages, images = sent(caller)
    assert len(images) == 1
    assert {"type": "image"} in messages[-1]["content"]


def test_anthropic(caller):
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": TEXT}}
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": [block, {"type": "text", "text": "Hi"}]}]}
    assert caller.post("/v1/messages", body).status_code == 200
    messages, images = sent(caller)
    assert messages[0]["content"] == [{"type": "image"}, {"type": "text", "text": "Hi"}]
    assert images == [ImageInput(DATA, "auto", "messages[0].content[0]")]


@pytest.mark.parametrize("source", [{"type": "base64", "data": TEXT}, {"type": "url", "url": URL}])
def test_the_detail_of_anthropic_blocks(caller, source):
    block = {"type": "image", "source": source, "detail": "low"}
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": [block]}]}
    assert caller.post("/v1/messages", body).status_code == 200
    assert sent(caller)[1] == [ImageInput(DATA, "low", "messages[0].content[0]")]
    block["detail"] = "best"
    answer = caller.post("/v1/messages", body)
    assert answer.status_code == 400
    assert "messages[0].content[0].detail must be auto, low, high" in answer.json()["error"]["message"]


# --- results of tools ---

QUESTION = {"role": "user", "content": "Look."}


def chat_results(caller: Caller):
    function = {"name": "look", "arguments": "{}"}
    calls = [{"id": each, "type": "function", "function": function} for each in "ab"]
    shown = [{"type": "text", "text": "seen"}, image(detail="low")]
    results = [
        {"role": "tool", "tool_call_id": "a", "content": shown},
        {"role": "tool", "tool_call_id": "b", "content": "dark"},
    ]
    given = [QUESTION, {"role": "assistant", "content": "", "tool_calls": calls}, *results]
    return caller.post("/v1/chat/completions", {"messages": given}), "messages[2].content[1].image_url"


def anthropic_results(caller: Caller):
    used = [{"type": "tool_use", "id": each, "name": "look", "input": {}} for each in "ab"]
    block = {"type": "image", "source": {"type": "base64", "data": TEXT}, "detail": "low"}
    results = [
        {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "seen"}, block]},
        {"type": "tool_result", "tool_use_id": "b", "content": "dark"},
    ]
    given = [QUESTION, {"role": "assistant", "content": used}, {"role": "user", "content": results}]
    return caller.post("/v1/messages", {"max_tokens": 5, "messages": given}), "messages[2].content[0].content[1]"


def response_results(caller: Caller):
    calls = [{"type": "function_call", "call_id": each, "name": "look", "arguments": "{}"} for each in "ab"]
    output = [{"type": "input_text", "text": "seen"}, INPUT_IMAGE]
    results = [
        {"type": "function_call_output", "call_id": "a", "output": output},
        {"type": "function_call_output", "call_id": "b", "output": "dark"},
    ]
    return caller.post("/v1/responses", {"input": [QUESTION, *calls, *results]}), "input[3].output[1]"


RESULTS = [chat_results, anthropic_results, response_results]


@pytest.mark.parametrize("send", RESULTS)
def test_results_with_pictures(engine, send):
    caller = Caller(engine, dialect=make_dialect(templates.template(templates.HERMES_IMAGES)))
    answer, place = send(caller)
    assert answer.status_code == 200
    messages, images = sent(caller)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[2]["content"] == [{"type": "text", "text": "seen"}, {"type": "image"}]
    assert messages[3]["content"] == "dark"
    assert images == [ImageInput(DATA, "low", place)]


@pytest.mark.parametrize("send", RESULTS)
def test_results_with_pictures_for_a_template_without_tools(caller, send):
    answer, place = send(caller)
    assert answer.status_code == 200
    messages, images = sent(caller)
    assert messages[-1]["role"] == "user"
    assert messages[-1]["content"] == [
        {"type": "text", "text": "look returned: "},
        {"type": "text", "text": "seen"},
        {"type": "image"},
        {"type": "text", "text": "\n"},
        {"type": "text", "text": "look returned: dark"},
    ]
    assert images == [ImageInput(DATA, "low", place)]


@pytest.mark.parametrize("send", RESULTS)
def test_results_with_pictures_for_a_template_that_writes_none(engine, send):
    caller = Caller(engine, dialect=make_dialect(templates.template(templates.HERMES)))
    answer, place = send(caller)
    assert answer.status_code == 400
    assert f"{place}: the chat template writes no images in results of tools" in answer.json()["error"]["message"]
    assert not engine.requests


def test_a_stored_response_continues_with_the_picture_of_an_output(caller):
    first = response_results(caller)[0].json()
    assert respond(caller, {"type": "input_text", "text": "b"}, previous_response_id=first["id"]).status_code == 200
    assert sent(caller)[1] == [ImageInput(DATA, "low", "previous_response_id")]


# --- decisions ---

PREDICATE = {"type": "predicate", "instructions": "Is it a cat?"}


def decide(caller: Caller, *parts: dict[str, Any], role: str = "user", number: int = 1):
    given = [{"role": role, "content": list(parts)}]
    return caller.post("/v1/decisions", {"input": given, "questions": [PREDICATE] * number})


def test_questions_about_pictures(caller):
    text, more = {"type": "input_text", "text": "Look:"}, {"type": "input_json", "data": {"a": 1}}
    shown = {"type": "input_image", "image_url": URL, "detail": "low"}
    assert decide(caller, text, more, shown, text, number=2).status_code == 200
    assert len(caller.engine.questions) == 2
    for question in caller.engine.questions:
        (message,) = json.decode(question.chat.messages)
        *before, asked = message["content"]
        assert before == [
            {"type": "text", "text": 'Look:\n{"a":1}'},
            {"type": "image"},
            {"type": "text", "text": "Look:"},
        ]
        assert asked["text"].startswith("\n\nIs it a cat?")
        assert question.chat.images == [ImageInput(DATA, "low", "input[0].content[2]")]


def test_choices_after_a_chat_with_a_picture(caller):
    body = {"messages": [{"role": "user", "content": [image()]}], "choices": ["cat", "dog"]}
    assert caller.post("/v1/decisions", body).status_code == 200
    (question,) = caller.engine.questions
    assert question.chat.images == [ImageInput(DATA, "auto", "messages[0].content[0].image_url")]


def test_pictures_of_questions_are_fetched_once(caller, monkeypatch):
    calls = []

    async def fetch(self, url, param):
        calls.append(url)
        return DATA

    monkeypatch.setattr(ImageFetcher, "fetch", fetch)
    assert decide(caller, {"type": "input_image", "image_url": HTTPS}, number=3).status_code == 200
    assert calls == [HTTPS]
    assert [question.chat.images[0].data for question in caller.engine.questions] == [DATA] * 3


@pytest.mark.parametrize(
    ("part", "role", "param", "message"),
    [
        ({"type": "input_image"}, "user", ".image_url", "is required"),
        ({"type": "input_image", "image_url": {"url": URL}}, "user", ".image_url", "Expected"),
        ({"type": "input_image", "image_url": URL, "detail": "best"}, "user", ".detail", "must be auto, low, high"),
        ({"type": "input_image", "image_url": "data:image/png,x"}, "user", "", "must have the form data:"),
        ({"type": "input_image", "image_url": URL}, "system", "", "images go into messages of the user"),
        ({"type": "image_url", "image_url": URL}, "user", "", "here a picture is of type input_image"),
    ],
)  # fmt: skip
def test_refused_pictures_of_questions(caller, part, role, param, message):
    answer = decide(caller, part, role=role)
    assert message in check_error(answer, 400, f"input[0].content[0]{param}")
    assert not caller.engine.questions


def test_pictures_of_instructions_are_refused(caller):
    asked = {"type": "predicate", "instructions": [{"type": "input_image", "image_url": URL}]}
    answer = caller.post("/v1/decisions", {"input": "x", "questions": [asked]})
    assert "in input" in check_error(answer, 400, "questions[0].instructions[0]")


def test_many_questions_about_a_large_picture(caller):
    large = "data:image/png;base64," + base64.b64encode(bytes(2 * 2**20)).decode()
    part = {"type": "input_image", "image_url": large}
    message = check_error(decide(caller, part, number=33), 400, "input[0].content[0]", "images_too_large")
    assert "33 questions" in message
    assert not caller.engine.questions
    assert decide(caller, part, number=32).status_code == 200


# --- responses ---


def respond(caller: Caller, *parts: dict[str, Any], role: str = "user", **fields: Any):
    return caller.post("/v1/responses", {"input": [{"role": role, "content": list(parts)}], **fields})


INPUT_IMAGE = {"type": "input_image", "image_url": URL, "detail": "low"}


@pytest.mark.parametrize("stream", [False, True])
def test_responses(caller, stream):
    text = {"type": "input_text", "text": "What is this?"}
    given = [{"role": "user", "content": "Hi"}, {"role": "user", "content": [text, INPUT_IMAGE]}]
    assert caller.post("/v1/responses", {"input": given, "instructions": "x", "stream": stream}).status_code == 200
    messages, images = sent(caller)
    assert messages[-1]["content"] == [{"type": "text", "text": text["text"]}, {"type": "image"}]
    assert images == [ImageInput(DATA, "low", "input[1].content[1]")]


def test_a_stored_response_continues_with_its_pictures(caller):
    first = respond(caller, INPUT_IMAGE, {"type": "input_text", "text": "a"}).json()
    (item,) = caller.get(f"/v1/responses/{first['id']}/input_items").json()["data"]
    assert item["content"] == [INPUT_IMAGE, {"type": "input_text", "text": "a"}]
    second = respond(caller, {"type": "input_text", "text": "b"}, previous_response_id=first["id"]).json()
    assert respond(caller, INPUT_IMAGE, previous_response_id=second["id"]).status_code == 200
    messages, images = sent(caller)
    shown = [message["content"] for message in messages if message["role"] == "user"]
    assert shown == [[{"type": "image"}, {"type": "text", "text": "a"}], "b", [{"type": "image"}]]
    assert images == [ImageInput(DATA, "low", "previous_response_id"), ImageInput(DATA, "low", "input[0].content[0]")]


def test_pictures_count_beside_the_texts_of_a_stored_conversation(caller, monkeypatch):
    large = "data:image/png;base64," + base64.b64encode(bytes(2 * 2**20)).decode()
    part = {"type": "input_image", "image_url": large}
    first = respond(caller, part).json()
    assert respond(caller, INPUT_IMAGE, previous_response_id=first["id"]).status_code == 200
    monkeypatch.setattr(response_messages, "STORED_IMAGE_BYTES", len(large))
    second = respond(caller, INPUT_IMAGE, previous_response_id=first["id"]).json()
    answer = respond(caller, INPUT_IMAGE, previous_response_id=second["id"])
    assert "send its items in input" in check_error(answer, 400, "previous_response_id", "conversation_too_long")


def test_pictures_of_responses_are_fetched_for_each_answer(caller, monkeypatch):
    calls = []

    async def fetch(self, url, param):
        calls.append(url)
        return DATA

    monkeypatch.setattr(ImageFetcher, "fetch", fetch)
    first = respond(caller, {"type": "input_image", "image_url": HTTPS}).json()
    assert respond(caller, {"type": "input_text", "text": "b"}, previous_response_id=first["id"]).status_code == 200
    assert calls == [HTTPS, HTTPS]
    assert sent(caller)[1] == [ImageInput(DATA, "auto", "previous_response_id")]


@pytest.mark.parametrize(
    ("part", "role", "param", "message"),
    [
        ({"type": "input_image"}, "user", ".image_url", "is required"),
        ({"type": "input_image", "file_id": "file-1"}, "user", ".file_id", "as a data: URL"),
        ({"type": "input_image", "image_url": {"url": URL}}, "user", ".image_url", "Expected"),
        ({"type": "input_image", "image_url": URL, "detail": "best"}, "user", ".detail", "must be auto, low, high"),
        ({"type": "input_image", "image_url": "https://evil.test/a.png"}, "user", "", "are not fetched from evil.test"),
        (INPUT_IMAGE, "developer", "", "images go into messages of the user"),
        (INPUT_IMAGE, "assistant", "", "images go into messages of the user"),
    ],
)  # fmt: skip
def test_refused_pictures_of_responses(caller, part, role, param, message):
    answer = respond(caller, part, role=role)
    assert message in check_error(answer, 400, f"input[0].content[0]{param}")
    assert not caller.engine.requests


# --- errors ---


@pytest.mark.parametrize(
    ("parts", "param", "message"),
    [
        ([{"type": "image_url"}], "image_url", "is required"),
        ([{"type": "image_url", "image_url": {}}], "image_url.url", "is required"),
        ([image(5)], "image_url.url", "Expected"),
        ([image(detail="best")], "image_url.detail", "must be auto, low, high"),
        ([image("data:image/png,x")], "image_url", "must have the form data:image/png;base64,..."),
        ([image("data:image/png;base64,%%%%")], "image_url", "is not valid base64"),
        ([image("data:image/png;base64," + "A" * 15_000_000)], "image_url", "may have 10485760 bytes"),
        ([image("http://pictures.test/a.png")], "image_url", "must be a data: URL, or an https URL"),
        ([image("https://evil.test/a.png")], "image_url", "are not fetched from evil.test"),
        ([image("https://pictures.test/" + str(i)) for i in range(17)], "", "names 17 images by URLs, and may name 16"),
    ],
    ids=lambda value: str(value)[:30],
)  # fmt: skip
def test_refused(caller, parts, param, message):
    caller.app.state.service.config = replace_config(caller, max_body_bytes=48 * 1024 * 1024)
    answer = ask(caller, *parts)
    at = f"messages[0].content[{len(parts) - 1}]"
    where = f"{at}.{param}" if param else f"{at}.image_url"
    assert message in check_error(answer, 400, where)
    assert not caller.engine.requests


def replace_config(caller: Caller, **fields: Any) -> ServerConfig:
    import dataclasses

    return dataclasses.replace(caller.app.state.service.config, **fields)


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_pictures_go_into_messages_of_the_user(caller, role):
    answer = ask(caller, image(), role=role)
    assert "images go into messages of the user" in check_error(answer, 400, "messages[0].content[0].image_url")


CHAT = ("/v1/chat/completions", {})
MESSAGE = ("/v1/messages", {"max_tokens": 5})


@pytest.mark.parametrize(
    ("path", "key", "given", "message"),
    [
        (CHAT, "messages", "input_image", "here a picture is of type image_url"),
        (CHAT, "messages", "video_url", "send frames of it as pictures, of type image_url"),
        (MESSAGE, "messages", "image_url", "here a picture is of type image"),
        (MESSAGE, "messages", "document", "send the document's text"),
        (("/v1/responses", {}), "input", "image_url", "here a picture is of type input_image"),
        (("/v1/responses", {}), "input", "input_file", "send its text"),
    ],
)
def test_parts_of_other_apis(caller, path, key, given, message):
    route, fields = path
    answer = caller.post(route, {key: [{"role": "user", "content": [{"type": given}]}], **fields})
    assert answer.status_code == 400
    assert message in answer.json()["error"]["message"]
    assert not caller.engine.requests


@pytest.mark.parametrize("field", ["images", "image_data", "multi_modal_data"])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/generate"])
def test_fields_of_other_servers(caller, path, field):
    body = {"/v1/completions": {"prompt": "x"}, "/generate": {"text": "x"}}.get(path, {"messages": [QUESTION]})
    answer = caller.post(path, {**body, field: [URL]})
    assert "send pictures as image_url parts of a message" in check_error(answer, 400, field)


def test_pictures_are_fetched_once(caller, monkeypatch):
    calls = []

    async def fetch(self, url, param):
        calls.append(url)
        return DATA

    monkeypatch.setattr(ImageFetcher, "fetch", fetch)
    assert ask(caller, image(HTTPS), image(HTTPS, detail="low"), image()).status_code == 200
    assert calls == [HTTPS]
    assert [(each.data, each.detail, each.url) for each in sent(caller)[1]] == [
        (DATA, "auto", ""), (DATA, "low", ""), (DATA, "auto", ""),
    ]  # fmt: skip
    source = {"type": "url", "url": HTTPS}
    body = {"max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "image", "source": source}]}]}
    assert caller.post("/v1/messages", body).status_code == 200
    assert sent(caller)[1] == [ImageInput(DATA, "auto", "messages[0].content[0]")]


@pytest.mark.parametrize(
    ("count", "size", "fetches", "param", "code"),
    [(10_000, 10, 0, 32, "too_many_images"), (5, 8 * 1024 * 1024, 1, 4, "images_too_large")],
)
def test_a_url_counts_as_often_as_it_is_named(caller, monkeypatch, count, size, fetches, param, code):
    fetched = []

    async def fetch(self, url, param):
        fetched.append(url)
        return bytes(size)

    monkeypatch.setattr(ImageFetcher, "fetch", fetch)
    answer = ask(caller, *[image(HTTPS)] * count)
    check_error(answer, 400, f"messages[0].content[{param}].image_url", code)
    assert len(fetched) == fetches
    assert not caller.engine.requests


def test_a_picture_that_cannot_be_fetched(caller, monkeypatch):
    async def fetch(self, url, param):
        raise RequestError(f"{param}: the image cannot be fetched", param=param, code="invalid_image_url")

    monkeypatch.setattr(ImageFetcher, "fetch", fetch)
    for stream in (False, True):
        answer = ask(caller, image(HTTPS), stream=stream)
        check_error(answer, 400, "messages[0].content[0].image_url", "invalid_image_url")
    assert not caller.engine.requests


def test_nothing_is_fetched_for_a_model_that_reads_no_images(monkeypatch):
    engine = FakeEngine()
    caller = Caller(engine, ServerConfig(image_hosts="pictures.test"))
    monkeypatch.setattr(ImageFetcher, "fetch", None)
    ask(caller, image(HTTPS))  # the engine refuses the picture by its name
    assert sent(caller)[1][0].url == HTTPS
    engine.close()


def test_bodies_are_larger_for_a_model_that_reads_images():
    from types import SimpleNamespace

    from radixrt.config import Config
    from radixrt.server.launch import with_image_bodies

    reads, text = SimpleNamespace(vision=1), SimpleNamespace(vision=None)
    assert with_image_bodies(Config(), text).server.max_body_bytes == 8 * 1024 * 1024
    assert with_image_bodies(Config(), reads).server.max_body_bytes == 48 * 1024 * 1024
    given = Config(server=ServerConfig(max_body_bytes=10_000))
    assert with_image_bodies(given, reads).server.max_body_bytes == 10_000
