"""What a job is to do, whichever engine runs it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

GIB = 1 << 30
# Without a record: the compiler's own peak at the largest graphs that were measured.
COMPILE_BYTES = 3 * GIB
# The command itself, torch's pages that its worker shares, and a page cache that is not thrown out at once.
OVERHEAD_BYTES = 1 * GIB
# A later version of the compiler may take more.
ROOM = 1.25


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """build: the build command's words, without shard and remotes; graphs: how many it has

    remote:      URL that is pushed to; None with a volume
    volume:      name of the claim of a shared volume (Kubernetes), or a shared folder (Slurm); None with a remote
    peak_bytes:  most that a compile of these graphs was recorded to take; None without a record
    deadline_secs: after which the engine ends the job
    """

    name: str
    image: str
    build: Sequence[str]
    graphs: int
    shards: int
    remote: str | None
    volume: str | None
    peak_bytes: int | None
    deadline_secs: int

    @property
    def memory_gib(self) -> int:
        """What a job asks for, one compile at a time."""
        return math.ceil(((self.peak_bytes or COMPILE_BYTES) * ROOM + OVERHEAD_BYTES) / GIB)

    @property
    def command(self) -> list[str]:
        """The build command of each job."""
        words = [*self.build, "--jobs", "1", "--shard", f"auto/{self.shards}"]
        return [*words, "--remote", self.remote, "--push"] if self.remote else words
