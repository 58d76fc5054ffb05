"""Random changes, transactions and queries: Keyaki compared with DuckDB and SQLite, and with properties of its own.

`python test_changes.py --statements 200000 --seed 7` runs more statements than the tests do. A failure prints its seed and the
fewest statements that reproduce it; `--seed N --episodes 1` repeats it. The tests run the same statements each time; KEYAKI_SEED is
their first seed and KEYAKI_STATEMENTS their number. This program starts from a random seed.
"""

import argparse
import os
import random
import sys
import time
import unittest
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

import steps
from episodes import Episode

STATEMENTS = int(os.environ.get("KEYAKI_STATEMENTS", "10000"))
# At most one statement of this many may be of an unsupported form.
SUPPORTED_SHARE = 10
# A long run shows its progress after this many statements.
PROGRESS = 10_000
OPTIONS = [(), (), ("--threads", "1"), ("--memory", "64M")]


def episode(seed):
    """Runs the episode of a seed. Returns the report of a failure or None, and statistics."""
    generated = Episode(seed)
    options = OPTIONS[seed // 3 % len(OPTIONS)]
    index, difference, counts = steps.run(generated.steps, generated.references, options)
    if difference is None:
        return None, counts
    fewest = steps.reduced(generated.steps[: index + 1], generated.references, options, difference.signature)
    _, last, _ = steps.run(fewest, generated.references, options)
    last = last or difference
    statements = "".join(f"{step.sql};\n" for step in fewest[:-1])
    return f"\nseed {seed} ({last.kind}) keyaki {' '.join(options)}\n{statements}{last.sql};\n{last}\n", counts


def run(first, statements, workers, episodes=None, report=lambda failure: None, progress=lambda seed, counts: None):
    """Runs episodes from a seed on until they have executed enough statements. Returns failures and statistics.

    `report` gets each failure, `progress` the next seed and the statistics after each batch of episodes.
    """
    failures, counts, seed = [], Counter(), first
    with ProcessPoolExecutor(workers) as pool:
        while counts["statements"] < statements if episodes is None else seed < first + episodes:
            batch = range(seed, seed + (8 * workers if episodes is None else episodes))
            for failure, more in pool.map(episode, batch):
                counts.update(more)
                counts["episodes"] += 1
                if failure:
                    failures.append(failure)
                    report(failure)
            seed = batch.stop
            progress(seed, counts)
    return failures, counts


class Changes(unittest.TestCase):
    def test_seeds(self):
        first = int(os.environ.get("KEYAKI_SEED", "0"))
        failures, counts = run(first, STATEMENTS, os.cpu_count())
        print(f"seeds from {first}: {dict(counts)}", file=sys.stderr)
        self.assertEqual(failures, [], f"{len(failures)} failures:\n" + "\n".join(failures))
        self.assertLess(counts["unsupported"] * SUPPORTED_SHARE, counts["statements"], "too many statements are not supported")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--statements", type=int, default=STATEMENTS)
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--workers", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    start = time.monotonic()
    show = lambda failure: print(failure, flush=True)
    shown = 0

    def progress(seed, counts):
        nonlocal shown
        if counts["statements"] // PROGRESS > shown:
            shown = counts["statements"] // PROGRESS
            print(f"{counts['statements']} statements, next seed {seed}", file=sys.stderr, flush=True)

    failures, counts = run(arguments.seed, arguments.statements, arguments.workers, arguments.episodes, show, progress)
    print(f"seeds from {arguments.seed}: {dict(counts)}, {len(failures)} failures in {time.monotonic() - start:.0f} s")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
