"""A model of what a cluster makes of manifests: which pods there are, and what names resolve to.

Nothing here judges; that is in checks.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import operators
from workload import NAMESPACE, Object, Pod, matches


class Cluster:
    """The objects of one rendered overlay or chart, and the pods that follow from them."""

    def __init__(self, documents: list[Object]) -> None:
        self.given = documents
        self.workloads, made = operators.apply(documents)
        self.documents = documents + made
        self.pods = [pod for workload in self.workloads for pod in workload.pods]
        for number, pod in enumerate(self.pods, 10):
            pod.address = f"10.244.0.{number}"

    def of_kind(self, kind: str) -> Iterator[Object]:
        """Objects of the files, and those that operators make of them."""
        return (d for d in self.documents if d["kind"] == kind)

    def service(self, name: str | None) -> Object | None:
        return next((s for s in self.of_kind("Service") if s["metadata"]["name"] == name), None)

    def selected(self, service: Object) -> list[Pod]:
        return [pod for pod in self.pods if matches(service["spec"].get("selector", {}), pod.labels)]

    def resolve(self, host: str) -> tuple[list[Pod], Object | None]:
        """The pods that a name leads to, and the ClusterIP Service in between if there is one."""
        first, _, rest = host.removesuffix(f".{NAMESPACE}").partition(".")
        if not rest:
            service = self.service(first)
            if service is None:
                return [], None
            return self.selected(service), None if service["spec"].get("clusterIP") == "None" else service
        service = self.service(rest)
        if service is None or service["spec"].get("clusterIP") != "None":
            return [], None
        return [pod for pod in self.selected(service) if pod.hostname == first and pod.subdomain == rest], None
