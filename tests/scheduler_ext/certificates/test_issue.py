from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from scheduler_ext.certificates.issue import CLOCK_SKEW, LIFETIME, Issued, Validity, issue, read

T0 = datetime(2030, 1, 1, tzinfo=UTC)
NAMES = frozenset({"topogpu.kube-system.svc", "127.0.0.1"})
FIRST = issue(NAMES, T0)
SECOND = issue(NAMES, T0 + timedelta(days=243), FIRST.authorities)


def count(pem: bytes) -> int:
    return pem.count(b"BEGIN CERTIFICATE")


def test_it_says_what_was_asked_for() -> None:
    start = T0 - CLOCK_SKEW
    assert read(FIRST) == Validity(not_before=start, not_after=start + LIFETIME, names=NAMES)


def test_the_authority_before_stays_trusted_until_it_ends_and_no_longer() -> None:
    assert SECOND.authorities.endswith(FIRST.authorities)
    assert (count(FIRST.authorities), count(SECOND.authorities)) == (1, 2)
    third = issue(NAMES, T0 + timedelta(days=300), SECOND.authorities)
    assert (count(third.authorities), FIRST.authorities in third.authorities) == (2, False)
    assert count(issue(NAMES, T0 + timedelta(days=400), FIRST.authorities).authorities) == 1
    assert count(issue(NAMES, T0, b"garbage").authorities) == 1


def test_each_has_keys_of_its_own() -> None:
    assert len({FIRST.key, SECOND.key, FIRST.authorities, SECOND.certificate}) == 4


@pytest.mark.parametrize(
    "broken",
    [
        replace(FIRST, key=SECOND.key),
        replace(FIRST, authorities=SECOND.authorities),
        replace(FIRST, certificate=FIRST.authorities),
        replace(FIRST, key=b""),
        replace(FIRST, certificate=b"garbage"),
        replace(FIRST, authorities=b""),
        Issued(authorities=b"", certificate=b"", key=b""),
    ],
)
def test_what_does_not_belong_together_is_no_certificate(broken: Issued) -> None:
    assert read(broken) is None
