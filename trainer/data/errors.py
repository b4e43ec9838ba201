"""What can be wrong with the data, or with the checkpoint's files that turn it into tokens."""

from __future__ import annotations

from graphcache.errors import GraphcacheError


class DataError(GraphcacheError):
    """The data file, or a record of it, cannot be trained on."""

    name = "data"


class ChatTemplateError(GraphcacheError):
    """The template is missing, is not a template, or refuses a conversation."""

    name = "chat-template"
