"""How long storms last: kills at random moments, races, long property runs.

They are short by default, so that all of CI ends in time. GRAPHCACHE_STORMS=long runs them in full.
"""

from __future__ import annotations

import os

VARIABLE = "GRAPHCACHE_STORMS"
LONG = os.environ.get(VARIABLE) == "long"


def rounds(short: int, long: int) -> int:
    return long if LONG else short
