"""The time that the tower is predicted to take, and what a step beside decode rows encodes in that time."""

from __future__ import annotations

import msgspec
import pytest

from radixrt.messages.request import Envelope, Request
from radixrt.messages.wire import pack_i32
from radixrt.models.vision_spec import VisionSpec
from radixrt.parts.media.tower_times import NO_WORK, TowerTimes, TowerWork
from radixrt.parts.overload.prediction import arrival_of
from radixrt.parts.overload.scheduler import Overload
from radixrt.sampling_params import SamplingParams
from tests.parts.media.fake_tower import BLOCKS, TOWER, ImageHarness, joined, picture
from tests.parts.media.test_media import sections

WORK = TowerWork(images=2, blocks=10, flops=4e9)


def test_seconds_are_fixed_times_and_products() -> None:
    times = TowerTimes(flops_per_s=1e9, image_s=0.5, block_s=0.1)
    assert times.seconds(WORK) == pytest.approx(2 * 0.5 + 10 * 0.1 + 4.0)
    assert times.seconds(WORK.plus(WORK)) == pytest.approx(2 * times.seconds(WORK))
    assert times.seconds(NO_WORK) == 0.0


def test_steps_of_the_tower_alone_teach_its_speed() -> None:
    times = TowerTimes(flops_per_s=1e9)
    for _ in range(30):
        times.learn(WORK, step_s=12.0, tokens_s=0.0)
    assert times.seconds(WORK) == pytest.approx(12.0, rel=0.02)


def test_one_unusual_step_changes_little() -> None:
    slow, fast = TowerTimes(flops_per_s=1e9), TowerTimes(flops_per_s=1e9)
    slow.learn(WORK, step_s=1000.0, tokens_s=0.0)
    fast.learn(WORK, step_s=0.001, tokens_s=0.0)
    assert slow.seconds(WORK) < 1.61 * 4.0
    assert fast.seconds(WORK) > 0.84 * 4.0


def test_a_step_of_many_tokens_says_little_about_the_tower() -> None:
    """The time of the tokens is predicted 10 % too low, which is as much as the tower takes."""
    times = TowerTimes(flops_per_s=1e9)
    times.learn(WORK, step_s=48.0, tokens_s=40.0)
    assert times.seconds(WORK) < 1.02 * 4.0


@pytest.mark.parametrize("deepstack", [(), (1, 3)])
@pytest.mark.parametrize("kind", ["qwen_vl", "idefics3", "llava"])
def test_the_flops_of_pieces_add_up(kind: str, deepstack: tuple[int, ...]) -> None:
    spec = VisionSpec(
        kind, 7, (), patch=4, merge=2, depth=6, hidden=16, intermediate=32, heads=2, out_size=24, table_side=4,
        deepstack=deepstack,
    )  # fmt: skip
    whole = spec.flops(32, 48)
    for cut in range(1, 6):
        pieces = spec.piece_flops(32, 48, 0, cut) + spec.piece_flops(32, 48, cut, 6 - cut)
        assert pieces == whole > 6 * spec.block_flops(32, 48)


def busy(prompts: int = 0) -> ImageHarness:
    """Return a harness with a decoding request, and with some prompts that have taught the time of prompts. Each step
    took 10 ms."""
    h = ImageHarness(num_slots=800, max_context=200, max_gap_ms=50.0, max_running_requests=16)
    h.show("text", [1, 2, 3], max_tokens=150, ignore_eos=True)
    step(h)
    for number in range(prompts):
        h.show(f"warm{number}", [20 + number, *range(5, 20)], max_tokens=1)
        while f"warm{number}" not in h.finishes:
            step(h)
    return h


def step(h: ImageHarness, seconds: float = 0.01) -> None:
    assert h.submit()
    h.now += seconds
    h.commit()


def test_images_of_several_requests_share_the_time_of_a_step() -> None:
    """Each image takes 30 ms: the decode rows of a step wait for one of them."""
    h = busy()
    h.part.times = TowerTimes(TOWER.flops(2, 2) / 0.03)
    for number in range(4):
        h.show(f"r{number}", [1, picture(number, 2, 2), 2], max_tokens=1)
    while any(f"r{number}" not in h.finishes for number in range(4)):
        step(h, 0.035)
    for number in range(4):
        h.assert_seen(f"r{number}")
    for section in sections(h):
        assert sum(piece.count for piece in section.encode) < 2 * BLOCKS
    assert sum(piece.count for section in sections(h) for piece in section.encode) == 4 * BLOCKS


