"""The one error of this folder."""

from __future__ import annotations

from graphcache.errors import GraphcacheError


class TrustError(GraphcacheError):
    """A key or a trust file that cannot be used. Never holds any part of a private key."""

    name = "trust"
