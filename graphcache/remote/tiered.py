"""A local store that looks further: what it lacks comes from its remotes, in their order, checked, and stays here.

What is here is never asked for elsewhere. A remote that does not answer costs its bounded wait once; then this store
goes on without it, and `troubles` says so. Writing to a remote is done only when asked for (`push`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

from graphcache.key import Key
from graphcache.remote.lease import Leases
from graphcache.remote.push import push_build, push_built, push_pair
from graphcache.remote.tier import Tier
from graphcache.remote.url import RemoteError, RemoteUrl
from graphcache.store.access import is_shared
from graphcache.store.base import Entry, Facts, Wanted
from graphcache.store.builds import BuildRecord
from graphcache.store.local import LocalStore
from graphcache.trust.guard import Guard

T = TypeVar("T")

PUSH_AGAIN = "run graphcache push, or the build again: what is there already costs nothing"


class TieredStore(LocalStore):
    """The store in `root`, then `remotes`.

    push: what is committed here is written to the last remote that can be written, at once
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        remotes: Sequence[RemoteUrl],
        *,
        push: bool = False,
        guard: Guard | None = None,
    ) -> None:
        super().__init__(root, guard)
        self.tiers = [Tier(url) for url in remotes]
        writable = [tier for tier in self.tiers if tier.url.writable]
        if push and not writable:
            raise RemoteError(
                f"none of {', '.join(tier.name for tier in self.tiers)} can be written",
                hint="push to a folder, s3 or gs",
            )
        self.push = push
        self.target = writable[-1] if push else None
        self._leasing = self.target or (Tier(RemoteUrl("file", str(self.root))) if is_shared() else None)

    @property
    def leased(self) -> bool:
        return self._leasing is not None

    @property
    def poll_secs(self) -> float:
        return super().poll_secs if self._leases is None else self._leases.poll_secs

    @cached_property
    def _leases(self) -> Leases | None:
        """Opened for the first claim: a build that finds everything makes none, and opens no remote."""
        try:
            return None if self._leasing is None else Leases(self._leasing.files)
        except RemoteError:
            # It cannot be pushed to either, which says why.
            return None

    @contextmanager
    def claim(self, key: Key) -> Iterator[bool]:
        """By the lock of this host, and by a lease where other hosts may compile for the same store."""
        leases = self._leases
        with super().claim(key) as alone:
            if leases is None or not alone:
                yield alone
                return
            held = leases.take(key.digest)
            try:
                yield held
            finally:
                if held:
                    leases.release(key.digest)

    def bring(self, wanted: Sequence[Wanted]) -> bool:
        return self._through_tiers(wanted, lambda tier, left: tier.bring(left, self))

    def bring_answers(self, questions: Sequence[str]) -> bool:
        return self._through_tiers(questions, lambda tier, left: tier.bring_answers(left, self))

    def commit(self, key: Key, data: bytes, facts: Facts) -> Entry:
        """As in the local store; then written to the remote too, if that is asked for. A remote that cannot take it is
        one of `troubles`, and what was committed stays here."""
        entry = super().commit(key, data, facts)
        self._push(lambda tier: push_pair(tier, self, entry))
        return entry

    def record_build(self, record: BuildRecord, before: BuildRecord | None = None) -> None:
        """As in the local store, then in the remote that is pushed to: a pod's cache goes with the pod."""
        super().record_build(record, before)
        self._push(lambda tier: push_build(tier, self, record))

    def push_built(self, entries: Sequence[Entry], answers: Iterable[str]) -> None:
        """Writes what the remote to push to lacks of a build's results. Raises RemoteError: they are here alone."""
        if not self.push:
            return
        if self.target is None:
            raise RemoteError(f"what was built is in {self.root} alone: {'; '.join(self.troubles)}", hint=PUSH_AGAIN)
        try:
            files = self.target.files
            files.run(push_built(self.target, self, entries, answers))
        finally:
            self._take_faults(self.target)

    def _push(self, work: Callable[[Tier], Coroutine[Any, Any, object]]) -> None:
        tier = self.target
        if tier is not None:
            self._ask(tier, lambda: work(tier))

    def _through_tiers(
        self, wanted: Sequence[T], ask: Callable[[Tier, Sequence[T]], Coroutine[Any, Any, list[bool]]]
    ) -> bool:
        left = list(wanted)
        for tier in list(self.tiers):
            if not left:
                break
            found = self._ask(tier, lambda tier=tier, left=left: ask(tier, left))  # type: ignore[misc]
            left = [one for one, here in zip(left, found or [False] * len(left), strict=True) if not here]
        return len(left) < len(wanted)

    def _ask(self, tier: Tier, work: Callable[[], Coroutine[Any, Any, T]]) -> T | None:
        """What the remote answers; None when it does not, and then it is not asked again."""
        try:
            files = tier.files
            return files.run(work())
        except RemoteError as error:
            self._drop(tier, error)
            return None
        finally:
            self._take_faults(tier)

    def _drop(self, tier: Tier, error: RemoteError) -> None:
        self.tiers.remove(tier)
        if tier is self.target:
            self.target = None
        self.troubles.append(f"{error.message}; it is not used any more by this command")

    def _take_faults(self, tier: Tier) -> None:
        self.faults += tier.faults
        tier.faults.clear()
