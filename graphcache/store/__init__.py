"""The content-addressed store: plain files, checked on every read."""
