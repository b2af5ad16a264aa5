"""Tests that turns are given according to the service that each client and recording has received."""

from __future__ import annotations

from speculative_decoding.server.turns import Turns


def served(turns: Turns[str], count: int, **amounts: float) -> str:
    """Give turns to recordings that always wait for another one. Returns their names. amounts: 1 by default."""
    found = ""
    for _ in range(count):
        item = turns.take()
        assert item is not None
        found += item
        turns.charge(item, amounts.get(item, 1.0))
        turns.wait(item)
    return found


def turns_of(**clients: str) -> Turns[str]:
    turns = Turns[str](credit=1.0)
    for item, client in clients.items():
        join(turns, item, client)
    return turns


def join(turns: Turns[str], item: str, client: str) -> None:
    turns.enter(item, client)
    turns.wait(item)


def test_a_newcomer_is_next_and_then_takes_turns_with_the_others() -> None:
    turns = turns_of(a="x", b="x")
    served(turns, 100)
    join(turns, "c", "x")
    assert served(turns, 7) == "cabcabc"


def test_a_client_with_many_recordings_gets_as_much_as_one_with_one() -> None:
    turns = turns_of(a="x", b="x", c="x", d="x")
    served(turns, 100)
    join(turns, "z", "y")
    found = served(turns, 20)
    assert found[0] == "z" and found.count("z") in (10, 11) and {found.count(each) for each in "abcd"} <= {2, 3}


def test_a_costly_turn_counts_as_much_as_several_cheap_ones() -> None:
    assert served(turns_of(a="x", b="y"), 40, a=3.0).count("a") == 10


def test_a_client_that_was_away_has_no_credit() -> None:
    turns = turns_of(a="x", b="y")
    served(turns, 100)
    turns.leave("b")
    served(turns, 100)
    join(turns, "b", "y")
    assert served(turns, 5) == "babab"


def test_a_stream_of_newcomers_does_not_stop_the_others() -> None:
    """Each new item gets the next turn, but not before items that have waited long."""
    for clients in ("xx", "xy"):  # of the long item, and of the new items
        turns = turns_of(long=clients[0])
        served_long = 0
        for number in range(200):
            join(turns, f"new {number}", clients[1])
            item = turns.take() or ""
            turns.charge(item, 1)
            if item == "long":
                served_long += 1
                turns.wait(item)
            else:
                turns.leave(item)
        # the number of items grows, so the fair share of the long item among those of its client falls
        assert served_long >= (90 if clients == "xy" else 15), (clients, served_long)


def test_newcomers_are_those_without_a_turn() -> None:
    turns = turns_of(a="x", b="y")
    served(turns, 1)
    assert turns.take(newcomers_only=True) == "b" and turns.take(newcomers_only=True) is None
    assert turns.take() == "a"


def test_one_that_left_gets_no_turn() -> None:
    turns = turns_of(a="x", b="y")
    turns.leave("a")
    turns.leave("a")
    turns.charge("a", 1)
    assert turns.take() == "b" and turns.take() is None and turns.waiting == 0 and turns.items == ["b"]
    turns.leave("b")
    assert not turns._clients
