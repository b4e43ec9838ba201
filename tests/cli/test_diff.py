"""graphcache diff: one edit at a time, the state and the reason that it gives, the exit code, the command."""

from __future__ import annotations

import json
import shlex
import shutil
from dataclasses import replace

import pytest

import cli.diff
from cli.main import run
from graphcache import catalog
from graphcache.catalog import CatalogOptions
from graphcache.store.base import Object
from graphcache.toolchain.visible import VisibleParts
from tests.store.fakes import TOOLCHAIN, fake_artifact, fake_failure, fake_verdict
from tests.support.project import Project, states

NOTHING = ("unchanged", [])
ALL = ["step[32]", "step[128]", "norm[8]"]


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project that is built; the machine has its toolchain, and the fake exporter for torch."""
    made = Project(tmp_path / "project")
    for place in made.import_path:
        monkeypatch.syspath_prepend(place)
    monkeypatch.chdir(made.folder)
    monkeypatch.setenv("GRAPHCACHE_DIR", str(made.store.root))
    monkeypatch.setattr(cli.diff, "installed_torch", lambda: TOOLCHAIN["torch"])
    monkeypatch.setattr(cli.diff, "export_programs", made.export)
    catalog._installed.cache_clear()
    see(monkeypatch)
    made.build()
    yield made
    catalog._installed.cache_clear()
    made.forget_modules()


def see(monkeypatch, missing=(), **changed):
    """What this machine's toolchain is."""
    parts = {**TOOLCHAIN, **{name.replace("_", "-"): value for name, value in changed.items()}}
    kept = {name: value for name, value in parts.items() if name not in missing}
    monkeypatch.setattr(
        cli.diff, "visible_parts", lambda memo: VisibleParts(kept, dict.fromkeys(missing, "not installed"))
    )


@pytest.fixture
def diff(capsys):
    def command(*args: str, code: int):
        assert run(["diff", *args, "--json"]) == code
        return states(capsys.readouterr().out)

    return command


@pytest.fixture
def printed(capsys):
    def command(*args: str, code: int) -> str:
        assert run(["diff", *args]) == code
        return capsys.readouterr().out

    return command


def test_nothing_changed_is_nothing_to_do(project, diff):
    assert diff(code=0) == dict.fromkeys(ALL, NOTHING)
    assert project.export.asked == []


def test_a_changed_constant_is_named_by_file_and_name(project, diff):
    project.edit("numbers.py", "3.0", "4.0")
    stale = ("stale", ["source: demo_graphs/numbers.py::FACTOR"])
    assert diff(code=1) == {"step[32]": stale, "step[128]": stale, "norm[8]": NOTHING}


def test_a_comment_is_nothing_to_do(project, diff):
    project.edit("graphs.py", "def double", "# Twice.\ndef double")
    project.edit("numbers.py", "3.0", "3.0  # why")
    assert diff(code=0) == dict.fromkeys(ALL, NOTHING)


def test_an_edit_that_computes_the_same_is_the_same_program(project, diff):
    project.edit("graphs.py", "x + x", "2 * x")
    assert diff(code=0) == {"step[32]": ("same program", []), "step[128]": ("same program", []), "norm[8]": NOTHING}
    assert project.export.asked == [["step[32]", "step[128]"]]
    diff(code=0)
    assert len(project.export.asked) == 1, "the program was not remembered"


def test_a_proven_graph_is_not_counted_as_unproven(project, printed, capsys):
    entries = list(project.store.entries())
    project.store.record_verdict(fake_verdict(entries[0]))
    assert "unproven   2 of these" in printed(code=0)
    assert run(["diff", "--json"]) == 0
    (manifest,) = json.loads(capsys.readouterr().out)["manifests"]
    proofs = {graph["graph"]: graph["proof"] for graph in manifest["graphs"]}
    assert proofs == {entry.graph.name: "proven" if entry == entries[0] else None for entry in entries}


def test_going_back_needs_no_export(project, diff):
    project.edit("numbers.py", "3.0", "4.0")
    diff(code=1)
    project.edit("numbers.py", "4.0", "3.0")
    assert diff(code=0) == dict.fromkeys(ALL, NOTHING)
    assert len(project.export.asked) == 1


def test_several_manifests_are_exported_in_one_go(project, diff):
    second = project.manifest.with_name("second.json")
    second.write_bytes(project.manifest.read_bytes())
    project.edit("numbers.py", "3.0", "4.0")
    diff(code=1)
    assert project.export.asked == [["step[32]", "step[128]"]]


