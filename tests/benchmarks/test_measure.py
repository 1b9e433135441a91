"""The arithmetic of the benchmarks is right; how fast anything is is not a test's business."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from benchmarks import __main__ as all_benchmarks
from benchmarks import latency, multilang, scaling, settle, storm
from benchmarks.measure import HEADINGS, Line, Options, faster, in_turns, line_of, more, times
from benchmarks.report import keep, kept, markdown, written

QUICK = Options(quick=True)
PAIRS = [(2.0, 1.0), (4.0, 4.0), (1.0, 3.0)]


def test_a_line_has_the_medians_of_the_rounds() -> None:
    """Each side by its own median, the ratio by the median of the rounds' ratios."""
    line = line_of(PAIRS, faster, work="work", against="peer", unit="s")
    assert (line.ours, line.peer, line.ratio) == (2.0, 3.0, 1.0)
    assert line_of([(3.0, 2.0)], times, work="work", against="peer", unit="s").ratio == 1.5
    assert line_of([(3.0, 2.0)], more, work="work", against="peer", unit="s").ratio == 1.0


@pytest.mark.parametrize(("ratio", "least", "most"), [(0.9, False, True), (1.0, True, True), (1.1, True, False)])
def test_a_bar_holds_from_its_side(ratio: float, least: bool, most: bool) -> None:
    """The bar itself is on the right side of it; where there is no bar nothing holds or fails."""
    assert Line("w", "p", 1, 1, "s", ratio, bar=1.0, direction="at least").holds is least
    assert Line("w", "p", 1, 1, "s", ratio, bar=1.0, direction="at most").holds is most
    assert Line("w", "p", 1, 1, "s", ratio).holds is None


def test_rounds_are_run_in_turns_after_a_warm_up() -> None:
    """The first rounds are dropped, who is first changes, and a fresh peer needs no warm-up."""
    calls: list[str] = []

    def call(name: str) -> int:
        calls.append(name)
        return len(calls)

    ours, peer = partial(call, "ours"), partial(call, "peer")
    pairs = in_turns(ours, peer, Options())
    assert calls == ["peer", "ours", "ours", "peer"] * 5
    assert pairs == [(11, 12), (14, 13), (15, 16), (18, 17), (19, 20)]
    assert len(in_turns(ours, peer, QUICK)) == 1
    calls.clear()
    in_turns(ours, peer, Options(), is_peer_fresh=True)
    assert (calls[:6], calls.count("peer")) == (["ours"] * 5 + ["ours"], 5)


def test_a_line_is_a_row_of_the_table() -> None:
    """One cell for each heading, and nothing where there is nothing to say."""
    line = Line("work", "peer", 1_234.5, 0.5, "ms", 2.469, bar=8.0, direction="at least", note="warm")
    assert line.cells() == ("work", "peer", "1,234 ms", "0.5 ms", "2.47 x", "at least 8 x", "no", "warm")
    assert str(Line("work", "", 25.0, None, "bytes", 25.0)) == "work, ours 25 bytes, ratio 25.00 x"
    assert markdown([line]).splitlines()[0] == f"| {' | '.join(HEADINGS)} |"
    page = written([line])
    assert all(part in page for part in ("| 2.47 x |", "cores", "- numpy: "))


def test_results_are_kept_until_they_are_measured_again(tmp_path: Path) -> None:
    """The page is made of the last result of each benchmark, whenever that was measured."""
    line = Line("work", "peer", 1.0, None, "s", 2.0, bar=8.0, direction="at least")
    assert kept("some", tmp_path) == []
    keep("some", [line, line], tmp_path)
    keep("some", [line], tmp_path)
    assert kept("some", tmp_path) == [line]


def test_the_lines_that_storm_fails_are_those_that_we_fail() -> None:
    """The numbers are splitmix64's, as its author's implementation gives them for seed 0, and spread evenly."""
    assert int(storm.drawn(np.array([0]))[0] * 2**53) == 0xE220A8397B1DCDAF >> 11
    assert 0.009 < (storm.drawn(np.arange(100_000)) < storm.FAILING_SHARE).mean() < 0.011