def test_small_images_take_their_fixed_times() -> None:
    """The products of an image take no time, and its begin 15 ms: a step has time for two."""
    h = busy(prompts=12)
    h.part.times = TowerTimes(1e30, image_s=0.015)
    for number in range(6):
        h.show(f"r{number}", [1, picture(number, 1, 1), 2], max_tokens=1)
    h.submit()
    (section,) = sections(h)
    assert len(section.encode) == 2


def test_until_the_time_of_tokens_is_known_they_get_a_step_of_their_own() -> None:
    """Such steps teach their time; a step with both would not."""
    h = busy()
    for number in range(12):
        h.show(f"r{number}", [1, picture(number, 2, 2), 2], max_tokens=1)
        while f"r{number}" not in h.finishes:
            step(h)
            shape = h.batches[-1].shape
            if number < 5 and shape.rows:
                assert not (h.batches[-1].added_s and shape.tokens)
        h.assert_seen(f"r{number}")
    assert h.scheduler.step_time.times.extend_steps >= 8
    assert any(batch.added_s and batch.shape.tokens for batch in h.batches)


def test_a_step_says_whether_decode_rows_wait() -> None:
    h = ImageHarness(num_slots=200, max_context=96)
    h.show("alone", [1, picture(1, 2, 2), 2], max_tokens=30, ignore_eos=True)
    step(h)
    h.show("beside", [1, picture(2, 2, 2), 2], max_tokens=1)
    step(h)
    assert [section.is_awaited for section in sections(h) if section.encode] == [False, True]


def test_a_forecast_counts_the_images_that_are_in_neither_cache_nor_pool() -> None:
    h = ImageHarness(num_slots=200, max_context=96)
    large, small = picture(1, 3, 4), picture(2, 2, 2)
    h.part.times = TowerTimes(1e3, image_s=1.0, block_s=0.5)
    alone = {
        image.digest: 1.0 + BLOCKS * 0.5 + TOWER.flops(image.height, image.width) / 1e3 for image in (large, small)
    }
    _, images = joined([1, large, 2, small, large, 3])
    both = alone[large.digest] + alone[small.digest]
    for cached, expected in ((0, both), (12, both), (13, both), (18, alone[large.digest]), (30, 0.0)):
        assert h.part.input_seconds(images, "", cached) == pytest.approx(expected), cached
    h.show("r", [1, large, 2], max_tokens=1)
    req = h.scheduler.waiting[0]
    assert req.inputs is not None
    assert req.inputs.seconds(0) == pytest.approx(alone[large.digest])
    assert req.inputs.seconds(13) == 0.0
    h.drain()
    assert h.part.input_seconds(images, "", 0) == pytest.approx(alone[small.digest])
    assert h.part.input_seconds(images, "other", 0) == pytest.approx(both)


def test_the_time_of_a_position_follows_the_images() -> None:
    h = ImageHarness(num_slots=800, max_context=96)
    h.part.times = TowerTimes(1e3, image_s=2.0)
    usual = h.part.stats(0.0)["media"].position_s
    assert usual == pytest.approx((2.0 + TOWER.flops(16, 16) / 1e3) / 256)
    for number in range(100):
        h.show(f"r{number}", [1, picture(number, 1, 2), 2], max_tokens=1)
        h.drain()
    assert h.part.stats(0.0)["media"].position_s == pytest.approx((2.0 + TOWER.flops(1, 2) / 1e3) / 2)


def test_a_request_with_a_slow_image_is_predicted_to_take_longer() -> None:
    waits = []
    for flops_per_s in (1e9, 1e3):
        h = busy(prompts=12)
        h.part.times = TowerTimes(flops_per_s)
        predictor = h.scheduler.part(Overload).load
        ids, images = joined([1, picture(1, 3, 4), 2])
        made = Request.continue_prompt(Envelope("r"), pack_i32(ids), SamplingParams(max_tokens=1))
        message = msgspec.structs.replace(made, rows=[msgspec.structs.replace(made.rows[0], images=images)])
        found = predictor.predict(arrival_of(message, 200, 60.0), h.now, 0)
        waits.append(found.service_s)
    assert waits[1] - waits[0] == pytest.approx(TOWER.flops(3, 4) / 1e3, rel=0.01)