def test_a_graph_that_cannot_be_exported_is_to_do_and_says_why(project, diff):
    project.edit("graphs.py", "double(x) * FACTOR", "double(x) / 0")
    state, reasons = diff(code=1)["step[32]"]
    assert state == "stale"
    assert reasons == [
        "source: demo_graphs/graphs.py::step",
        "program unknown here: step[32] cannot be exported: float division by zero",
    ]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("furiosa_torch", "2026.2.0", "toolchain: furiosa-torch 2026.4.0 -> 2026.2.0"),
        ("compiler_revision", "3f23a71250", "toolchain: compiler-revision fc43f6a779 -> 3f23a71250"),
        ("cross_gcc", "13.1.0", "toolchain: cross-gcc 12.2.0 -> 13.1.0"),
    ],
)
def test_a_changed_toolchain_names_the_field(project, diff, monkeypatch, field, value, reason):
    see(monkeypatch, **{field: value})
    assert diff(code=1) == dict.fromkeys(ALL, ("stale", [reason]))


def test_another_torch_means_another_export(project, diff, monkeypatch):
    see(monkeypatch, torch="2.11.0")
    monkeypatch.setattr(cli.diff, "installed_torch", lambda: "2.11.0")
    assert diff(code=1) == dict.fromkeys(ALL, ("stale", ["toolchain: torch 2.10.0 -> 2.11.0"]))
    assert project.export.asked == [ALL]


def test_source_and_toolchain_are_both_named(project, diff, monkeypatch):
    project.edit("numbers.py", "3.0", "4.0")
    see(monkeypatch, cross_gcc="13.1.0")
    assert diff(code=1)["step[32]"] == (
        "stale",
        ["source: demo_graphs/numbers.py::FACTOR", "toolchain: cross-gcc 12.2.0 -> 13.1.0"],
    )


def test_a_changed_setting_is_toolchain(project, diff):
    project.edit("catalog.py", "compute-bound", "io-bound")
    reason = "toolchain: settings.tactic compute-bound -> io-bound"
    assert diff(code=1) == dict.fromkeys(ALL, ("stale", [reason]))


def test_a_setting_of_default_is_no_change(project, diff):
    """It is the compiler's own choice, as if it was not given."""
    project.edit("numbers.py", "3.0", "4.0")
    project.edit("catalog.py", '"compute-bound"', '"compute-bound", "unique-shapes": "default"')
    assert diff(code=1)["step[32]"] == ("stale", ["source: demo_graphs/numbers.py::FACTOR"])


def test_a_changed_signature_names_the_argument(project, diff):
    project.edit("catalog.py", 'options_dtype = "float32"', 'options_dtype = "bfloat16"')
    assert diff(code=1)["norm[8]"] == ("stale", ["signature: argument 0 float32[8] -> bfloat16[8]"])


def test_a_changed_constant_of_a_graph_is_its_signature(project, diff):
    project.edit("catalog.py", 'eps=config["eps"]', "eps=1e-5")
    assert diff(code=1)["step[32]"] == ("stale", ["signature: constant eps 1e-06 -> 1e-05"])


def test_a_new_name_of_the_same_graph_is_nothing_to_do(project, diff):
    project.edit("catalog.py", 'f"{function}[{size}]"', 'f"{function}[{size} elements]"')
    assert diff(code=0) == {"step[32 elements]": NOTHING, "step[128 elements]": NOTHING, "norm[8 elements]": NOTHING}


def test_another_tile_makes_graphs_new_and_others_go(project, diff, monkeypatch):
    project.edit("catalog.py", "options.tile_elements", "64")
    assert diff(code=1) == {
        "step[32]": NOTHING,
        "step[64]": ("new", []),
        "norm[8]": NOTHING,
        "step[128]": ("removed", []),
    }


def test_recorded_options_are_those_of_the_manifest(project, diff, printed):
    project.build(CatalogOptions(tile_elements=64))
    assert diff(code=0) == dict.fromkeys(["step[32]", "step[64]", "norm[8]"], NOTHING)
    project.edit("numbers.py", "3.0", "4.0")
    assert "--tile-elements 64 --fusion 8" in printed(code=1)


def test_a_store_that_lacks_an_artifact_is_to_do(project, diff):
    project.build(store=False)
    missing = ("missing from the store", ["no artifact of this program"])
    assert diff(code=1) == dict.fromkeys(ALL, missing)


