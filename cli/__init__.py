"""The `graphcache` command: a module for each command parses, calls the library and renders.

Only this package prints.
"""
