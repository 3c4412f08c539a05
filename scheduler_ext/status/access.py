"""Decides who may see the status page on an address that other hosts reach (edge of TokenReview and
SubjectAccessReview).

Without an answer of the API server, no one sees the page.
"""

import hashlib
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import ApiError, ApiUnreachable
from proto.kubernetes.objects import (
    SUBJECT_ACCESS_REVIEWS,
    TOKEN_REVIEWS,
    NonResourceAttributes,
    SubjectAccessReview,
    TokenReview,
    TokenReviewSpec,
    UserAccessReviewSpec,
)

PATH = "/topogpu/status"
"""The non-resource URL on which a user needs the right `get`."""
ALLOWED_SECONDS = 30.0
REFUSED_SECONDS = 10.0
MOST_REMEMBERED = 256
MOST_A_SECOND = 10
"""The most tokens that are looked up in a second. Strangers can send any number, and must not keep the API
server busy.
"""


@dataclass(frozen=True, slots=True)
class AccessRefusal:
    """An HTTP status and one sentence."""

    status: int
    why: str


_NO_TOKEN = AccessRefusal(401, "a token is needed to see this page")
_TOO_MANY = AccessRefusal(429, "too many tokens are being looked up; try again in a second")
_UNKNOWN = AccessRefusal(401, "the API server does not accept this token")


class TokenAccess:
    """Remembers each verdict for a short time, by a hash of the token. It runs on the event loop of the API client."""

    def __init__(self, api: ApiServer, monotonic: Callable[[], float]) -> None:
        self._api = api
        self._monotonic = monotonic
        self._known: OrderedDict[bytes, tuple[float, AccessRefusal | None]] = OrderedDict()
        self._looked_up: deque[float] = deque(maxlen=MOST_A_SECOND)

    async def refusal(self, token: str) -> AccessRefusal | None:
        """Returns why the token does not open the page; None if it does."""
        if not token:
            return _NO_TOKEN
        key, now = hashlib.sha256(token.encode()).digest(), self._monotonic()
        until, verdict = self._known.get(key, (now, None))
        if now < until:
            return verdict
        if len(self._looked_up) == MOST_A_SECOND and now - self._looked_up[0] < 1:
            return _TOO_MANY
        self._looked_up.append(now)
        try:
            verdict = await self._look_up(token)
        except (ApiError, ApiUnreachable) as error:
            return AccessRefusal(503, f"the API server does not answer who may see this page: {error}")
        seconds = ALLOWED_SECONDS if verdict is None else REFUSED_SECONDS
        self._known[key] = self._monotonic() + seconds, verdict
        self._known.move_to_end(key)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return verdict

    async def _look_up(self, token: str) -> AccessRefusal | None:
        """Returns the verdict of the API server. Raises ApiError or ApiUnreachable."""
        found = (await self._api.create(TOKEN_REVIEWS, TokenReview(spec=TokenReviewSpec(token=token)))).status
        if not found.authenticated or not found.user.username:
            return _UNKNOWN
        user = found.user
        access = UserAccessReviewSpec(
            user=user.username,
            uid=user.uid,
            groups=user.groups,
            extra=user.extra,
            non_resource_attributes=NonResourceAttributes(path=PATH, verb="get"),
        )
        verdict = await self._api.create(SUBJECT_ACCESS_REVIEWS, SubjectAccessReview(spec=access))
        return (
            None if verdict.status.allowed else AccessRefusal(403, f"user {user.username} has no right to get {PATH}")
        )
