"""Remotes as services are: https with a CA of one's own, listings that lag behind, GCS; and secrets are not seen."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from graphcache.remote.files import open_files
from graphcache.remote.lease import Leases
from graphcache.remote.pull import pull_all
from graphcache.remote.push import push
from graphcache.remote.tier import Tier
from graphcache.remote.url import RemoteError, parse
from graphcache.store.base import Wanted
from graphcache.store.local import LocalStore
from graphcache.trust.keys import KEY_VARIABLE, make_key
from graphcache.verify.integrity import verify
from tests.remote.conftest import fill
from tests.store.fakes import fake_key
from tests.support.command_lines import command_lines_below
from tests.support.servers import BUCKET, FaultProxy, Web, gcs_server, nginx_server, s3_environment, use_s3

TierOf = Callable[[str], Tier]


def command(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A graphcache command in a process of its own, which reads certificates when it starts."""
    env = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-m", "cli.main", *args], env=env, capture_output=True, text=True, timeout=60
    )


# --- https ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def web(store: LocalStore, tmp_path: Path) -> Iterator[Web]:
    fill(store, 1, 2)
    with nginx_server(tmp_path / "nginx", store.root, tls=True) as found:
        yield found


def test_a_web_server_whose_ca_is_named_is_read_and_another_is_an_error(web: Web, tmp_path: Path) -> None:
    here = ["--cache", str(tmp_path / "pod"), "--remote", web.url]
    refused = command("pull", *here)
    assert refused.returncode == 2
    assert "certificate verify failed" in refused.stderr
    assert "SSL_CERT_FILE" in refused.stderr
    assert "Traceback" not in refused.stderr
    done = command("pull", *here, SSL_CERT_FILE=str(web.ca))
    assert (done.returncode, done.stderr) == (0, "")
    assert len(verify(LocalStore(tmp_path / "pod")).entries) == 2
    written = command("push", *here, SSL_CERT_FILE=str(web.ca))
    assert written.returncode == 2
    assert "can only be read" in written.stderr


def test_a_server_that_is_gone_or_lists_nothing_is_not_an_empty_one(
    store: LocalStore, other: LocalStore, tmp_path: Path, tier_of: TierOf
) -> None:
    fill(store, 1)
    with nginx_server(tmp_path / "nginx", store.root, listing=False) as web:
        with pytest.raises(RemoteError, match="does not list entries") as caught:
            tier_of(web.url).files.run(pull_all(tier_of(web.url), other))
        assert "--manifest" in caught.value.hint
    gone = tier_of(f"{web.url}/")
    with pytest.raises(RemoteError, match="cannot list entries"):
        gone.files.run(pull_all(gone, other))


# --- a listing that lags behind -------------------------------------------------------------------------------------


