"""Workers of a cluster (`keyaki worker`) in processes of their own."""

import os
import re
import subprocess

import tpch


class Workers:
    """Some workers on this machine. `environment` has the credentials of the store; `options` are those of the program."""

    def __init__(self, count, environment, *options):
        self.addresses, self.processes = [], []
        for _ in range(count):
            command = [tpch.KEYAKI, "worker", "--listen", "127.0.0.1:0", *options]
            process = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
            self.processes.append(process)
            self.addresses.append(re.fullmatch(r"listening on (\S+)\n", process.stderr.readline())[1])

    @property
    def option(self):
        """The option of the shell that names them."""
        return f"--workers={','.join(self.addresses)}"

    def kill(self, worker):
        self.processes[worker].kill()
        self.processes[worker].wait()

    def processor_seconds(self):
        """The processor time of each worker so far."""
        return [processor_seconds(process.pid) for process in self.processes]

    def close(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stderr.close()


def processor_seconds(pid):
    """The processor time of a process so far, in user space and in the kernel."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
