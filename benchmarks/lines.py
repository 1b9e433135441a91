"""What do the benchmarks read? Numbered lines of ten words, the same for everybody who makes them.

python -m benchmarks.lines --lines 1000000 --output DIRECTORY
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

SEED = 20261121
WORDS_PER_LINE = 10
VOCABULARY = 10_000
CHUNK = 100_000


def vocabulary() -> np.ndarray:
    """Distinct lower-case words of three to seven letters."""
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    random = np.random.default_rng(SEED)
    words: dict[str, None] = {}
    while len(words) < VOCABULARY:
        words["".join(letters[random.integers(0, 26, random.integers(3, 8))])] = None
    return np.array(list(words), dtype=object)


def make_lines(count: int, directory: Path) -> Path:
    """Write numbered lines as two Parquet files, once; words are drawn by Zipf's law with exponent 1.

    Returns:
        The directory of the files, with columns id (long) and line (string).
    """
    target = directory / f"lines-{count}"
    if (target / "_DONE").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    words, random = vocabulary(), np.random.default_rng(SEED + 1)
    weights = 1.0 / np.arange(1, VOCABULARY + 1)
    cumulated = np.cumsum(weights / weights.sum())
    schema = pa.schema([("id", pa.int64()), ("line", pa.string())])
    halves = [range(0, count // 2), range(count // 2, count)]
    for part, numbers in enumerate(halves):
        with pq.ParquetWriter(target / f"part-{part}.parquet", schema) as writer:
            for first in range(numbers.start, numbers.stop, CHUNK):
                rows = min(CHUNK, numbers.stop - first)
                drawn = np.searchsorted(cumulated, random.random((rows, WORDS_PER_LINE)))
                chosen = words[np.minimum(drawn, VOCABULARY - 1)]
                lines = [" ".join(line) for line in chosen]
                writer.write_table(pa.table({"id": np.arange(first, first + rows), "line": lines}, schema=schema))
    (target / "_DONE").touch()
    return target


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/data"))
    arguments = parser.parse_args()
    print(make_lines(arguments.lines, arguments.output))
