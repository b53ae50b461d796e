"""Turns of clients whose first task waits."""

from __future__ import annotations

from radixrt.tokenizer.turns import Turns


def test_a_parked_client_has_no_turns_until_it_is_resumed():
    turns: Turns[int] = Turns()
    for client, task in (("a", 1), ("a", 2), ("b", 3), ("b", 4)):
        turns.add(client, task)
    assert turns.take() == ("a", 1)
    turns.put_back("a", 1, park=True)
    assert [turns.take(), turns.take()] == [("b", 3), ("b", 4)]
    assert turns.take() is None  # the call for task 2
    assert turns.resume("a") == 2  # for task 1, and for the call that found nothing
    assert [turns.take(), turns.take()] == [("a", 1), ("a", 2)]
    turns.add("b", 5)
    assert turns.take() == ("b", 5)


def test_a_later_section_waits_for_a_parked_client():
    turns: Turns[int] = Turns()
    turns.add("a", 1)
    assert turns.take() == ("a", 1)
    turns.put_back("a", 1, park=True)
    turns.add("", 2, alone=True)
    turns.add("b", 3)
    assert [turns.take(), turns.take()] == [None, None]
    assert turns.resume("a") == 3
    assert [turns.take(), turns.take(), turns.take()] == [("a", 1), ("", 2), ("b", 3)]


def test_two_parked_clients():
    turns: Turns[int] = Turns()
    for client, task in (("a", 1), ("b", 2), ("b", 3)):
        turns.add(client, task)
    for client, task in (("a", 1), ("b", 2)):
        assert turns.take() == (client, task)
        turns.put_back(client, task, park=True)
    assert turns.take() is None
    assert turns.resume("a") == 2
    assert turns.take() == ("a", 1)
    assert turns.take() is None
    assert turns.resume("b") == 2
    assert [turns.take(), turns.take()] == [("b", 2), ("b", 3)]
