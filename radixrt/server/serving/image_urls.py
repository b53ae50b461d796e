"""`with_fetched_images`: requests with the pictures that they name by URLs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec

from radixrt.errors import RequestError
from radixrt.messages.client import ClientRequest, PartsInput
from radixrt.messages.parts import ChatPrompt, ImageInput
from radixrt.vision.fetch import ImageFetcher
from radixrt.vision.limits import ImageLimits

MAX_FETCHED = 16
"""Pictures of a request that are fetched, at most, each URL once."""


async def with_fetched_images(
    requests: Sequence[ClientRequest], fetcher: ImageFetcher, max_images: int
) -> Sequence[ClientRequest]:
    """Return requests whose pictures all have their bytes, and are within the limits of each request.

    Args:
        max_images: number of pictures of each request. A URL counts as often as parts of the request name it.

    Raises:
        RequestError: a URL may not be fetched or gives no picture, or the pictures exceed a limit; names the part.
    """
    wanted: dict[str, ImageInput] = {}
    for image in (image for request in requests for image in _images(request)):
        if image.url:
            wanted.setdefault(image.url, image)
    # One picture may stand in a request many times (assets of /v1/systemone), and is sent to the engine each time.
    limits = ImageLimits(max_images)
    for request in requests:
        limits.check([(image.param, len(image.data)) for image in _images(request)])
    if not wanted:
        return requests
    for image in wanted.values():
        fetcher.check(image.url, image.param)
    if len(wanted) > MAX_FETCHED:
        param = list(wanted.values())[MAX_FETCHED].param
        raise RequestError(
            f"{param}: this request names {len(wanted)} images by URLs, and may name {MAX_FETCHED}",
            param=param,
            code="too_many_images",
        )
    async with asyncio.TaskGroup() as group:
        tasks = {url: group.create_task(_fetched(fetcher, image)) for url, image in wanted.items()}
    found: dict[str, bytes] = {}
    for url, task in tasks.items():
        result = task.result()
        if isinstance(result, RequestError):
            raise result
        found[url] = result
    # Each part gets the bytes of its URL, so each of them counts.
    for request in requests:
        limits.check([(image.param, len(found[image.url] if image.url else image.data)) for image in _images(request)])
    return [_with_bytes(request, found) for request in requests]


async def _fetched(fetcher: ImageFetcher, image: ImageInput) -> bytes | RequestError:
    try:
        return await fetcher.fetch(image.url, image.param)
    except RequestError as error:
        return error


def _images(request: ClientRequest) -> list[ImageInput]:
    return [image for row in request.rows for image in row.images]


def _with_bytes(request: ClientRequest, found: dict[str, bytes]) -> ClientRequest:
    rows = []
    for row in request.rows:
        if isinstance(row.input, (ChatPrompt, PartsInput)) and row.images:
            images = [
                ImageInput(found[image.url], image.detail, image.param) if image.url else image for image in row.images
            ]
            row = msgspec.structs.replace(row, input=msgspec.structs.replace(row.input, images=images))
        rows.append(row)
    return msgspec.structs.replace(request, rows=rows)
