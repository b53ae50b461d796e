"""Images in the scheduler: what a step encodes, what it reads, and what the cache keeps."""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
import numpy as np
import pytest

from radixrt.messages.images import RowImage
from radixrt.messages.scheduler_stats import MediaStats
from radixrt.messages.sections import MEDIA, MediaSection, decode
from radixrt.messages.wire import pack_i32, unpack_i32
from radixrt.parts.media.pixel_links import PixelLinks
from radixrt.parts.media.rotary import RotaryPositions
from radixrt.parts.media.scheduler import PIXELS_LOST
from radixrt.parts.media.tower_times import TowerTimes
from tests.parts.media.fake_tower import BLOCKS, TOWER, ImageHarness, axes, joined, picture
from tests.requests import embed_request

BOOK, CAT, WIDE = picture(1, 3, 4), picture(2, 2, 2), picture(3, 2, 8)


def sections(h: ImageHarness) -> list[MediaSection]:
    return [found for step in h.steps if (found := decode(step.sections, MEDIA, MediaSection)) is not None]


def test_rotary_positions_by_spans() -> None:
    ids, images = joined([1, 2, WIDE, 3, BOOK, CAT, 4])
    found, whole = RotaryPositions(images), np.array(axes(len(ids) + 9, images)).T
    for start in range(len(ids) + 5):
        for stop in range(start, len(ids) + 9, 3):
            assert np.array_equal(found.within(start, stop), whole[:, start:stop])
    assert found.offset == whole[0, -1] - (len(ids) + 8)
    assert found.end == len(ids) - 1


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 1000])
@pytest.mark.parametrize("parts", [[BOOK, 1], [1, 2, BOOK], [1, BOOK, CAT, 2], [1, CAT, 3, CAT, 4], [WIDE]])
def test_a_chunk_may_cut_an_image_anywhere(chunk: int, parts: list) -> None:
    h = ImageHarness(chunked_prefill_size=chunk, max_context=96, num_slots=96)
    h.show("r", parts, max_tokens=6)
    h.drain()
    h.assert_seen("r")


def test_the_same_picture_is_encoded_once_and_its_prefix_hits() -> None:
    h = ImageHarness(num_slots=200, max_context=96)
    for number, question in enumerate([[5], [6, 7], [5, 8]]):
        h.show(f"r{number}", [1, BOOK, *question])
        h.drain()
        h.assert_seen(f"r{number}")
    assert h.runner.encoded == [BOOK.pixels]
    found = h.part.stats(0.0)["media"]
    assert found == MediaStats(rows=32, rows_used=BOOK.count, encoded=1, reused=0, position_s=found.position_s)
    assert h.usages["r1"].cached_tokens == h.usages["r2"].cached_tokens - 1 == 1 + BOOK.count


def test_equal_text_with_another_picture_shares_nothing_of_it() -> None:
    h = ImageHarness(num_slots=200, max_context=96)
    h.show("a", [1, 2, BOOK, 5])
    h.drain()
    h.show("b", [1, 2, picture(9, 3, 4), 5])
    h.drain()
    h.assert_seen("a")
    h.assert_seen("b")
    assert h.usages["b"].cached_tokens == 2


def test_namespaces_share_no_encoding() -> None:
    h = ImageHarness(num_slots=200, max_context=96)
    for salt in ("a", "b"):
        h.show(salt, [1, BOOK, 5], cache_salt=salt)
        h.drain()
        h.assert_seen(salt)
    assert h.runner.encoded == [BOOK.pixels] * 2


def test_a_row_of_text_gets_no_offset_of_an_earlier_row() -> None:
    h = ImageHarness(max_running_requests=1, max_context=96, num_slots=96)
    h.show("image", [1, BOOK, 5])
    h.drain()
    h.show("text", [1, 2, 3])
    h.drain()
    h.assert_seen("text")


def test_text_alone_has_no_section() -> None:
    h = ImageHarness()
    h.show("r", [1, 2, 3])
    h.drain()
    h.assert_seen("r")
    assert sections(h) == []


def test_decode_steps_carry_nothing() -> None:
    h = ImageHarness(max_context=96, num_slots=96)
    h.show("r", [1, BOOK, 5], max_tokens=20, ignore_eos=True)
    h.drain()
    assert len(sections(h)) == 1
    assert len(h.steps) == 20


