"""Tokens of a run, made while torch is imported: each takes seconds, the one in processes of its own."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from threading import Thread

from trainer.config import RunConfig
from trainer.data.errors import DataError
from trainer.data.kept_tokens import tokens_of
from trainer.data.token_file import TokenFile
from trainer.record.say import say

# By the data file; the error where there are none.
TokensAhead = Mapping[Path, TokenFile | DataError]


def tokens_ahead(config: RunConfig, module: str) -> TokensAhead:
    """The tokens of `config`'s data files, while `module`, which imports torch, is imported.

    Empty where torch is there already, and for files that are missing: preflight says what is wrong with them.
    """
    if "torch" in sys.modules or not config.model.exists():
        return {}
    # Not a daemon: native code is not to be ended midway.
    importing = Thread(target=_import, args=(module,))
    importing.start()
    try:
        paths = [path for path in (config.data, config.eval_data) if path is not None and path.exists()]
        return {path: _tokens(path, config) for path in paths}
    finally:
        importing.join()


def _import(module: str) -> None:
    with suppress(BaseException):  # an import that fails does so again for the one who needs it
        import_module(module)


def _tokens(path: Path, config: RunConfig) -> TokenFile | DataError:
    folder = config.model if config.model.is_dir() else config.model.parent
    try:
        return tokens_of(path, folder, config.ignored_fields, config.cache, say)
    except DataError as error:
        return error
