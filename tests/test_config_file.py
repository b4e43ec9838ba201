"""Settings from a file: the environment goes before it, an option before both, and nothing in it is ignored."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.main import run
from graphcache import doctor
from graphcache.config_file import VARIABLE, Config, ConfigError, read_config
from graphcache.location import cache_dir
from graphcache.remote.url import remote_urls
from graphcache.trust.guard import guard_of_environment
from graphcache.trust.trusted import TrustedKey, add_key

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Writes the config file in its usual place, with nothing else that says anything."""
    for name in (VARIABLE, "GRAPHCACHE_DIR", "GRAPHCACHE_REMOTE", "GRAPHCACHE_TRUST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    path = tmp_path / "config" / "graphcache" / "graphcache.toml"

    def written(text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o600)
        return path

    return written


def test_the_environment_goes_before_the_file_and_an_option_before_both(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trust = tmp_path / "trust.json"
    add_key(trust, TrustedKey("ci", "ab" * 32))
    assert read_config() == Config()
    write(f'cache = "/from/file"\nremote = ["/shared", "s3://bucket/x"]\ntrust = "{trust}"\n')
    assert cache_dir() == Path("/from/file")
    assert [str(url) for url in remote_urls(())] == ["/shared", "s3://bucket/x"]
    found = guard_of_environment().trust
    assert found is not None
    assert list(found.keys) == ["ab" * 32]
    monkeypatch.setenv("GRAPHCACHE_DIR", "/from/environment")
    monkeypatch.setenv("GRAPHCACHE_REMOTE", "/other")
    assert cache_dir() == Path("/from/environment")
    assert [str(url) for url in remote_urls(())] == ["/other"]
    assert cache_dir("/from/option") == Path("/from/option")
    assert [str(url) for url in remote_urls(["/option"])] == ["/option"]
    monkeypatch.setenv("GRAPHCACHE_REMOTE", "")
    assert remote_urls(()) == (), "set to nothing, for none"


def test_a_variable_names_another_file_which_has_to_be_there(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write('cache = "/usual"\n')
    monkeypatch.setenv(VARIABLE, str(tmp_path / "other.toml"))
    with pytest.raises(ConfigError, match="cannot be read"):
        read_config()
    (tmp_path / "other.toml").write_text('remote = "/one"\n')
    assert read_config().remote == ("/one",)
    monkeypatch.setenv(VARIABLE, "other.toml")
    with pytest.raises(ConfigError, match="not a whole path"):
        read_config()
    monkeypatch.setenv(VARIABLE, "/dev/null")
    assert read_config().cache is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('chache = "/x"\n', "'chache'"),
        ('[remote]\nurl = "s3://b"\n', "remote is dict"),
        ("remote = [1]\n", "remote is list"),
        ('cache = "relative"\n', "'relative'"),
        ("cache = 5\n", "cache is 5"),
        ('cache = "/a"\ncache = "/b"\n', "overwrite"),
        ("not toml", "line 1"),
        ('trust = ""\n', "trust is ''"),
    ],
)
def test_what_nobody_understands_is_an_error_that_names_it(
    text: str, said: str, write: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(text)
    assert run(["cache-dir", "--json"]) == 2
    error = json.loads(capsys.readouterr().out)["error"]
    assert error["name"] == "config"
    assert str(path) in error["message"]
    assert said in error["message"]
    assert "cache, remote, trust" in error["hint"]


@pytest.mark.parametrize("mode", [0o666, 0o620])
def test_a_file_that_others_can_write_to_is_refused(mode: int, write: Write) -> None:
    write('cache = "/x"\n').chmod(mode)
    with pytest.raises(ConfigError, match="others can write it"):
        read_config()


def test_doctor_says_where_each_setting_comes_from(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(f'cache = "{tmp_path}/cache"\nremote = "s3://bucket/x"\n')
    monkeypatch.setenv("GRAPHCACHE_REMOTE", "/shared")
    assert [finding.fact for finding in doctor._settings(None, cache_dir())] == [
        f"config file: {path}",
        f"cache: {tmp_path}/cache, by {path}",
        "remote: /shared, by GRAPHCACHE_REMOTE",
        "trust file: none",
    ]