def test_positions_are_sent_only_before_the_end_of_the_last_image() -> None:
    h = ImageHarness(max_context=96, num_slots=96, chunked_prefill_size=13)
    h.show("r", [1, BOOK, *range(2, 30)])
    h.drain()
    h.assert_seen("r")
    assert [bool(section.positions) for section in sections(h)] == [True]


def test_a_pool_of_one_image_serves_requests_of_several() -> None:
    h = ImageHarness(rows=12, num_slots=400, max_context=200, max_running_requests=4)
    for number in range(8):
        pictures = [picture(10 * number + i, 3, 4) for i in range(4)]
        h.show(f"r{number}", [1, *pictures, 2])
    h.drain()
    for number in range(8):
        h.assert_seen(f"r{number}")
    assert len(h.runner.encoded) == 32


def test_an_image_larger_than_the_pool_is_refused() -> None:
    h = ImageHarness(rows=11)
    h.show("r", [1, BOOK])
    h.drain()
    error = h.finishes["r"].error
    assert error is not None
    assert error.status == 400
    assert "12 tokens" in error.message
    assert "max_image_tokens" in error.message


def test_beside_decode_rows_an_image_is_encoded_in_pieces() -> None:
    """A step beside decode rows has time for one of the tower's blocks, which take 30 of its 50 ms."""
    h = ImageHarness(num_slots=400, max_context=200, max_gap_ms=50.0, flops_per_s=1e9)
    step_s, block_s = 0.01, 0.03
    h.show("text", [1, 2, 3], max_tokens=150, ignore_eos=True)

    def serve(rid: str) -> None:
        while rid not in h.finishes:
            assert h.submit()
            h.now += step_s
            h.commit()

    for number in range(12):  # teaches the model of step times
        h.show(f"warm{number}", [20 + number, *range(5, 20)], max_tokens=1)
        serve(f"warm{number}")
    wide = picture(7, 2, 2)
    h.part.times = TowerTimes(TOWER.block_flops(2, 2) / block_s)
    h.show("image", [1, wide, 2], max_tokens=1)
    before = len(h.steps)
    serve("image")
    h.assert_seen("image")
    pieces = [piece for section in sections(h) for piece in section.encode]
    assert sum(piece.count for piece in pieces) == BLOCKS
    assert 3 <= len(pieces) <= len(h.steps) - before  # the steps are faster than predicted, which is learned
    h.drain()
    h.assert_seen("text")


def test_images_alone_bound_gaps_too() -> None:
    """Where every prompt brings a picture, no step teaches the time of prompts: the decode rows' time is the bound."""
    h = ImageHarness(num_slots=400, max_context=200, max_gap_ms=50.0, flops_per_s=1e9)
    h.show("text", [1, 2, 3], max_tokens=100, ignore_eos=True)
    h.submit()
    h.now += 0.01
    h.commit()
    h.part.times = TowerTimes(TOWER.block_flops(3, 4) / 0.03)
    h.show("image", [1, BOOK, 2], max_tokens=1)
    h.drain()
    h.assert_seen("image")
    assert len([piece for section in sections(h) for piece in section.encode]) > 2


@pytest.mark.parametrize("stages", [2, 3])
def test_pipeline_stages(stages: int) -> None:
    """A step needs a row: without decode rows an image is encoded whole, however long that takes."""
    h = ImageHarness(num_slots=400, max_context=200, stages=stages, depth=stages, max_gap_ms=50.0, flops_per_s=1e9)
    for number in range(12):  # teaches the model of step times
        h.show(f"warm{number}", [20 + number, *range(5, 20)], max_tokens=1)
        while f"warm{number}" not in h.finishes:
            h.submit()
            h.now += 0.01
            h.commit()
    h.part.times = TowerTimes(TOWER.block_flops(3, 4) / 30.0)
    for number in range(3):
        h.show(f"r{number}", [1, picture(50 + number, 3, 4), 2])
    h.drain()
    for number in range(3):
        h.assert_seen(f"r{number}")


def test_many_small_images_leave_for_a_large_one() -> None:
    h = ImageHarness(num_slots=800, max_context=96)
    for number in range(16):
        h.show(f"small{number}", [1, picture(60 + number, 1, 2), 3])
        h.drain()
    assert h.part.stats(0.0)["media"].rows_used == 32
    h.show("large", [1, picture(80, 4, 5), 3])
    h.drain()
    h.assert_seen("large")
    assert 20 <= h.part.stats(0.0)["media"].rows_used <= 32
    assert all(not each.users for each in h.part.pool.encodings)


