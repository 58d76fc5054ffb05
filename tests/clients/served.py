"""A database in a temporary directory, served by `keyaki serve` on a free port."""

import re
import shutil
import signal
import subprocess
import tempfile
import unittest

import tpch


class Server:
    def __init__(self, *arguments, setup=None):
        """Starts a server with further arguments, after the statements of `setup`."""
        self.directory = tempfile.mkdtemp(prefix="keyaki-clients-")
        if setup:
            subprocess.run([tpch.KEYAKI, f"{self.directory}/db", "-c", setup], check=True)
        command = [tpch.KEYAKI, "serve", f"{self.directory}/db", "--listen", "127.0.0.1:0", *arguments]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        self.port = None
        for line in self.process.stderr:
            if found := re.search(r"listening on 127\.0\.0\.1:(\d+)", line):
                self.port = int(found[1])
                break
        if self.port is None:
            raise AssertionError("the server did not start")

    def stop(self):
        """Shuts the server down and returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        self.process.stderr.read()
        code = self.process.wait(60)
        self.process.stderr.close()
        shutil.rmtree(self.directory)
        return code


class ServedTest(unittest.TestCase):
    """The tests of a class share one server."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server()

    @classmethod
    def tearDownClass(cls):
        if cls.server.stop() != 0:
            raise AssertionError("the server failed")
