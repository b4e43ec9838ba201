"""A thread that uploads beside a device's work."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from graphcache.device.base import Buffer

END_SECS = 10.0
Upload = tuple[Future[Buffer], Callable[[], Buffer]]


class UploadThread:
    """Uploads one after the other, in order.

    The thread is a daemon, which an executor's is not: an upload that hangs in a driver keeps no run from ending.
    """

    def __init__(self) -> None:
        self._todo: SimpleQueue[Upload | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="uploads", daemon=True)
        self._thread.start()

    def submit(self, upload: Callable[..., Buffer], *args: Any) -> Future[Buffer]:
        """Have it done; the future has its result, or raises what it raised."""
        future: Future[Buffer] = Future()
        self._todo.put((future, lambda: upload(*args)))
        return future

    def end(self) -> None:
        """No more uploads. One that is still running, after an error elsewhere, gets END_SECS to finish."""
        self._todo.put(None)
        self._thread.join(END_SECS)

    def _work(self) -> None:
        while (todo := self._todo.get()) is not None:
            future, upload = todo
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(upload())
            except BaseException as error:  # the thread that waits for the future must see it
                future.set_exception(error)
