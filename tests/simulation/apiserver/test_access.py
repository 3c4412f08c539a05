from pathlib import Path

import pytest

from proto.kubernetes.client import ApiServer
from proto.kubernetes.errors import Forbidden
from proto.kubernetes.objects import (
    NODES,
    SELF_SUBJECT_ACCESS_REVIEWS,
    AccessReviewSpec,
    ResourceAttributes,
    SelfSubjectAccessReview,
)
from simulation.apiserver import EmbeddedApiServer


async def test_what_is_denied_is_refused_and_admitted_to_beforehand(tmp_path: Path) -> None:
    async with EmbeddedApiServer() as server:
        (tmp_path / "kubeconfig").write_text(server.kubeconfig())
        api = await ApiServer.connect(str(tmp_path / "kubeconfig"))
        try:
            question = SelfSubjectAccessReview(
                spec=AccessReviewSpec(resource_attributes=ResourceAttributes(verb="list", resource="nodes"))
            )
            assert (await api.create(SELF_SUBJECT_ACCESS_REVIEWS, question)).status.allowed
            assert (await api.list_page(NODES)).items == []
            server.denied.add(("list", "nodes"))
            assert not (await api.create(SELF_SUBJECT_ACCESS_REVIEWS, question)).status.allowed
            with pytest.raises(Forbidden):
                await api.list_page(NODES)
        finally:
            await api.close()