def test_an_interrupted_encoding_gives_way_to_another() -> None:
    h = ImageHarness(num_slots=400, max_context=200)
    h.show("a", [1, BOOK, 2])
    req = h.scheduler.waiting[0]
    req.kv.req_pool_idx = 1  # as if it were active
    images = req.inputs.images
    begun = h.part.reach(req, images, 0, 14, 1e-12, must=True)  # one block of the tower
    assert begun.tokens == 1
    assert begun.seconds > 0
    assert h.part.reach(req, images, 0, 14, 1e-12, must=False) == (1, 0.0)
    req.kv.req_pool_idx = 0
    h.show("b", [3, CAT, 4])
    h.drain()
    h.assert_seen("a")
    h.assert_seen("b")


def test_a_match_within_an_image_ends_before_it_unless_it_proves_the_image() -> None:
    h = ImageHarness()
    h.show("r", [1, 2, BOOK, 5])
    usable = h.scheduler.waiting[0].inputs.usable
    assert [usable(n) for n in range(16)] == [0, 1, 2, 2, 2, 2, *range(6, 16)]


def test_penalties_and_prompt_logprobs_see_the_image_token() -> None:
    h = ImageHarness(max_context=96, num_slots=96)
    h.show("r", [1, CAT, 5], prompt_logprobs=0, frequency_penalty=0.5, max_tokens=1)
    h.drain()
    row = h.runner.params[1]
    assert unpack_i32(row.prompt_ids).min() >= 0
    assert "r" in h.prompt_logprobs


def test_pixels_travel_in_the_step_where_ranks_share_no_memory(tmp_path) -> None:
    import dataclasses

    path = tmp_path / "pixels"
    path.write_bytes(bytes(12))
    image = msgspec.structs.replace(CAT, pixels=str(path))
    h = ImageHarness(max_context=96, num_slots=96)
    h.part._settings = dataclasses.replace(h.part._settings, shares_memory=False)
    h.show("r", [1, image, 5])
    h.runner.images[""] = image
    h.drain()
    h.assert_seen("r")
    (piece,) = sections(h)[0].encode
    assert piece.data == bytes(12)
    assert piece.pixels == ""


def test_pixels_that_cannot_be_read_do_not_end_the_scheduler(tmp_path) -> None:
    """The rank, which cannot read the file either, fails the step."""
    import dataclasses

    image = msgspec.structs.replace(CAT, pixels=str(tmp_path / "gone"))
    h = ImageHarness(max_context=96, num_slots=96)
    h.part._settings = dataclasses.replace(h.part._settings, shares_memory=False)
    h.show("r", [1, image, 5])
    assert h.submit()
    (piece,) = sections(h)[0].encode
    assert piece.data == b""
    assert piece.pixels == image.pixels


def stored(image: RowImage, folder: Path) -> RowImage:
    """Return an image whose pixels are in a file, as the tokenizer process writes one."""
    path = folder / image.digest.hex()
    path.write_bytes(bytes(3 * image.height * image.width))
    return msgspec.structs.replace(image, pixels=str(path))


def test_pixels_stay_until_the_ranks_have_read_them(tmp_path: Path) -> None:
    """The tokenizer removes its files at any time, and a request may end before its step runs."""
    image, links = stored(BOOK, tmp_path), tmp_path / "links"
    h = ImageHarness(max_context=96, num_slots=96, links=str(links))
    h.show("r", [1, image, 5])
    assert h.submit()
    Path(image.pixels).unlink()
    h.scheduler.abort("r", h.now)
    assert len(list(links.iterdir())) == 1
    h.drain()
    assert len(h.runner.encoded) == 1
    assert list(links.iterdir()) == []


def test_pixels_of_later_rows_stay(tmp_path: Path) -> None:
    """A row of a group joins the queue once the row before it is admitted, when the tokenizer may have removed its
    files."""
    links = tmp_path / "links"
    h = ImageHarness(max_context=96, num_slots=96, max_running_requests=1, links=str(links))
    shown = [stored(image, tmp_path) for image in (BOOK, CAT, WIDE)]
    rows = [joined([1, image, 5]) for image in shown]
    message = embed_request("r", [pack_i32(ids) for ids, _ in rows], "last")
    message = msgspec.structs.replace(
        message,
        rows=[msgspec.structs.replace(row, images=rows[i][1]) for i, row in enumerate(message.rows)],
    )
    h.runner.images |= {f"{links}/{image.digest.hex()}": image for image in shown}
    h.embed_requests["r"] = message
    h.scheduler.intake.add(message, h.now)
    for image in shown:
        Path(image.pixels).unlink()
    assert len(list(links.iterdir())) == 3
    h.drain()
    assert h.finishes["r"].error is None
    assert h.runner.encoded == [f"{links}/{image.digest.hex()}" for image in shown]
    assert list(links.iterdir()) == []
    assert len(h.part._links) == 0


