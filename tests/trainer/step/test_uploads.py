from __future__ import annotations

import subprocess
import sys
import threading

import pytest

from trainer.step.uploads import UploadThread


def test_in_order_with_results_and_errors():
    thread, seen = UploadThread(), []

    def upload(number):
        seen.append((number, threading.current_thread().name))
        if number == 2:
            raise MemoryError("no room")
        return number

    futures = [thread.submit(upload, number) for number in range(4)]
    thread.end()
    assert [futures[i].result(timeout=30) for i in (0, 1, 3)] == [0, 1, 3]
    with pytest.raises(MemoryError, match="no room"):
        futures[2].result(timeout=30)
    assert seen == [(number, "uploads") for number in range(4)]


def test_what_is_cancelled_is_not_begun():
    thread, begin, seen = UploadThread(), threading.Event(), []
    first = thread.submit(begin.wait, 30)
    second = thread.submit(seen.append, 1)
    assert second.cancel()
    thread.end()
    begin.set()
    assert first.result(timeout=30) is True
    assert seen == []


def test_an_upload_that_hangs_keeps_no_process_from_ending():
    code = (
        "import threading\nfrom trainer.step.uploads import UploadThread\n"
        "from trainer.step import uploads; uploads.END_SECS = 0.1\n"
        "thread = UploadThread()\nthread.submit(threading.Event().wait)\nthread.end()\nprint('done')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
