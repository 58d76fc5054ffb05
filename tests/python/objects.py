"""The server of objects (`tests/object_server`): buckets in a directory, with delays and faults.

The program is $KEYAKI_OBJECT_SERVER (default: target/debug/keyaki-object-server).
"""

import os
import subprocess
import urllib.request

import tpch

PROGRAM = os.environ.get("KEYAKI_OBJECT_SERVER", str(tpch.TARGET / "debug" / "keyaki-object-server"))


class Server:
    """A server in a process of its own, with the bucket `bucket` in a new directory. Faults are options of the program."""

    def __init__(self, root, **faults):
        (root / "bucket").mkdir(parents=True)
        options = [f"--{name.replace('_', '-')}={value}" for name, value in faults.items()]
        self.root = root
        self.process = subprocess.Popen([PROGRAM, root, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        lines = iter(self.process.stdout.readline, "\n")
        self.variables = dict(line.strip().split("=", 1) for line in lines)

    def stats(self):
        """The requests so far, by kind."""
        with urllib.request.urlopen(self.variables["AWS_ENDPOINT"] + "/-/stats") as answer:
            lines = answer.read().decode().splitlines()
        return {name: int(number) for name, number in map(str.split, filter(None, lines))}

    def environment(self):
        """The environment of programs that use the server."""
        return {**os.environ, **self.variables}

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()
