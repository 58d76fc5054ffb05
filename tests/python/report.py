"""Benchmark results as a table for people and as JSON rows for programs."""

import json
import os
import platform
import statistics


def machine():
    """One line about the machine."""
    model = platform.machine()
    try:
        with open("/proc/cpuinfo") as cpuinfo:
            model = next(line.split(":", 1)[1].strip() for line in cpuinfo if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {os.cpu_count()} cores, {memory:.0f} GiB, {platform.system()} {platform.release()}"


class Report:
    """Rows {bench, workload, metric, unit, keyaki, peer, peer_name, ratio}. A ratio above 1 means that Keyaki is better."""

    def __init__(self, bench):
        self.bench = bench
        self.rows = []
        print(f"{bench} on {machine()}")

    def add(self, workload, metric, unit, keyaki, peer, peer_name, lower_is_better=True):
        ratio = None
        # A slowdown can be negative, and then has no ratio.
        if keyaki and peer and keyaki > 0 and peer > 0:
            ratio = peer / keyaki if lower_is_better else keyaki / peer
        row = {
            "bench": self.bench, "workload": workload, "metric": metric, "unit": unit,
            "keyaki": keyaki, "peer": peer, "peer_name": peer_name, "ratio": ratio,
        }
        self.rows.append(row)
        show = lambda value: "–" if value is None else f"{value:,.4g}" if value < 1e6 else f"{value:,.0f}"
        print(f"{workload:44} {metric:14} {show(keyaki):>12} {unit:7} {peer_name:10} {show(peer):>12} "
              f"ratio {show(ratio)}", flush=True)

    def geometric_mean(self, metric, peer_name, workload=""):
        """Prints the mean ratio of the workloads whose names contain a text."""
        ratios = [row["ratio"] for row in self.rows
                  if row["metric"] == metric and row["peer_name"] == peer_name and workload in row["workload"] and row["ratio"]]
        if ratios:
            of = workload and f" of {len(ratios)} workloads \"{workload}\""
            print(f"{metric} against {peer_name}: geometric mean of ratios{of} {statistics.geometric_mean(ratios):.2f}")

    def total(self, metric, peer_name):
        """Prints the sums of the workloads that both have finished."""
        rows = [row for row in self.rows if row["metric"] == metric and row["peer_name"] == peer_name and row["ratio"]]
        if rows:
            keyaki, peer = sum(row["keyaki"] for row in rows), sum(row["peer"] for row in rows)
            print(f"{metric} against {peer_name}: {keyaki:.2f} and {peer:.2f} {rows[0]['unit']} in all, {keyaki / peer:.2f}x")

    def write(self, path):
        if path:
            with open(path, "w") as file:
                json.dump(self.rows, file, indent=1, ensure_ascii=False)
                file.write("\n")
