"""Stores elsewhere, which a local store is filled from and pushed to: folders, S3, GCS, http(s)."""