def test_a_file_that_is_written_again_gets_its_second_name(tmp_path: Path) -> None:
    image = stored(BOOK, tmp_path)
    Path(image.pixels).unlink()
    links = PixelLinks(str(tmp_path / "links"))
    links.hold(image)
    assert links.path(image) == image.pixels
    links.hold(stored(BOOK, tmp_path))
    assert links.path(image) != image.pixels
    links.release([image.digest] * 2)
    assert list((tmp_path / "links").iterdir()) == []


def test_pixels_that_are_lost_on_the_way_are_refused(tmp_path: Path) -> None:
    h = ImageHarness(max_context=96, num_slots=96, links=str(tmp_path / "links"))
    gone, elsewhere = (msgspec.structs.replace(BOOK, pixels=f"{folder}/gone") for folder in (tmp_path, "/nowhere"))
    for rid, image in (("gone", gone), ("elsewhere", elsewhere)):
        h.show(rid, [1, image, 5])
    h.drain()
    errors = [h.finishes[rid].error for rid in ("gone", "elsewhere")]
    assert [error.status for error in errors if error is not None] == [503, 501]
    assert "send the request again" in h.finishes["gone"].error.message  # type: ignore[union-attr]


@pytest.mark.parametrize("left", [None, 5])
def test_pixels_that_vanish_end_only_the_requests_that_need_them(left: int | None, tmp_path: Path) -> None:
    """The file is gone, or cut short, when the image is to be encoded."""
    links = tmp_path / "links"
    h = ImageHarness(max_context=96, num_slots=200, links=str(links), max_gap_ms=50.0)
    h.show("text", [7, 8, 9], max_tokens=40, ignore_eos=True)
    h.turn()
    shown, whole = stored(BOOK, tmp_path), stored(CAT, tmp_path)
    for rid, image in (("lost", shown), ("again", shown), ("other", whole)):
        h.show(rid, [1, image, 5])
    for path in (links / shown.digest.hex(), Path(shown.pixels)):
        if left is None:
            path.unlink()
        else:
            path.write_bytes(bytes(left))
    while h.scheduler.waiting or h.scheduler.active:
        h.now += 0.06
        h.turn()
    for rid in ("lost", "again"):
        error = h.finishes[rid].error
        assert error is not None
        assert (error.status, error.code, error.param) == (503, "busy", "images")
    for rid in ("text", "other"):
        h.assert_seen(rid)
    assert h.scheduler.counters.cache_resets.total() == 0


def test_pixels_of_all_requests_vanish(tmp_path: Path) -> None:
    """No request has work, and none gives way to another: the scheduler would try both in turn for ever."""
    links = tmp_path / "links"
    h = ImageHarness(max_context=96, num_slots=200, links=str(links))
    shown = {"one": stored(BOOK, tmp_path), "other": stored(CAT, tmp_path)}
    for rid, image in shown.items():
        h.show(rid, [image, 5])
        (links / image.digest.hex()).unlink()
        Path(image.pixels).unlink()
    for _ in range(2):
        assert not h.submit()
    h.take()
    assert [h.finishes[rid].error for rid in shown] == [PIXELS_LOST] * 2


def test_a_step_that_cannot_read_pixels_ends_no_decode_row() -> None:
    """The step has some blocks of the tower for the image, and no token of the request that needs the image."""
    h = ImageHarness(max_context=96, num_slots=400, max_running_requests=8, max_gap_ms=0.001)
    h.show("text", [7, 8, 9], max_tokens=40, ignore_eos=True)
    h.turn()
    h.show("lost", [BOOK, 5])
    while not h.part.pool.encodings:
        assert h.submit()
        batch = h.inflight[-1]
        if not h.part.pool.encodings:
            h.commit()
    assert [req.rid for req in batch.requests] == ["text"]
    (lost,) = h.part.pool.encodings
    ended = h.scheduler.fail(h.inflight.pop(), "gone", h.now, lost_input=lost.number)
    h.take()
    assert [req.rid for req in ended] == ["lost"]
    h.drain()
    h.assert_seen("text")


