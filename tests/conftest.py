"""torch comes without the vendor's device here, as it does in the trainer, whatever tests run in whatever order.

`torch.manual_seed` seeds every device that is there, and the vendor's then fixes its fusion at 1 PE: an emulated card,
which wants 8, could not be made after it. Child processes keep the environment that they would have had.
"""

from __future__ import annotations

import pytest

from graphcache.vendor import AUTOLOAD_VARIABLE

with pytest.MonkeyPatch.context() as environment:
    environment.setenv(AUTOLOAD_VARIABLE, "0")
    import torch  # noqa: F401
