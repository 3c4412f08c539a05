"""Answers kubelet's probes."""

from collections.abc import Callable

from scheduler_ext.apiserver import ClusterWatch
from scheduler_ext.http.messages import HttpAnswer, HttpRequest, Routes, text_answer
from scheduler_ext.kube_scheduler import KubeScheduler
from scheduler_ext.leadership.leadership import Leadership


class Probes:
    def __init__(
        self,
        *,
        watch: ClusterWatch,
        leadership: Leadership,
        certified: Callable[[], bool],
        kube_scheduler: KubeScheduler | None,
    ) -> None:
        """`certified` returns whether the webhook has a certificate to show, or there is no webhook."""
        self._watch = watch
        self._leadership = leadership
        self._certified = certified
        self._kube_scheduler = kube_scheduler

    def routes(self) -> Routes:
        """Returns the probes, also for a listener that kubelet can reach; the verbs' own may be out of its reach."""
        routes = {"/healthz": {"GET": self._healthz}, "/readyz": {"GET": self._readyz}}
        kube_scheduler = self._kube_scheduler
        if kube_scheduler is None:
            return routes

        async def both(_: HttpRequest) -> HttpAnswer:
            problem = await kube_scheduler.problem()
            return text_answer(problem, 503 if problem else 200)

        return {**routes, "/healthz/kube-scheduler": {"GET": both}}

    async def _healthz(self, _: HttpRequest) -> HttpAnswer:
        return text_answer("")

    async def _readyz(self, _: HttpRequest) -> HttpAnswer:
        """Answers whether the extender is ready. A follower is: it serves the webhook, and a roll-out waits for it."""
        problem = self._unready()
        return text_answer(problem, 503 if problem else 200)

    def _unready(self) -> str:
        if missing := self._watch.missing():
            return f"waiting for the first list of {', '.join(missing)}"
        problem = self._watch.interrupted() or self._leadership.interrupted()
        if not problem and not self._certified():
            problem = "the webhook has no certificate yet; the log has the reason"
        return problem
