"""Leadership with a clock of our own: who takes the Lease, when, and when a leader must stop."""

from __future__ import annotations

import asyncio
import copy
from datetime import UTC, datetime
from typing import Any

import pytest
from octavo_operator.cluster.client import ApiError
from octavo_operator.cluster.lease import Leadership, LeaseLost
from octavo_operator.settings import LeaseSettings

NOW = datetime(2026, 1, 2, tzinfo=UTC)


class Server:
    """One Lease with the API server's rules: create once, update only from the newest version."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.answers = True
        self.hangs = False

    async def request(self, method: str, path: str, body: Any = None, *, timeout_seconds: float = 15.0) -> Any:
        if self.hangs:
            await asyncio.Event().wait()
        if not self.answers:
            raise ApiError(0, "Unreachable", f"{method} {path}")
        if method == "GET":
            if self.lease is None:
                raise ApiError(404, "NotFound", path)
            return copy.deepcopy(self.lease)
        if method == "POST":
            if self.lease is not None:
                raise ApiError(409, "AlreadyExists", path)
            version = 1
        else:
            assert self.lease is not None
            version = int(self.lease["metadata"]["resourceVersion"])
            if body["metadata"]["resourceVersion"] != str(version):
                raise ApiError(409, "Conflict", path)
            version += 1
        self.lease = copy.deepcopy(body)
        self.lease["metadata"]["resourceVersion"] = str(version)
        return copy.deepcopy(self.lease)

    @property
    def holder(self) -> str:
        assert self.lease is not None
        return str(self.lease["spec"]["holderIdentity"])


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def leadership(server: Server, clock: Clock, identity: str, **times: float) -> Leadership:
    moment = iter(range(10**9))

    def now() -> datetime:
        return NOW.replace(microsecond=next(moment) % 10**6)

    return Leadership(server, LeaseSettings(identity=identity, **times), clock, now)  # type: ignore[arg-type]


async def test_the_first_takes_the_lease_and_the_second_stands_by_while_it_is_renewed():
    server, clock = Server(), Clock()
    one, two = leadership(server, clock, "one"), leadership(server, clock, "two")
    assert await one.try_hold()
    for _ in range(20):
        clock.now += 5
        assert not await two.try_hold()
        assert await one.try_hold()
    assert server.holder == "one"


async def test_a_silent_leader_is_followed_after_the_leases_duration_by_the_successors_own_clock():
    server, clock = Server(), Clock()
    one, two = leadership(server, clock, "one"), leadership(server, clock, "two")
    assert await one.try_hold()
    clock.now += 1000
    assert not await two.try_hold(), "seen for the first time: it may have been renewed a moment ago"
    clock.now += 14.9
    assert not await two.try_hold()
    clock.now += 0.2
    assert await two.try_hold()
    assert server.holder == "two"
    assert server.lease["spec"]["leaseTransitions"] == 1
    assert not await one.try_hold(), "the old leader must see that it was followed"


async def test_of_two_takers_at_the_same_moment_one_wins():
    server, clock = Server(), Clock()
    takers = [leadership(server, clock, name) for name in ("one", "two", "three")]
    results = await asyncio.gather(*(taker.try_hold() for taker in takers), return_exceptions=True)
    assert sum(result is True for result in results) == 1, results


async def test_a_released_lease_is_taken_at_once():
    server, clock = Server(), Clock()
    one, two = leadership(server, clock, "one"), leadership(server, clock, "two")
    await one.acquire()
    await one.release()
    assert not one.proven()
    assert await two.try_hold()


async def test_a_foreign_lease_is_not_released():
    server, clock = Server(), Clock()
    await leadership(server, clock, "one").acquire()
    await leadership(server, clock, "two").release()
    assert server.holder == "one"


async def test_writes_are_fenced_once_the_last_renewal_is_older_than_the_deadline():
    server, clock = Server(), Clock()
    one = leadership(server, clock, "one")
    assert not one.proven()
    await one.acquire()
    clock.now += 9.9
    assert one.proven()
    clock.now += 0.2
    assert not one.proven()


@pytest.mark.parametrize("fault", ["answers", "hangs"])
async def test_a_leader_that_cannot_renew_gives_up_at_the_deadline(fault):
    server = Server()
    clock = asyncio.get_running_loop().time
    one = leadership(server, clock, "one", duration_seconds=0.6, renew_deadline_seconds=0.3, retry_seconds=0.05)  # type: ignore[arg-type]
    await one.acquire()
    setattr(server, fault, fault == "hangs")
    began = clock()
    with pytest.raises(LeaseLost, match="not renewed"):
        await asyncio.wait_for(one.keep(), 20)
    assert clock() - began >= 0.2
    assert not one.proven()


async def test_a_leader_that_was_followed_gives_up_at_once():
    server = Server()
    one = leadership(server, Clock(), "one", retry_seconds=0.01)
    await one.acquire()
    server.lease["spec"]["holderIdentity"] = "two"
    with pytest.raises(LeaseLost, match="another operator"):
        await asyncio.wait_for(one.keep(), 20)
    assert not one.proven()