def test_a_cache_that_is_not_there_is_an_empty_one(project, diff, tmp_path):
    found = diff("--cache", str(tmp_path / "nowhere"), code=1)
    assert {state for state, _ in found.values()} == {"missing from the store"}
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_that_is_no_store_stays_as_it_is(project, diff, tmp_path):
    """Also when a program that has to be exported is to be remembered."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    project.edit("graphs.py", "x + x", "2 * x")
    diff("--cache", str(folder), code=1)
    assert project.export.asked
    assert list(folder.iterdir()) == []


def test_a_damaged_artifact_is_missing_and_reported(project, diff, capsys):
    entry = project.store.by_program(project.recorded().graphs[0].program)[0]
    path = project.store.layout.object(entry.artifact_digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    assert run(["diff"]) == 1
    out, err = capsys.readouterr()
    assert "warning[corrupt]" in err
    assert "missing from the store" in out


def test_bytes_that_the_manifest_does_not_name_are_to_look_into(project, diff, printed, capsys):
    """Whoever may write to a shared cache can leave well-formed other bytes under a key."""
    recorded = project.recorded().graphs[0]
    entry = project.store.lookup(recorded.key)
    data = fake_artifact(recorded.key, salt="forged")
    project.store.layout.entry(recorded.key).unlink()
    forged = project.store.adopt(replace(entry, object=Object.of(data)), data)
    reason = f"the store has {forged.artifact_digest[:12]}, the manifest names {entry.artifact_digest[:12]}"
    assert diff(code=1) == {"step[32]": ("other bytes", [reason]), "step[128]": NOTHING, "norm[8]": NOTHING}
    out = printed(code=1)
    command = f"graphcache verify {recorded.key.digest[:12]} --rebuild --manifest cache_manifests/demo.json"
    assert out.endswith(f"whether a compiler of ours gives the other bytes, says:\n  {command}\n")
    assert "graphcache build" not in out, "it would put the other bytes into the manifest"
    assert run(["diff", "--json"]) == 1
    facts = json.loads(capsys.readouterr().out)
    assert (facts["to_do"], facts["manifests"][0]["command"]) == (1, None), "nor do programs run it"
    assert facts["manifests"][0]["verify_command"] == command
    assert run(shlex.split(command.replace("--rebuild ", ""))[1:]) == 1
    assert "other bytes  step[32]" in capsys.readouterr().out


def test_what_the_store_has_already_needs_no_compile(project, printed):
    """Built without --manifest: the manifest is stale, the artifacts are there."""
    before = project.manifest.read_bytes()
    project.edit("numbers.py", "3.0", "4.0")
    project.build()
    project.manifest.write_bytes(before)
    out = printed(code=1)
    assert "source: demo_graphs/numbers.py::FACTOR; in the store already" in out
    assert "nothing to compile, the manifest to write again" in out


def test_commands_are_for_what_is_to_do_alone(project, capsys):
    def commands(code):
        assert run(["diff", "--json"]) == code
        (compared,) = json.loads(capsys.readouterr().out)["manifests"]
        return compared["command"], compared["verify_command"]

    assert commands(code=0) == (None, None)
    project.edit("numbers.py", "3.0", "4.0")
    build, verify = commands(code=1)
    assert build.startswith("graphcache build --shapes-from cache_manifests/demo.json ")
    assert verify is None


def test_planned_graphs_are_not_to_do(project, diff):
    project.build(planned=["step[128]"])
    project.edit("numbers.py", "3.0", "4.0")
    found = diff(code=1)
    assert found["step[128]"] == ("planned", [])
    project.build(planned=ALL)
    assert diff(code=0) == dict.fromkeys(ALL, ("planned", []))
    assert project.export.asked == [["step[32]"]]


def test_a_compile_that_was_refused_before_says_so(project, diff):

    project.build(store=False)
    recorded = project.recorded().graphs[0]
    project.store.record_failure(
        fake_failure(recorded.key, graph=recorded.graph.name, cause="Not importable: it", log="logs/a")
    )
    assert diff(code=1)["step[32]"] == ("missing from the store", ["failed before: Not importable: it"])


def test_without_a_home_a_cache_that_is_not_there_yet_is_compared_with(project, tmp_path, no_home, diff):
    found = diff("--cache", str(tmp_path / "not yet"), code=1)
    assert {state for state, _ in found.values()} == {"missing from the store"}


# --- another checkout -------------------------------------------------------------------------------------------------


@pytest.fixture
def equal(project, tmp_path):
    """A checkout of the same files as the one that is installed, in another folder."""
    folder = tmp_path / "second"
    shutil.copytree(project.folder, folder)
    (folder / ".git").mkdir()
    (folder / "pyproject.toml").write_text("[project]\nname = 'demo_graphs'\n")
    return folder


@pytest.fixture
def second(equal):
    """A checkout beside the one that is installed, with another constant."""
    (equal / "src" / "demo_graphs" / "numbers.py").write_text("FACTOR = 4.0\n")
    return equal


def test_sources_of_another_checkout_are_not_taken_for_those_of_this_one(project, second, monkeypatch, capsys):
    monkeypatch.chdir(second)
    for args in ([], ["--since", "HEAD"], ["--manifest", "cache_manifests/demo.json"]):
        assert run(["diff", *args]) == 2
        err = capsys.readouterr().err
        assert "error[source-elsewhere]" in err
        assert str(project.package / "graphs.py") in err
        assert str(second / "src" / "demo_graphs" / "graphs.py") in err
        assert f"`PYTHONPATH={second / 'src'} graphcache ...`" in err
        assert f"`pip install -e {second}`" in err
    for inside in ("src", "src/demo_graphs"):
        monkeypatch.chdir(second / inside)
        assert run(["diff", "--manifest", str(project.manifest)]) == 2
        assert f"`pip install -e {second}`" in capsys.readouterr().err


def test_the_hint_names_no_project_where_there_is_none(second, monkeypatch, capsys):
    (second / "pyproject.toml").unlink()
    monkeypatch.chdir(second)
    assert run(["diff"]) == 2
    err = capsys.readouterr().err
    assert f"PYTHONPATH={second / 'src'}" in err
    assert "pip install" not in err


def test_what_the_hint_says_is_so(second, monkeypatch, diff):
    monkeypatch.syspath_prepend(second / "src")
    monkeypatch.chdir(second)
    # What it exports to, the fake exporter says of the other checkout.
    assert diff(code=0)["step[32]"][0] == "same program"


@pytest.mark.parametrize("layout", ["src", ""])
def test_a_checkout_with_the_files_that_are_installed_is_compared(project, equal, monkeypatch, diff, layout):
    """As `pip install .` leaves it."""
    (equal / "src" / "demo_graphs").rename(moved := equal / layout / "demo_graphs")
    with (moved / "numbers.py").open("a") as file:
        file.write("# A comment.\n")
    monkeypatch.chdir(equal)
    assert diff(code=0) == dict.fromkeys(ALL, NOTHING)


def test_packages_that_are_installed_together_are_compared_together(project, equal, monkeypatch, diff):
    """A graph's own package is covered wherever it lies, another one where it is edited, which the checkout does not
    decide."""
    for folder in (project.folder / "src", equal / "src"):
        (folder / "helper_of_demo.py").write_text("TABLE = {}\nTABLE['a'] = 1\n")
        with (folder / "demo_graphs" / "graphs.py").open("a") as file:
            file.write("\n\nimport helper_of_demo\n")
    (project.folder / "src" / "demo_graphs-1.0.dist-info").mkdir()
    project.forget_modules()
    project.build()
    monkeypatch.chdir(equal)
    assert diff("--manifest", str(project.manifest), code=0) == dict.fromkeys(ALL, NOTHING)


def test_a_checkout_whose_catalog_was_edited_is_another_one(equal, monkeypatch, capsys):
    """What its graphs are now, this process would not say."""
    path = equal / "src" / "demo_graphs" / "catalog.py"
    path.write_text(path.read_text().replace("8)]", "16)]"))
    monkeypatch.chdir(equal)
    assert run(["diff"]) == 2
    assert "demo_graphs.catalog:catalog is imported from" in capsys.readouterr().err


def test_of_a_module_and_a_package_of_one_name_the_package_is_meant(equal, monkeypatch, diff):
    package = equal / "src" / "demo_graphs"
    (package / "graphs").mkdir()
    (package / "graphs.py").rename(package / "graphs" / "__init__.py")
    (package / "graphs.py").write_text("def step(x):\n    return x\n")
    monkeypatch.chdir(equal)
    assert diff(code=0) == dict.fromkeys(ALL, NOTHING)


@pytest.mark.parametrize("marker", [".git", "pyproject.toml"])
def test_sources_beyond_the_checkout_are_not_meant(second, monkeypatch, diff, project, marker):
    (second / ".git").rmdir()
    (second / "pyproject.toml").unlink()
    job = second / "job"
    (job / "logs").mkdir(parents=True)
    for place in (job, job / "logs"):
        monkeypatch.chdir(place)
        # In no checkout, then in one of its own.
        assert diff("--manifest", str(project.manifest), code=0) == dict.fromkeys(ALL, NOTHING)
        (job / marker).touch()


def test_a_manifest_of_another_checkout_is_not_compared_with_these_sources(project, second, capsys):
    assert run(["diff", "--manifest", str(second / "cache_manifests" / "demo.json")]) == 2
    assert "error[source-elsewhere]" in capsys.readouterr().err


def test_a_manifest_in_another_projects_repository_is_compared(project, tmp_path, monkeypatch, diff):
    other = tmp_path / "other" / "cache_manifests" / "demo.json"
    other.parent.mkdir(parents=True)
    other.write_bytes(project.manifest.read_bytes())
    (tmp_path / "other" / ".git").mkdir()
    (tmp_path / "other" / "demo_graphs").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert diff(code=0) == dict.fromkeys(ALL, NOTHING)


# --- what a machine cannot tell ---------------------------------------------------------------------------------------


def test_without_torch_the_program_is_unknown_and_to_do(project, diff, monkeypatch):
    monkeypatch.setattr(cli.diff, "installed_torch", lambda: None)
    project.edit("graphs.py", "x + x", "2 * x")
    state, reasons = diff(code=1)["step[32]"]
    assert state == "stale"
    assert reasons == [
        "source: demo_graphs/graphs.py::double",
        "program unknown here: torch 2.10.0 is not installed",
    ]
    assert project.export.asked == []


def test_without_torch_a_remembered_program_is_known(project, diff, monkeypatch):
    project.edit("graphs.py", "x + x", "2 * x")
    diff(code=0)
    monkeypatch.setattr(cli.diff, "installed_torch", lambda: None)
    assert diff(code=0)["step[32]"] == ("same program", [])


def test_another_torch_than_the_toolchains_answers_nothing(project, diff, monkeypatch):
    """On a laptop without the vendor: its torch would remember programs under the wrong version."""
    monkeypatch.setattr(cli.diff, "installed_torch", lambda: "2.9.0")
    see(monkeypatch, missing=["furiosa-torch", "compiler-revision", "torch", "cross-gcc"])
    project.edit("graphs.py", "x + x", "2 * x")
    assert "program unknown here: torch 2.10.0 is not installed" in diff(code=1)["step[32]"][1]


def test_without_the_compiler_the_rest_is_compared_and_it_says_so(project, printed, diff, monkeypatch):
    see(monkeypatch, missing=["furiosa-torch", "compiler-revision", "torch", "cross-gcc"])
    out = printed(code=0)
    assert "not compared: cross-gcc (not installed)" in out
    project.edit("numbers.py", "3.0", "4.0")
    assert diff(code=1)["step[32]"][0] == "stale"


# --- since a revision -------------------------------------------------------------------------------------------------


def test_since_compares_with_the_sources_of_then(project, diff):
    first = project.commit()
    project.edit("numbers.py", "3.0", "4.0")
    project.build()
    project.commit()
    assert diff(code=0) == dict.fromkeys(ALL, NOTHING)
    # The store has them since the build, so nothing is to compile: what is to do is left to the manifest of then.
    found = diff("--since", first, code=1)
    assert found["step[32]"] == ("stale", ["source: demo_graphs/numbers.py::FACTOR", "in the store already"])
    assert found["norm[8]"] == NOTHING
    assert project.git("status", "--porcelain") == ""


def test_since_takes_the_toolchain_of_then(project, diff):
    project.build(furiosa_torch="2026.2.0")
    first = project.commit()
    project.build()
    assert diff("--since", first, code=1)["norm[8]"] == (
        "stale",
        ["toolchain: furiosa-torch 2026.2.0 -> 2026.4.0", "in the store already"],
    )


def test_since_a_revision_without_the_manifest_takes_the_one_of_now(project, diff):
    text = project.manifest.read_bytes()
    project.manifest.unlink()
    first = project.commit()
    project.manifest.write_bytes(text)
    assert diff("--since", first, code=0) == dict.fromkeys(ALL, NOTHING)


def test_a_function_that_a_revision_lacks_is_new(project, diff):
    text = (project.package / "graphs.py").read_text()
    (project.package / "graphs.py").write_text(text.partition("def norm")[0])
    first = project.commit()
    (project.package / "graphs.py").write_text(text)
    assert diff("--since", first, code=1)["norm[8]"] == ("new", ["in the store already"])


def test_sources_that_the_manifest_of_then_did_not_have_are_those_of_then(project, diff):
    """A commit that changed the source and not the manifest: its sources count."""
    project.edit("numbers.py", "3.0", "5.0")
    first = project.commit()
    project.edit("numbers.py", "5.0", "3.0")
    assert diff("--since", first, code=1)["step[32]"][1][0] == "source: demo_graphs/numbers.py::FACTOR"


@pytest.mark.parametrize("revision", ["no-such-revision", "--help-me"])
def test_a_revision_that_is_none_is_an_error(project, revision, capsys):
    project.commit()
    assert run(["diff", f"--since={revision}"]) == 2
    assert "error[source]" in capsys.readouterr().err


def test_since_outside_of_a_checkout_is_an_error(project, capsys):
    assert run(["diff", "--since", "HEAD"]) == 2
    assert "is in no git checkout" in capsys.readouterr().err


# --- which manifests, and what is printed -----------------------------------------------------------------------------


def test_manifests_are_those_of_the_checkout(project, diff, monkeypatch):
    project.commit()
    monkeypatch.chdir(project.package)
    assert diff(code=0) == dict.fromkeys(ALL, NOTHING)


def test_no_manifest_is_an_error_that_says_where_it_was_looked_for(project, capsys):
    project.manifest.unlink()
    assert run(["diff"]) == 2
    err = capsys.readouterr().err
    assert "error[manifest-not-found]" in err
    assert "cache_manifests: there are no manifests" in err


def test_a_broken_manifest_is_an_error(project, capsys):
    project.manifest.write_text("<<<<<<< HEAD\n{}")
    assert run(["diff"]) == 2
    assert "error[manifest-json]" in capsys.readouterr().err


def test_a_catalog_that_is_gone_is_an_error(project, capsys):
    text = project.manifest.read_text().replace('"catalogs": ["demo"]', '"catalogs": ["gone"]')
    project.manifest.write_text(text)
    assert run(["diff"]) == 2
    assert "no catalog is called 'gone'" in capsys.readouterr().err


def test_the_human_form(project, printed):
    project.edit("numbers.py", "3.0", "4.0")
    project.edit("catalog.py", "options.tile_elements", "64")
    lines = printed(code=1).splitlines()
    assert lines == [
        "cache_manifests/demo.json  (2026.4.0, fusion 8)",
        "state      graph      why                                     compile",
        "stale      step[32]   source: demo_graphs/numbers.py::FACTOR  2.0 s",
        "new        step[64]                                           3.0 s about, from step[128]",
        "unchanged  norm[8]",
        "removed    step[128]",
        "",
        "new        1",
        "removed    1",
        "stale      1",
        "unchanged  1",
        "unproven   1 of these: graphcache prove",
        "",
        "to do, 2 to compile, about 5.0 s one after another:",
        "  graphcache build --shapes-from cache_manifests/demo.json --only demo --fusion 8"
        " --manifest cache_manifests/demo.json",
    ]


def test_the_command_that_is_printed_is_one_that_build_takes(project, capsys):
    from cli.build import command as build

    project.edit("numbers.py", "3.0", "4.0")
    assert run(["diff", "--cache", str(project.store.root), "--json"]) == 1
    (words,) = (m["command"] for m in json.loads(capsys.readouterr().out)["manifests"])
    program, name, *args = shlex.split(words)
    assert (program, name) == ("graphcache", "build")
    context = build.make_context("build", args)
    assert context.params["source"] == context.params["manifest"]
    assert context.params["source"].samefile(project.manifest)
    assert context.params["cache"] == str(project.store.root)


def test_json_is_the_same_facts(project, capsys):
    project.edit("numbers.py", "3.0", "4.0")
    assert run(["diff", "--json"]) == 1
    value = json.loads(capsys.readouterr().out)
    (manifest,) = value["manifests"]
    assert value["counts"] == {"stale": 2, "unchanged": 1}
    assert (value["to_do"], manifest["to_compile"], manifest["expected_secs"]) == (2, 2, 5.0)
    assert manifest["graphs"][0]["expected_from"] == "recorded"
    assert value["not_compared"] == {}
