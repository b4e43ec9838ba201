"""Kubernetes objects: a Job that pulls the image, an Indexed Job that fills the cache, a Job that trains.

Fields are those of batch/v1; `podFailurePolicy` with `FailIndex` needs Kubernetes 1.33, or 1.29 with its gate on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graphcache.errors import REFUSED_EXIT_CODE
from graphcache.jobs.request import JobRequest

CARD = "furiosa.ai/rngd"
# The Dockerfile's user: torch asks for the name of its user, so one without a line in passwd will not do.
USER = 10001
CACHE, SCRATCH = "/cache", "/tmp"
TTL_SECS = 86_400
PREFLIGHT_SECS = 900
BACKOFF_PER_INDEX = 3


def objects(
    request: JobRequest, *, secret: str | None, namespace: str | None, train: Sequence[str], cards: int
) -> list[dict[str, Any]]:
    """What to submit, in this order; `train`: the words after `python -m trainer run`, empty for no training."""
    maker = _Maker(request, secret, namespace)
    return [maker.preflight(), maker.build(), *([maker.train(train, cards)] if train else [])]


class _Maker:
    def __init__(self, request: JobRequest, secret: str | None, namespace: str | None) -> None:
        self._request, self._secret, self._namespace = request, secret, namespace

    def preflight(self) -> dict[str, Any]:
        """Asks for nothing that is scarce: an image that cannot be pulled ends here, not in a pod that holds cards."""
        container = self._container("preflight", ["graphcache", "--version"], cpu="100m", memory="256Mi")
        spec = {"activeDeadlineSeconds": PREFLIGHT_SECS, "backoffLimit": 0}
        return self._job("preflight", spec, self._pod(container))

    def build(self) -> dict[str, Any]:
        request = self._request
        container = self._container("build", request.command, cpu="2", memory=f"{request.memory_gib}Gi")
        spec = {
            "completionMode": "Indexed",
            "completions": request.shards,
            "parallelism": request.shards,
            "activeDeadlineSeconds": request.deadline_secs,
            "backoffLimitPerIndex": BACKOFF_PER_INDEX,
            # Every shard may fail: the others still fill the cache.
            "maxFailedIndexes": request.shards,
            "podFailurePolicy": {"rules": _failure_rules()},
        }
        return self._job("build", spec, self._pod(container))

    def train(self, words: Sequence[str], cards: int) -> dict[str, Any]:
        """Its init container ends the pod within seconds when a graph is missing; nothing compiles on a card's node."""
        check = self._container("check", ["python", "-m", "trainer", "check", *words], cpu="1", memory="4Gi")
        run = self._container("train", ["python", "-m", "trainer", "run", *words], cpu="8", memory="64Gi")
        run["resources"]["limits"][CARD] = str(cards)
        # Exit code 3 is 'graphs are missing': the same in the next pod.
        rules = [
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 3]}},
            {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        ]
        spec = {"backoffLimit": 2, "podFailurePolicy": {"rules": rules}}
        return self._job("train", spec, {**self._pod(run), "initContainers": [check]})

    def _job(self, part: str, spec: dict[str, Any], pod: dict[str, Any]) -> dict[str, Any]:
        labels = {"app.kubernetes.io/name": "graphcache", "app.kubernetes.io/instance": self._request.name}
        labels["app.kubernetes.io/component"] = part
        metadata: dict[str, Any] = {"name": f"{self._request.name}-{part}", "labels": labels}
        if self._namespace:
            metadata["namespace"] = self._namespace
        template = {"metadata": {"labels": labels}, "spec": pod}
        whole = {"ttlSecondsAfterFinished": TTL_SECS, **spec, "template": template}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": whole}

    def _pod(self, container: dict[str, Any]) -> dict[str, Any]:
        cache: dict[str, Any] = {"name": "cache", "emptyDir": {}}
        if self._request.volume:
            cache = {"name": "cache", "persistentVolumeClaim": {"claimName": self._request.volume}}
        return {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "fsGroup": USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "volumes": [cache, {"name": "scratch", "emptyDir": {}}],
            "containers": [container],
        }

    def _container(self, name: str, command: list[str], *, cpu: str, memory: str) -> dict[str, Any]:
        # A volume belongs to a group, and an empty folder is made for one: both are shared as far as a pod can tell.
        env = {"GRAPHCACHE_DIR": CACHE, "GRAPHCACHE_SHARED": "1", "HOME": SCRATCH, "TMPDIR": SCRATCH}
        if self._request.remote and name in ("check", "train"):
            env["GRAPHCACHE_REMOTE"] = self._request.remote
        container: dict[str, Any] = {
            "name": name,
            "image": self._request.image,
            "command": command,
            "env": [{"name": key, "value": value} for key, value in env.items()],
            "resources": {"requests": {"cpu": cpu, "memory": memory}, "limits": {"memory": memory}},
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": "cache", "mountPath": CACHE}, {"name": "scratch", "mountPath": SCRATCH}],
        }
        if self._secret and name != "preflight":
            container["envFrom"] = [{"secretRef": {"name": self._secret}}]
        return container


def _failure_rules() -> list[dict[str, Any]]:
    """What the compiler refuses it refuses again; an eviction is nobody's fault; anything else is tried again."""
    return [
        {"action": "FailIndex", "onExitCodes": {"operator": "In", "values": [REFUSED_EXIT_CODE]}},
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    ]