def test_a_step_that_cannot_read_pixels_ends_only_the_requests_that_need_them() -> None:
    """The file was there when the step was decided. All other requests are computed again."""
    h = ImageHarness(max_context=96, num_slots=400, max_running_requests=8)
    h.show("text", [7, 8, 9], max_tokens=40, ignore_eos=True)
    for rid, image in (("lost", BOOK), ("other", CAT)):
        h.show(rid, [1, image, 5])
    h.show("later", [2, BOOK, 5])
    assert h.submit()
    batch = h.inflight.popleft()
    (lost,) = (each for each in h.part.pool.encodings if each.image.digest == BOOK.digest)
    ended = h.scheduler.fail(batch, "gone", h.now, lost_input=lost.number)
    h.take()
    assert {req.rid for req in ended} == {"lost", "later"}
    assert h.finishes["lost"].error == h.finishes["later"].error == PIXELS_LOST
    h.drain()
    for rid in ("text", "other"):
        h.assert_seen(rid)


def test_a_new_scheduler_removes_the_names_of_the_last(tmp_path: Path) -> None:
    links = tmp_path / "links"
    h = ImageHarness(max_context=96, num_slots=96, links=str(links))
    h.show("r", [1, stored(BOOK, tmp_path), 5])
    assert len(list(links.iterdir())) == 1
    ImageHarness(links=str(links))
    assert list(links.iterdir()) == []


@pytest.mark.parametrize("seed", range(60))
def test_random_events(seed: int, tmp_path: Path) -> None:
    """Requests with images in small pools: retractions, aborts, deaths, failed steps, emptied caches, and a tokenizer
    that removes files of pixels."""
    rng = random.Random(seed)
    h = ImageHarness(
        links=str(tmp_path / "links"),
        rows=rng.choice([16, 20, 32]),
        num_slots=rng.choice([40, 64, 120]),
        page_size=rng.choice([1, 1, 4]),
        depth=rng.choice([1, 2]),
        max_context=64,
        max_running_requests=rng.randint(1, 5),
        chunked_prefill_size=rng.choice([1, 3, 7, 1000]),
        schedule_conservativeness=rng.choice([0.0, 0.3, 1.0]),
        max_gap_ms=rng.choice([1.0, 50.0, 1e9]),
        flops_per_s=rng.choice([1e4, 1e6, 1e9]),
    )
    pictures = [stored(picture(i, rng.randint(1, 4), rng.randint(1, 4)), tmp_path) for i in range(4)]
    count, disturbed = 0, set()
    for _ in range(200):
        h.now += rng.choice([0.0, 0.001, 0.02])
        event = rng.random()
        if event < 0.25:
            parts: list = []
            for _ in range(rng.randint(1, 4)):
                parts += rng.choices(range(1, 6), k=rng.randint(0, 4))
                if rng.random() < 0.6:
                    parts.append(stored(rng.choice(pictures), tmp_path))
            h.show(f"r{count}", parts or [1], max_tokens=rng.choice([1, 4, 12]), cache_salt=rng.choice(["", "", "a"]))
            if rng.random() < 0.5:
                for each in pictures:
                    Path(each.pixels).unlink(missing_ok=True)
            count += 1
        elif event < 0.90:
            h.turn()
        elif event < 0.92 and count:
            rid = f"r{rng.randrange(count)}"
            if rid not in h.finishes:
                disturbed.add(rid)
                h.scheduler.abort(rid, h.now)
                h.take()
        elif event < 0.94 and h.inflight:
            disturbed |= {req.rid for req in h.inflight[0].requests}
            h.fail()
        elif event < 0.96:
            while h.inflight and rng.random() < 0.5:
                h.commit()
            h.kill()
            h.restart()
        elif event < 0.98:
            h.scheduler.flush_cache()
        else:
            h.scheduler.forget_namespace("a", whole_owner=False)
    h.drain()
    of_void_steps = {digest.hex() for digests in h.part._reads.values() for digest in digests}
    assert {path.name for path in (tmp_path / "links").iterdir()} == of_void_steps
    for number in range(count):
        rid = f"r{number}"
        if rid not in disturbed and h.finishes[rid].error is None:
            h.assert_seen(rid)
    assert sum(h.finishes[f"r{n}"].error is None for n in range(count)) > count // 2
