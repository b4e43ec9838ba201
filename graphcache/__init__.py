"""A content-addressed cache of compiled graphs for FuriosaAI RNGD cards.

Nothing here imports torch: planning, diff, look-up and verification of bytes need only the standard library, xxhash
and diskcache. The two modules that do need torch or the vendor (`program`, `worker`) import them when they are run.
"""
