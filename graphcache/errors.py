"""Every error that a user can cause or meet, each with a short kebab-case name, what happened and what to do.

`graphcache.process.command` turns them into exit codes; a library caller catches `GraphcacheError` or one of its kinds.

Exit codes of all commands:

====  =======================================================================
0     done, or nothing to do
1     something to do (diff), a graph failed to compile (build), or corruption was found (verify, show)
2     an error: bad input, bad usage, or an environment that cannot do what was asked
3     graphs that a training run needs are missing from the cache (trainer)
4     every graph that failed is one that the compiler refuses, the same every time (build)
130   interrupted (SIGINT); 143: terminated (SIGTERM); 141: the reader of the output has gone (SIGPIPE)
====  =======================================================================
"""

from __future__ import annotations

from collections.abc import Sequence

# A line of a table on a wide terminal, beside a state and a graph's name.
HEADLINE_CHARACTERS = 120


# Of a build that no other try could help: a job's controller gives up on it at once.
REFUSED_EXIT_CODE = 4


def headline(message: str) -> str:
    """The first line of a message, cut, for where one line is all there is room for."""
    first = next(iter(message.strip().splitlines()), "")
    return first if len(first) <= HEADLINE_CHARACTERS else first[: HEADLINE_CHARACTERS - 1].rstrip() + "…"


class GraphcacheError(Exception):
    """Base of all errors that are reported without a traceback.

    `name` is stable and greppable, `hint` says what the reader can do about it.
    """

    name = "error"
    exit_code = 2

    def __init__(self, message: str, *, hint: str = "", details: Sequence[str] = ()) -> None:
        """`details` are further lines of the message; a line break in a line is shown escaped."""
        self.lines = (message, *details)
        self.message = "\n".join(self.lines)
        super().__init__(self.message)
        self.hint = hint

    def as_json(self) -> dict[str, str]:
        """The same facts for `--json`: name, message, hint."""
        return {"name": self.name, "message": self.message, "hint": self.hint}


class UsageError(GraphcacheError):
    """An option or argument that cannot be right."""

    name = "usage"


class ToolchainError(GraphcacheError):
    """The compiler, or something that it calls, is missing or of a version that is not known."""

    name = "toolchain"


class MachineError(GraphcacheError):
    """This process's place on the machine cannot do: no folder for temporary files, a current folder that is gone."""

    name = "machine"


class SpoiledError(GraphcacheError):
    """Exporting a graph changed its process, which must not export another graph: modules that were imported meanwhile
    may differ from what a new process would import, and nothing imports them again."""

    name = "export"


class StoreError(GraphcacheError):
    """The store cannot be read or written: no space, no permission, not a store."""

    name = "store"


class CorruptError(GraphcacheError):
    """Bytes that do not match their digest. Never served."""

    name = "corrupt"
    exit_code = 1


class MissingGraphsError(GraphcacheError):
    """A run needs graphs that the cache does not hold."""

    name = "missing-graphs"
    exit_code = 3
