"""Remotes are named by URLs that hold no secret."""

from __future__ import annotations

import pytest

from graphcache.errors import UsageError
from graphcache.remote.url import VARIABLE, RemoteUrl, parse, remote_urls

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("text", "scheme", "place"),
    [
        ("s3://bucket/a/b/", "s3", "bucket/a/b"),
        ("gs://bucket", "gs", "bucket"),
        ("https://host:8443/cache", "https", "host:8443/cache"),
        ("/shared//cache/", "file", "/shared/cache"),
        ("file:///shared/my cache", "file", "/shared/my cache"),
    ],
)
def test_a_remote_is_a_url_or_a_folder(text: str, scheme: str, place: str) -> None:
    assert parse(text) == RemoteUrl(scheme, place)
    assert parse(str(parse(text))) == parse(text)


@pytest.mark.parametrize(
    "text",
    [
        f"https://me:{SECRET}@host/cache",
        f"https://{SECRET}@host/cache",
        f"https://host/cache?X-Amz-Signature={SECRET}",
        f"s3://key:{SECRET}@bucket/cache",
        f"https://host/cache#{SECRET}",
        f"ftp://{SECRET}@host/cache",
    ],
)
def test_a_url_with_a_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(text)
    assert SECRET not in caught.value.message + caught.value.hint


@pytest.mark.parametrize("text", ["", "cache", "./cache", "s3:/bucket/x", "s3://", "file://host/cache", "S4://b"])
def test_what_names_no_remote_is_an_error(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_the_environment_names_several(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/shared/cache  s3://bucket/cache '/with space'")
    assert [str(url) for url in remote_urls(())] == ["/shared/cache", "s3://bucket/cache", "/with space"]
    assert [str(url) for url in remote_urls(["/other"])] == ["/other"]
    monkeypatch.setenv(VARIABLE, "'/unbalanced")
    with pytest.raises(UsageError, match=VARIABLE):
        remote_urls(())
