from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.trainer.report.conftest import MakeRun
from trainer.__main__ import main
from trainer.report.comparison import compare
from trainer.report.figures import loss_curves
from trainer.report.ranges import parse_ranges, ranges_of
from trainer.report.report import make_report
from trainer.report.runs import ReportError, read_runs
from trainer.report.tables import as_markdown, as_text


def test_a_range_weighs_losses_by_label_tokens(make_run: MakeRun) -> None:
    run = read_runs([make_run("run", [1.0, 2.0, 4.0], [3.0, 2.0, 1.0])])[0]
    (found,) = ranges_of(run, [(1, 3)])
    assert found.mean_loss == pytest.approx((3 * 40 + 2 * 40 + 1 * 80) / 160)
    assert (found.median_secs, found.slowest_secs) == (2.0, 4.0)
    assert found.tokens_per_sec == pytest.approx(300 / 7)
    assert found.update_wait_secs == 0.25


def test_drift_is_against_the_first_range(make_run: MakeRun) -> None:
    run = read_runs([make_run("run", [2.0] * 10 + [3.0] * 10)])[0]
    assert [each.drift for each in ranges_of(run, [(1, 10), (11, 20)])] == [0.0, 0.5]


def test_by_default_a_run_is_cut_into_five_ranges_that_cover_it(make_run: MakeRun) -> None:
    found = ranges_of(read_runs([make_run("run", [1.0] * 23)])[0])
    assert len(found) == 5
    assert sum(each.steps for each in found) == 23
    assert [found[0].first, found[-1].last] == [1, 23]


@pytest.mark.parametrize("steps", [1, 2, 3, 9])
def test_short_runs_have_fewer_ranges(make_run: MakeRun, steps: int) -> None:
    found = ranges_of(read_runs([make_run("run", [1.0] * steps)])[0])
    assert sum(each.steps for each in found) == steps


@pytest.mark.parametrize("text", ["5-2", "0-3", "a", "1-", "1-2,,3-4", "-3"])
def test_a_range_that_is_none_is_named(text: str) -> None:
    with pytest.raises(ReportError, match="no range of steps"):
        parse_ranges(text)


def test_ranges_that_hold_no_step_are_an_error_with_the_last_step(make_run: MakeRun) -> None:
    with pytest.raises(ReportError) as error:
        make_report([make_run("run", [1.0] * 4)], [(10, 20)])
    assert "steps end at 4" in error.value.hint


def test_runs_with_the_same_losses_are_equal_bit_for_bit(make_run: MakeRun) -> None:
    base, other = read_runs([make_run("a", [9.0, 2.0, 2.0]), make_run("b", [1.0, 1.0, 1.0])])
    found = compare(base, other)
    assert found.equal_losses
    assert found.speed_ratio == 2.0  # without the first step, which loads


def test_the_largest_difference_of_losses_is_named_with_its_step(make_run: MakeRun) -> None:
    base, other = read_runs([make_run("a", [1.0] * 3, [3.0, 2.0, 1.0]), make_run("b", [1.0] * 3, [3.0, 2.5, 1.25])])
    found = compare(base, other)
    assert not found.equal_losses
    assert found.largest == (0.5, 2)


def test_the_last_bit_of_a_loss_is_a_difference(make_run: MakeRun) -> None:
    close = 1.0 + 2.0**-52
    base, other = read_runs([make_run("a", [1.0], [1.0]), make_run("b", [1.0], [close])])
    assert not compare(base, other).equal_losses


def test_what_differs_is_named_and_places_are_not(make_run: MakeRun) -> None:
    one = {"versions": {"torch": "2.10.0"}, "graphs": [{"graph": "g", "artifact": "a" * 64}]}
    two = {"versions": {"torch": "2.10.0"}, "graphs": [{"graph": "g", "artifact": "b" * 64}]}
    runs = read_runs([make_run("a", [1.0], environment=one, seq=32), make_run("b", [1.0], environment=two, seq=64)])
    assert compare(*runs).differences == (("graphs.g", "a" * 12, "b" * 12), ("settings.seq", "32", "64"))


def test_a_line_that_a_kill_cut_short_is_left_out(make_run: MakeRun) -> None:
    folder = make_run("run", [1.0] * 3)
    with (folder / "steps.jsonl").open("a") as file:
        file.write('{"step": 4, "loss": 1.')
    assert len(read_runs([folder])[0].steps) == 3


def test_folders_of_one_name_are_told_apart(make_run: MakeRun, tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "y").mkdir()
    runs = read_runs([make_run("x/run", [1.0]), make_run("y/run", [1.0])])
    assert [run.label for run in runs] == ["x/run", "y/run"]


@pytest.mark.parametrize("damage", ["no folder", "empty", "not json"])
def test_a_folder_without_a_run_is_an_error(make_run: MakeRun, tmp_path: Path, damage: str, capsys) -> None:
    folder = tmp_path / "run"
    if damage != "no folder":
        make_run("run", [] if damage == "empty" else [1.0])
    if damage == "not json":
        (folder / "environment.json").write_text("{")
    assert main(["report", str(folder)]) == 2
    assert capsys.readouterr().err.startswith("error[report]: ")


def test_tables_as_text_and_markdown_say_the_same(make_run: MakeRun) -> None:
    report = make_report([make_run("a", [1.0] * 4), make_run("b", [0.5] * 4, accum=9)])
    for table in report.tables():
        text, markdown = as_text(table), as_markdown(table)
        for row, line, cells in zip(table.rows, text[2:], markdown[4:], strict=True):
            assert [cell.strip() for cell in cells.strip("|").split("|")] == list(row)
            assert line.split() == " ".join(row).split()


def test_json_is_one_object_with_the_figures(make_run: MakeRun, capsys) -> None:
    paths = [str(make_run("a", [1.0] * 4)), str(make_run("b", [0.5] * 4))]
    assert main(["report", *paths, "--json", "--ranges", "1-4"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["comparisons"][0]["speed_ratio"] == 2.0
    assert found["runs"][1]["ranges"][0]["median_secs"] == 0.5


def test_a_page_that_cannot_be_written_is_an_error_and_leaves_nothing(
    make_run: MakeRun, tmp_path: Path, capsys
) -> None:
    run = make_run("a", [1.0] * 4)
    assert main(["report", str(run), "--html", str(tmp_path / "none" / "page.html")]) == 2
    assert "choose another --html" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_held_out_losses_are_a_column_where_there_are_any(make_run: MakeRun):
    folder = make_run("a", [1.0] * 6)
    lines = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    lines[1]["eval_loss"], lines[2]["eval_loss"] = 2.5, 2.25
    (folder / "steps.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = make_report([folder], [(1, 3), (4, 6)])
    table = report.tables()[0]
    assert table.header[-1] == "eval loss"
    assert [row[-1] for row in table.rows] == ["2.2500", "-"]
    assert [each["eval_loss"] for each in report.as_json()["runs"][0]["ranges"]] == [2.25, None]
    assert "a, held out" in loss_curves(report.runs)
    assert "held out" not in loss_curves(make_report([make_run("b", [1.0] * 6)]).runs)
