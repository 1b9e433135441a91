"""Group J: retry services."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reliable_spark.core.retry_schedule import Backoff, RecordId, RetrySchedule


def schedule(initial_s: float = 0, max_retries: int | None = None) -> RetrySchedule:
    return RetrySchedule(Backoff(initial_s=initial_s, period_s=initial_s, max_s=1000, max_retries=max_retries))


def failed(partition: str = "P", offset: int = 0, times: int = 1) -> RecordId:
    return RecordId(partition, offset, failures=times)


def test_j1_schedule_look_up_remove() -> None:
    """The id is kept with its failures; what is removed is not due."""
    service, record = schedule(max_retries=1), failed()
    assert service.schedule(record, 0)
    assert service.record_id("P", 0) is record
    assert (service.is_scheduled(record), service.is_ready(record, 0), service.ready_count(0)) == (True, True, 1)
    assert service.earliest_ready(0) == {"P": 0}
    assert service.remove(record)
    assert (service.is_scheduled(record), service.is_ready(record, 0), service.ready_count(0)) == (False, False, 0)
    assert service.earliest_ready(0) == {}
    assert not service.remove(record)
    assert service.record_id("P", 0).failures == 0


def test_j1_rescheduling_counts_from_now() -> None:
    """One due time per record; removed once it is never due."""
    service, record = schedule(1), failed()
    service.schedule(record, 0)
    service.schedule(record, 0.5)
    assert (service.is_ready(record, 1.0), service.is_ready(record, 1.5)) == (False, True)
    service.remove(record)
    assert not service.is_ready(record, 1e9)


def test_j2_several_partitions_several_messages() -> None:
    """The earliest due offset of each partition; forgetting one partition leaves the other."""
    service, first, second = schedule(1), failed("P"), failed("Q")
    service.schedule(first, 0)
    service.schedule(second, 0.5)
    assert service.earliest_ready(1.0) == {"P": 0}
    assert service.earliest_ready(1.5) == {"P": 0, "Q": 0}
    service.retain({"Q"})
    assert (service.is_scheduled(first), service.is_ready(first, 9), service.is_scheduled(second)) == (
        False,
        False,
        True,
    )
    assert service.earliest_ready(1.5) == {"Q": 0}


def test_j2_several_messages_on_one_partition() -> None:
    """Only due ones count, the smallest first."""
    service = schedule(1)
    service.schedule(failed(offset=0), 0)
    service.schedule(failed(offset=1), 0.5)
    assert service.earliest_ready(1.0) == service.earliest_ready(1.5) == {"P": 0}
    service.remove(failed(offset=0))
    assert service.earliest_ready(1.5) == {"P": 1}


def test_j3_retry_limit_and_cap() -> None:
    """Three retries: the fourth failure is refused and its schedule goes; no wait exceeds the cap."""
    service = schedule(max_retries=3)
    assert service.schedule(failed(times=3), 0)
    assert not service.schedule(failed(times=4), 0)
    assert not service.is_scheduled(failed())
    capped = RetrySchedule(Backoff(initial_s=500, period_s=0, max_s=2))
    capped.schedule(failed(), 0)
    assert (capped.is_ready(failed(), 1.99), capped.is_ready(failed(), 2)) == (False, True)


def test_j6_delay_grows_to_the_cap() -> None:
    """100, 200, 400, 800, 1600, then 2000 for ever, also after very many failures."""
    backoff = Backoff(initial_s=100, period_s=100, max_s=2000)
    assert [backoff.delay_s(n) for n in range(1, 8)] == [100, 200, 400, 800, 1600, 2000, 2000]
    assert backoff.delay_s(10**9) == 2000
    service, record, now = RetrySchedule(backoff), RecordId("P", 0), 0.0
    for delay in (100, 200, 400, 800):
        record = record.failed()
        service.schedule(record, now)
        assert not service.is_ready(record, now + delay / 2)
        now += delay
        assert service.is_ready(record, now)
        record = service.begin(record)


def test_j6_state_errors() -> None:
    """A retry begins once per failure; fail then ack leaves nothing, ack then fail is due."""
    service, record = schedule(), failed()
    with pytest.raises(LookupError, match="no failure that waits"):
        service.begin(record)
    service.schedule(record, 0)
    assert service.begin(record) is record
    with pytest.raises(LookupError, match="no failure that waits"):
        service.begin(record)
    service.schedule(record, 0)
    service.remove(record)
    assert service.ready_count(9) == 0
    service.remove(record)
    service.schedule(record, 0)
    assert service.ready_count(9) == 1


def test_what_has_not_failed_cannot_be_scheduled() -> None:
    """It has no wait."""
    with pytest.raises(ValueError, match="failures must be 1 or more"):
        schedule().schedule(RecordId("P", 0), 0)


@pytest.mark.parametrize("wrong", [{"initial_s": -1}, {"max_s": float("inf")}, {"max_retries": -1}])
def test_a_wrong_backoff_is_refused(wrong: dict[str, float]) -> None:
    """By the name of the field."""
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Backoff(**wrong)  # type: ignore[arg-type]


@given(st.floats(0, 10), st.floats(0, 10), st.floats(0, 100), st.integers(1, 5000))
def test_waits_grow_and_stay_below_the_cap(initial_s: float, period_s: float, max_s: float, failures: int) -> None:
    """From the second failure on no wait is shorter than the one before, and none exceeds the cap."""
    backoff = Backoff(initial_s, period_s, max_s)
    assert 0 <= backoff.delay_s(failures) <= max_s
    assert backoff.delay_s(failures + 2) >= backoff.delay_s(failures + 1)