@pytest.fixture
def lagging(s3_url: str, s3_port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """Between this process and S3: each listing is answered as it was when it was first asked for."""
    with FaultProxy(s3_port) as proxy:
        use_s3(monkeypatch, proxy.port)
        proxy.lagging = True
        yield proxy


def test_what_a_lagging_listing_hides_is_neither_written_twice_nor_lost(
    lagging: FaultProxy, s3_url: str, store: LocalStore, other: LocalStore, tmp_path: Path, tier_of: TierOf
) -> None:
    tier = tier_of(s3_url)
    assert tier.files.run(pull_all(tier, other)).pulled == (), "from now on it lists nothing"
    (first, _), (second, _) = fill(store, 1, 2), fill(other, 1, 3, salt="another compiler's")
    assert len(tier.files.run(push(tier, store, list(store.entries()))).pushed) == 2
    done = tier.files.run(push(tier, other, list(other.entries())))
    assert done.pushed == (fake_key(3).digest,), "the first entry of a key stays"
    assert done.present == (second.key.digest,)
    builder = LocalStore(tmp_path / "builder")
    keys = [fake_key(number) for number in (1, 2, 3)]
    assert tier.files.run(tier.bring([Wanted(key, dict(key.parts)) for key in keys], builder)) == [True] * 3
    found = builder.lookup(first.key)
    assert found is not None
    assert found.artifact_digest == first.artifact_digest
    assert verify(builder).sound
    assert tier.files.run(pull_all(tier, LocalStore(tmp_path / "late"))).pulled == ()
    lagging.lagging = False
    assert len(tier.files.run(pull_all(tier, LocalStore(tmp_path / "later"))).pulled) == 3


def test_a_lease_that_a_lagging_listing_hides_is_held_all_the_same(
    lagging: FaultProxy, s3_url: str, tier_of: TierOf
) -> None:
    files, key = tier_of(s3_url).files, "ab" * 32
    a, b = Leases(files, secs=1000), Leases(files, secs=1000)
    assert a.take(key)
    assert not b.take(key), "the listing, asked for when there was none, shows none"
    a.release(key)
    assert b.take(key)
    b.release(key)


# --- GCS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def gcs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with gcs_server() as address:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
        yield


def test_gcs_takes_pairs_and_gives_them_back(
    gcs: None, store: LocalStore, other: LocalStore, tier_of: TierOf, capfd: pytest.CaptureFixture[str]
) -> None:
    tier = tier_of(f"gs://{BUCKET}/cache")
    fill(store, 1, 2)
    assert len(tier.files.run(push(tier, store, list(store.entries()))).pushed) == 2
    assert len(tier.files.run(push(tier, store, list(store.entries()))).present) == 2
    assert len(tier.files.run(pull_all(tier, other)).pulled) == 2
    assert list(other.entries()) == list(store.entries())
    tier.files.run(tier.files.delete("entries/nothing"))
    assert capfd.readouterr().err == "", "the client's own messages"


def test_a_bucket_of_gcs_that_is_not_there_is_no_miss(gcs: None, other: LocalStore, tier_of: TierOf) -> None:
    for ask in (lambda tier: pull_all(tier, other), lambda tier: tier.files.get("entries/x", 100)):
        tier = Tier(open_files(parse("gs://misspelt/cache")))
        with pytest.raises(RemoteError, match="no such bucket"):
            tier.files.run(ask(tier))


def test_gcs_without_its_client_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs.core", None)
    with pytest.raises(RemoteError, match="needs gcsfs") as caught:
        open_files(parse("gs://bucket/cache"))
    assert "graphcache[remote-gs]" in caught.value.hint


# --- secrets --------------------------------------------------------------------------------------------------------


def watched(args: list[str], env: dict[str, str]) -> tuple[str, set[bytes]]:
    """What a command prints, with everything that it logs, and the command lines that could be read while it ran."""
    with subprocess.Popen(args, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as running:
        lines: set[bytes] = set()
        while running.poll() is None:
            lines |= command_lines_below(running.pid)
            time.sleep(0.01)
        assert running.stdout is not None
        return running.stdout.read(), lines


def test_secrets_are_in_no_command_line_no_output_and_no_file(
    s3_url: str, s3_port: int, store: LocalStore, tmp_path: Path
) -> None:
    fill(store, 1, 2)
    make_key(tmp_path / "key.pem")
    pem = (tmp_path / "key.pem").read_text()
    secrets = {**s3_environment(s3_port), "AWS_SESSION_TOKEN": "session-token-4b1e", KEY_VARIABLE: pem}
    env = {**os.environ, **secrets, "GRAPHCACHE_DEBUG": "1"}
    hidden = [secrets["AWS_SECRET_ACCESS_KEY"], secrets["AWS_SESSION_TOKEN"], pem.splitlines()[1]]
    pod, bundle = tmp_path / "pod", tmp_path / "graphs.tar"
    printed, lines = "", set()
    for words in (
        ["push", "--cache", str(store.root), "--remote", s3_url],
        ["pull", "--cache", str(pod), "--remote", "s3://misspelt/cache"],
        ["export", str(bundle), "--cache", str(store.root)],
    ):
        shown, seen = watched([sys.executable, "-m", "cli.main", *words], env)
        printed, lines = printed + shown, lines | seen
    assert "no such bucket" in printed, "errors were shown, with their tracebacks"
    assert "Traceback" in printed
    assert any(b"cli.main" in line for line in lines)
    files = [bundle, *(path for path in store.root.rglob("*") if path.is_file())]
    written = b"".join(path.read_bytes() for path in files)
    for secret in hidden:
        assert secret not in printed
        assert secret.encode() not in written
        assert not [line for line in lines if secret.encode() in line]
