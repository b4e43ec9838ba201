"""The `graphcache` command: one module a command; each parses, calls the library and renders. Only this package prints."""
