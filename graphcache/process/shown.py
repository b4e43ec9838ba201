"""How values are shown to people: text without control characters, bytes and seconds in units."""

from __future__ import annotations


def printable(text: str) -> str:
    """`text` with control characters escaped: a tensor's name may hold a newline or a terminal's escape sequence."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def bytes_text(size_bytes: int) -> str:
    """`16.1 GB`, in powers of 1000 as disks and the hub count them."""
    size: float = size_bytes
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    return f"{size:.0f} B" if unit == "B" else f"{size:.3g} {unit}"


def count_text(count: int) -> str:
    """`8,030,261,248`."""
    return f"{count:,}"


def secs_text(secs: float) -> str:
    """`0.4 s`, `12 s`, `3 min 5 s`, `2 h 10 min`."""
    if secs < 9.95:
        return f"{secs:.1f} s"
    whole = round(secs)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
