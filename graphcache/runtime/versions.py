"""The parts of a key that every machine with the vendor's packages can see, found without importing torch.

Versions come from the installed packages' metadata. The compiler's revision is inside the vendor's library, so it is
asked once, in a process of its own, and remembered under the checksum of the package's RECORD, which lists the hash
of every file of it: another installation is asked again.

As a command it is that process: `python -m graphcache.runtime.versions` prints the revision.
"""

from __future__ import annotations

import importlib.metadata
import subprocess

from graphcache.digest import checksum
from graphcache.errors import ToolchainError
from graphcache.local.memo import Memo
from graphcache.process.helper import helper_command, helper_environment, last_words
from graphcache.vendor import layouts as vendor

PREFIX = "compiler-revision 1 "
# Asking takes 3 s on a quiet machine; a disk of a busy node may need minutes for torch's 2 GB.
ASK_SECS = 600


def runtime_parts(fusion: int, memo: Memo, revision: str | None = None) -> dict[str, str]:
    """Key parts that follow from the installed packages, for a process that uses `fusion` PEs as one; about 5 ms.

    revision: the compiler's, from someone who has it loaded; else it is remembered, or asked (3 s)
    Raises ToolchainError for a release that is not known, another torch than it needs, or when it cannot be asked.
    """
    return {
        "furiosa-torch": vendor_version(),
        "compiler-revision": revision or known_revision(memo) or ask_revision(memo),
        "torch": torch_version(),
        "fusion": str(fusion),
        # Cards are not meshed: nothing here calls set_mesh_kind.
        "mesh": "single",
    }


def vendor_version() -> str:
    """Raises ToolchainError when furiosa-torch is not installed or of a release that is not known."""
    vendor.layout()
    return importlib.metadata.version(vendor.DISTRIBUTION)


def torch_version() -> str:
    """Raises ToolchainError for a torch that the vendor's release was not built for: it would fail to load, late."""
    needed = vendor.layout().torch
    try:
        found = importlib.metadata.version("torch")
    except importlib.metadata.PackageNotFoundError:
        found = "none"
    if found.partition("+")[0] != needed:
        raise ToolchainError(
            f"furiosa-torch {vendor_version()} needs torch {needed}; installed is {found}",
            hint=f"pip install torch=={needed}",
        )
    return found


def known_revision(memo: Memo) -> str | None:
    """The compiler's revision as far as it is remembered."""
    key = _memo_key()
    found = memo.get(key) if key else None
    return found if isinstance(found, str) and found else None


def remember_revision(memo: Memo, revision: str) -> None:
    key = _memo_key()
    if key:
        memo.set(key, revision)


def ask_revision(memo: Memo) -> str:
    """The compiler's revision from the compiler itself, in a process of its own. Raises ToolchainError."""
    run = subprocess.run(
        helper_command("graphcache.runtime.versions"),
        env=helper_environment(),
        capture_output=True,
        text=True,
        timeout=ASK_SECS,
        check=False,
    )
    if run.returncode or not run.stdout.strip():
        raise ToolchainError(f"the compiler does not tell its revision: {last_words(run)}", hint="graphcache doctor")
    revision = run.stdout.split()[-1]
    remember_revision(memo, revision)
    return revision


def loaded_revision() -> str:
    """The compiler's revision; imports torch and the vendor."""
    return str(vendor.resolve(vendor.layout().compiler).version())


def _memo_key() -> str:
    """Empty where the installation has no RECORD: then nothing would say that it has changed."""
    record = importlib.metadata.distribution(vendor.DISTRIBUTION).read_text("RECORD")
    return PREFIX + checksum(record.encode()) if record else ""


if __name__ == "__main__":
    print(loaded_revision())
