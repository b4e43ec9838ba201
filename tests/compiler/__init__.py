"""Tests with the vendor's real compiler and runtime, on graphs that compile in seconds.

Each vendor version runs in processes of its own, whose environment `vendor.py` makes; this process loads none.
"""
