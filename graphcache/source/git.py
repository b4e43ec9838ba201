"""Source as it was at a git revision, read from git's objects; no work tree is touched.

Of what a work tree may hold, symlinks are followed, objects that a partial clone lacks are fetched by git where it can,
and a submodule is refused, since its sources are in another repository.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, NamedTuple

from graphcache.process.scratch import temporary_folder
from graphcache.source.tree import LAYOUTS, SourceError, SourceFile, WorkTree, module_name

if TYPE_CHECKING:
    import subprocess

SUBMODULE = b"160000"
_COMMIT = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
# How git reaches the origin of a partial clone, and whom it trusts.
_KEPT = (
    *("GIT_ASKPASS", "GIT_EXEC_PATH", "GIT_HTTP", "GIT_SSH", "GIT_SSL", "GIT_TERMINAL", "GIT_TEST"),
    *("GIT_CONFIG_COUNT", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_KEY_", "GIT_CONFIG_NOSYSTEM", "GIT_CONFIG_SYSTEM"),
    "GIT_CONFIG_VALUE_",
)


class _Object(NamedTuple):
    """kind: `blob` or `tree`; id_bytes: the length of the repository's object ids, 20 or 32."""

    kind: str
    data: bytes
    id_bytes: int


class GitTree:
    """The modules of a repository at a revision, read by one `git cat-file --batch`. Used as a context.

    A top-level package is looked for where the work tree has it now, if that is in the repository, then where
    repositories usually have theirs. Raises SourceError for a revision that is none, for what git cannot give, and
    when git is not installed.
    """

    def __init__(self, repository: Path, revision: str) -> None:
        self.repository = repository
        self.commit = _commit(repository, revision)
        self._now = WorkTree()
        self._files: dict[str, SourceFile | None] = {}
        self._objects: dict[str, _Object | None] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._trouble: IO[bytes] | None = None

    def file(self, module: str) -> SourceFile | None:
        if module not in self._files:
            self._files[module] = self._read(module)
        return self._files[module]

    def submodules(self, package: str) -> list[str]:
        folder = package.replace(".", "/")
        names = {name for root in self._roots(package) for name in self._modes(root + folder)}
        return sorted({stem for name in names if (stem := module_name(name)) and self.file(f"{package}.{stem}")})

    def is_local(self, top_level: str) -> bool:
        return top_level not in sys.stdlib_module_names and self.file(top_level) is not None

    def text(self, path: str) -> bytes | None:
        """The file at `path`, relative to the repository; None when it is not there, b"" for a folder."""
        found = self._object(path)
        if found is None:
            return None
        return found.data if found.kind == "blob" else b""

    def close(self) -> None:
        """End the git process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None
        if self._trouble is not None:
            self._trouble.close()

    def __enter__(self) -> GitTree:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, module: str) -> SourceFile | None:
        shown = module.replace(".", "/")
        for root in self._roots(module):
            for path, is_package in ((f"{shown}/__init__.py", True), (f"{shown}.py", False), (shown, True)):
                text = self.text(root + path)
                if text is not None:
                    return SourceFile(module, path, is_package, text)
        # Where it is now, the folders above it count too; a submodule `src` says nothing of a module that is not ours.
        for root, begin in [*((root, "") for root in self._roots_now(module)), *((root, root) for root in LAYOUTS)]:
            self._refuse_submodule(root + shown, begin)
        return None

    def _roots(self, module: str) -> tuple[str, ...]:
        """Folders of the repository that may hold the module's top-level package: empty, or ending in a slash."""
        return tuple(dict.fromkeys([*self._roots_now(module), *LAYOUTS]))

    def _roots_now(self, module: str) -> list[str]:
        top_level = module.partition(".")[0]
        # What is installed may lie in the repository too, in a virtual environment, and git has nothing of it.
        places = self._now.places(top_level) if self._now.is_local(top_level) else []
        repository = os.path.realpath(self.repository)
        folders = [os.path.relpath(os.path.realpath(os.path.dirname(place)), repository) for place in places]
        return ["" if folder == "." else f"{folder}/" for folder in folders if folder.split("/")[0] != ".."]

    def _refuse_submodule(self, path: str, begin: str) -> None:
        """Raises SourceError when `path`, a module that was not found, would be in another repository: when a folder
        on its way, from `begin` on, is a submodule."""
        names = path.split("/")
        for depth in range(begin.count("/"), len(names)):
            if self._modes("/".join(names[:depth])).get(names[depth]) == SUBMODULE:
                place = "/".join(names[: depth + 1])
                raise SourceError(
                    f"{place} is a submodule at {self.commit[:12]}, so {path} is in another repository",
                    hint="--since reads one repository; compare without it",
                )

    def _modes(self, folder: str) -> dict[str, bytes]:
        """Names in a folder of the repository with git's modes; empty when it is none."""
        found = self._object(folder)
        modes: dict[str, bytes] = {}
        rest = found.data if found is not None and found.kind == "tree" else b""
        while found is not None and rest:
            mode, _, rest = rest.partition(b" ")
            name, _, rest = rest.partition(b"\0")
            modes[os.fsdecode(name)] = mode
            rest = rest[found.id_bytes :]
        return modes

    def _object(self, path: str) -> _Object | None:
        """What is at `path`, links followed; None when nothing is."""
        path = path.strip("/")
        if path not in self._objects:
            self._objects[path] = self._ask(path)
        return self._objects[path]

    def _ask(self, path: str) -> _Object | None:
        process = self._batch()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(os.fsencode(f"{self.commit}:{path}\n"))
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise self._ended(path)
        first, *_, last = line.split()
        # Of git 2.50, `submodule`; before, such a commit was missing as well.
        if last in (b"missing", b"submodule"):
            return None
        # A path, or an object's name, of so many bytes follows; git's word for what is at the end of links comes first.
        data = process.stdout.read(int(last) + 1)[:-1]
        if first in (b"dangling", b"notdir"):
            return None
        if first in (b"symlink", b"loop"):
            raise SourceError(
                f"{path} at {self.commit[:12]} leads out of the repository by links, or in circles",
                hint="--since reads what git has; compare without it",
            )
        return _Object(line.split()[1].decode(), data, len(first) // 2)

    def _ended(self, path: str) -> SourceError:
        """git has ended: of a partial clone whose origin is gone, for one."""
        assert self._process is not None
        assert self._trouble is not None
        self._process.wait()
        self._trouble.seek(0)
        said = self._trouble.read().decode(errors="replace")
        return _refused(f"git cannot give {path} of {self.commit[:12]}", said)

    def _batch(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            import subprocess

            # Not a pipe, which git could fill while nobody reads it.
            self._trouble = tempfile.TemporaryFile(dir=temporary_folder())  # noqa: SIM115
            self._process = subprocess.Popen(
                ["git", "-C", str(self.repository), "cat-file", "--batch", "--follow-symlinks"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._trouble,
                env=_environment(),
            )
        return self._process


def _commit(repository: Path, revision: str) -> str:
    """The commit's id. `subprocess` takes 10 ms to import, and only --since needs it."""
    import subprocess

    def ask(*command: str) -> subprocess.CompletedProcess[str]:
        whole = ["git", "-C", str(repository), "rev-parse", *command]
        return subprocess.run(whole, capture_output=True, text=True, errors="replace", check=False, env=_environment())

    try:
        done = ask("--verify", "--quiet", f"{revision}^{{commit}}")
    except FileNotFoundError as error:
        raise SourceError("git is not installed", hint="--since reads sources from git; install it") from error
    found = done.stdout.strip()
    # Without a commit before it, `:path` would be read from the index, and all would be well.
    if done.returncode == 0 and _COMMIT.fullmatch(found):
        return found
    # git says nothing of a revision that is none, and something of whatever else is wrong.
    if done.stderr.strip():
        raise _refused(f"git cannot read {repository}", done.stderr)
    hint = "give a commit, branch or tag that git knows"
    if ask("--is-shallow-repository").stdout.strip() == "true":
        hint = f"{repository} is a shallow clone, which lacks most revisions: `git fetch --unshallow` gets them"
    raise SourceError(f"{revision!r} is no revision of {repository}", hint=hint)


def _environment() -> dict[str, str]:
    """Without what makes git read another repository or index, as the environment of a hook does, or say more."""
    return {n: v for n, v in os.environ.items() if not n.startswith("GIT_") or n.startswith(_KEPT)}


def _refused(what: str, said: str) -> SourceError:
    """What git said is the reason, and what it says after its first line the hint: `git config ... safe.directory`."""
    first, *more = [line.strip() for line in said.splitlines() if line.strip()] or ["it ended without a word"]
    return SourceError(f"{what}: {first}", hint=" ".join(more) or "try the git command itself: git cat-file, git fetch")
