"""`hami.io/node-nvidia-score`: the score of the link between each pair of a node's GPUs.

`[{"uuid": A, "score": {B: 100}}]`. Integers are written, because HAMi's scheduler drops the whole node for
anything else; integer strings, as in HAMi's topology design note, are read as well.
"""

from collections.abc import Sequence
from sys import intern

import msgspec

from proto.annotations.keys import NODE_SCORE
from proto.annotations.values import decode_integer, decode_json
from proto.devices import DeviceUUID, Int32, PairScores


class _ScoreRow(msgspec.Struct):
    uuid: DeviceUUID
    score: dict[DeviceUUID, Int32 | str] = {}


def encode_scores(scores: PairScores, order: Sequence[DeviceUUID]) -> str:
    """Writes rows in `order`, each row's peers sorted by UUID as Go's encoder does."""
    rows = [{"uuid": uuid, "score": dict(sorted(scores.get(uuid, {}).items()))} for uuid in order]
    return msgspec.json.encode(rows).decode()


def decode_scores(value: str) -> PairScores:
    """Reads scores by GPU and peer. Raises AnnotationError naming the GPU and peer that cannot be read."""
    rows = decode_json(NODE_SCORE, value, list[_ScoreRow])
    return {DeviceUUID(intern(row.uuid)): _row_scores(row) for row in rows}


def _row_scores(row: _ScoreRow) -> dict[DeviceUUID, int]:
    return {DeviceUUID(intern(peer)): _score(row.uuid, peer, score) for peer, score in row.score.items()}


def _score(uuid: str, peer: str, score: int | str) -> int:
    return score if isinstance(score, int) else decode_integer(NODE_SCORE, f"{uuid} to {peer}", score)
