import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from program.lobby import Lobby


@pytest.fixture
def sockets() -> Iterator[list[socket.socket]]:
    with ExitStack() as stack:
        yield [stack.enter_context(socket.socket()) for _ in range(6)]


def test_the_address_with_the_fewest_places_is_next_and_of_it_who_came_first(sockets: list[socket.socket]) -> None:
    lobby = Lobby(most=9)
    for waiting, address in zip(sockets, "aaab", strict=False):
        assert lobby.enter(waiting, address)
    assert (lobby.next({"a": 1}), lobby.next({"b": 1})) == ("b", "a")
    assert [lobby.take(address) for address in "baa"] == [sockets[3], sockets[0], sockets[1]]
    assert lobby.next({"a": 5}) == "a"


def test_where_too_many_wait_the_newest_of_the_address_with_the_most_leaves(sockets: list[socket.socket]) -> None:
    lobby = Lobby(most=3)
    for waiting, address in zip(sockets, "aabab", strict=False):
        lobby.enter(waiting, address)
    assert [each.fileno() == -1 for each in sockets] == [False, True, False, True, False, False]
    lobby.close()
    assert [each.fileno() == -1 for each in sockets] == [True, True, True, True, True, False]