def test_storms_figures_are_read_and_summed_up() -> None:
    """The last line of JSON counts; a run that did not finish is an error."""
    figures = {"storm": "2.8.3", "seconds": 10.0, "lines": 100, "lines_per_s_second_half": 20.0}
    result = storm.parsed(f"some text\n{json.dumps({'label': 'before'})}\n{json.dumps(figures)}\n")
    line = storm.line_of_storm([(1.0, result)], storm.FAILING_SHARE)
    assert (line.ours, line.peer, line.ratio, line.bar, line.holds) == (1.0, 10.0, 10.0, 4.0, True)
    assert line.note.startswith("5.00 x")
    with pytest.raises(RuntimeError, match="not done"):
        storm.parsed('{"label": "", "error": "not done in 900 s"}')


def test_latency_is_from_the_row_to_the_commit_that_shows_it(tmp_path: Path) -> None:
    """Each file's rows are held against the time of their own commit; the first seconds do not count."""
    start_us = 1_700_000_000_000_000
    for number in range(2):
        given = pa.array([start_us + number * 30_000_000] * 10, pa.timestamp("us", tz="UTC"))
        write_deltalake(tmp_path, pa.table({"timestamp": given}), mode="append")
        commit = tmp_path / "_delta_log" / f"{number:020d}.json"
        visible_s = start_us / 1e6 + 30 * number + number + 1
        os.utime(commit, (visible_s, visible_s))
    assert [float(visible[0] - given[0]) for given, visible in latency.commits(tmp_path)] == [1_000.0, 2_000.0]
    assert latency.percentiles(tmp_path, 60) == (2_000.0, 2_000.0)


def test_the_page_on_scaling_takes_new_measurements() -> None:
    """What stands between the marks is replaced, nothing else, and again the next time; the page has both marks."""
    page = f"before\n\n{scaling.BEGIN}\nstale\n{scaling.END}\n\nafter\n"
    line = Line("work", "peer", 1, 2, "s", 2.0)
    once = scaling.rewritten(page, [line], "On a machine.")
    assert once.startswith(f"before\n\n{scaling.BEGIN}\n\nOn a machine.\n")
    assert once.endswith(f"{scaling.END}\n\nafter\n")
    assert "| 2.00 x |" in once
    assert "stale" not in once
    assert scaling.rewritten(once, [line], "On a machine.") == once
    written_page = (Path(__file__).parents[2] / scaling.PAGE).read_text(encoding="utf-8")
    assert written_page.index(scaling.BEGIN) < written_page.index(scaling.END)


def test_settling_on_the_driver_is_measured() -> None:
    """The quick form settles on a real ledger and checks that it balances."""
    line = settle.measure_driver(QUICK)
    assert (line.against, line.bar) == ("1,000 of them", 2.2)


def test_the_acker_is_measured_against_its_peers() -> None:
    """The quick form finds all three results equal, and the weight of a tree."""
    pytest.importorskip("duckdb")
    pytest.importorskip("polars")
    from benchmarks import acker

    *peers, weight = acker.measure(QUICK)
    assert [line.against for line in peers] == ["DuckDB", "Polars"]
    assert weight.holds


def test_storm_is_skipped_where_it_is_not(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both ways of running it say why there is no figure; nothing is written."""
    monkeypatch.delenv("STORM_PEER", raising=False)
    monkeypatch.setattr(all_benchmarks, "REPORT", tmp_path / "page.md")
    storm.main(["--quick"])
    all_benchmarks.main(["storm", "multilang"])
    assert capsys.readouterr().out.count("skipped: Storm's word count is needed") == 3
    assert not (tmp_path / "page.md").exists()


def test_our_side_of_the_topology_counts_what_a_plain_loop_counts() -> None:
    """It says so itself, so that nothing but equal counts is ever compared."""
    multilang.count_words(["to be or", "not to be"], "process")


def test_an_unknown_benchmark_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The ones that there are are named."""
    with pytest.raises(SystemExit):
        all_benchmarks.main(["wordcount"])
    assert "there are acker, " in capsys.readouterr().err
