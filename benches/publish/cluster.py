"""Three workers against one machine, by processor time (`cargo xtask bench publish`).

The machine of the benchmark has fewer processors than three workers use. The time of a query on machines of its own is therefore
taken to be that of the processors: the largest of the workers' processor times and that of the coordinator, against that of a single
process that executes the query itself. Each execution is that of new processes, which have the database open and no other page of it
in their caches. The processor time of a coordinator or single process is that of the process with the query less that of one without.
"""

import os
import statistics
import subprocess
import tempfile

import tpch
from workers import Workers

WORKERS = 3
QUERIES = [1, 9, 18]
# It is not divided, and opens the database.
NOTHING = "SELECT count(*) FROM region"
# It is divided, and reads one column: the workers open the database.
OPENING = "SELECT count(*) FROM supplier"


def processor_seconds(environment, *arguments):
    """Runs the shell. Returns its output and the seconds of processor time."""
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen([tpch.KEYAKI, *arguments], env=environment, stdout=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise RuntimeError(f"{arguments} ended with {process.returncode}")
        output.seek(0)
        return output.read(), usage.ru_utime + usage.ru_stime


def one_machine(environment, url, sql):
    without = processor_seconds(environment, url, "--mode=json", "-c", NOTHING)[1]
    output, seconds = processor_seconds(environment, url, "--mode=json", "-c", NOTHING, "-c", sql)
    return output, seconds - without


def divided(environment, url, sql):
    """The output, and the processor seconds of the coordinator and of each worker."""
    workers = Workers(WORKERS, environment)
    try:
        arguments = [url, workers.option, "--mode=json", "-c", NOTHING]
        processor_seconds(environment, url, workers.option, "--workers-share=1", "-c", OPENING)
        without = processor_seconds(environment, *arguments)[1]
        before = workers.processor_seconds()
        output, seconds = processor_seconds(environment, *arguments, "-c", sql)
        return output, seconds - without, [after - earlier for earlier, after in zip(before, workers.processor_seconds())]
    finally:
        workers.close()


def run(results, store, url, join, runs):
    """Measures TPC-H's queries and the given join."""
    environment = store.environment()
    statements = {f"TPC-H Q{number}": tpch.QUERIES[number] for number in QUERIES}
    for name, sql in {**statements, "join, 1 % of customers": join}.items():
        alone, together = [], []
        for _ in range(runs):
            expected, seconds = one_machine(environment, url, sql)
            output, coordinator, workers = divided(environment, url, sql)
            if len(output.splitlines()) != len(expected.splitlines()):
                raise RuntimeError(f"{name}: {output} instead of {expected}")
            alone.append(seconds)
            together.append(coordinator + max(workers))
            print(f"{name}: one machine {seconds:.2f} s, coordinator {coordinator:.2f} s, workers "
                  + ", ".join(f"{seconds:.2f} s" for seconds in workers))
        results.add(f"{WORKERS} workers: {name}", "processor time", "s", statistics.median(together),
                    statistics.median(alone), "one machine")
