# SPDX-License-Identifier: Apache-2.0
"""Several hosts on one machine: network namespaces with host names of their own, and links of a set
rate to a switch. All see the same files. Needs root and Debian's iproute2."""
import os
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "framework/distributed/mpi"))
from mpirun import Job  # noqa: E402

AGENT = Path(__file__).resolve().parent / "agent.sh"
NETWORK = "10.77.0"  # it exists in these namespaces alone


def ip(*words, check=True):
    command = ["ip", *map(str, words)]
    return subprocess.run(command, check=check, capture_output=True, text=True)


class Hosts:
    """`count` hosts, numbered from 1. A context manager: the hosts are gone at its end."""

    def __init__(self, count, rate="1gbit"):
        self.numbers = range(1, count + 1)
        self.prefix = f"mg{os.getpid() % 100_000}h"
        self.switch = f"{self.prefix}sw"
        self.rate = rate

    def name(self, number):
        return f"{self.prefix}{number}"

    def __enter__(self):
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "br0", "up")
        for number in self.numbers:
            name = self.name(number)
            ip("netns", "add", name)
            ip("link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", f"p{number}",
               "netns", self.switch)
            ip("-n", self.switch, "link", "set", f"p{number}", "master", "br0", "up")
            ip("-n", name, "link", "set", "eth0", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
            self.set_rate(number, self.rate)
        return self

    def __exit__(self, *_):
        for name in [*map(self.name, self.numbers), self.switch]:
            ip("netns", "delete", name, check=False)

    def set_rate(self, number, rate):
        ip("netns", "exec", self.name(number), "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf",
           "rate", rate, "burst", "512kb", "latency", "50ms")

    def cut_off(self, number):
        ip("-n", self.switch, "link", "set", f"p{number}", "down")

    def reconnect(self, number):
        ip("-n", self.switch, "link", "set", f"p{number}", "up")
        while "state UP" not in ip("-n", self.name(number), "link", "show", "eth0").stdout:
            time.sleep(0.05)
        for each in self.numbers:  # they remember that nobody has answered
            ip("-n", self.name(each), "neigh", "flush", "dev", "eth0")

    def job(self, *command, slots=1, on=None, guard=(), **keywords):
        """`slots` ranks on each of the first `on` hosts, or of all. mpirun runs on the first, and
        notices within 12 seconds when another one is cut off: later than ranks that wait for 5, since
        that of Open MPI 5.0.7 then kills those that are left at once, and ends with exit code 0."""
        numbers = self.numbers[:on]
        network = f"{NETWORK}.0/24"
        options = {
            "plm_rsh_agent": AGENT, "plm_rsh_no_tree_spawn": 1, "pml": "ob1",
            "btl": "tcp,self,vader", "btl_tcp_if_include": network, "oob_tcp_if_include": network,
            "oob_tcp_keepalive_time": 4, "oob_tcp_keepalive_intvl": 4, "oob_tcp_keepalive_probes": 2}
        mpirun = [word for name, value in options.items() for word in ("--mca", name, value)]
        # Open MPI 5 counts one slot where it reads an address of the host on which it runs.
        addresses = [self.name(1), *(f"{NETWORK}.{number}" for number in numbers[1:])]
        hosts = ",".join(f"{address}:{slots}" for address in addresses)
        on_first = ["ip", "netns", "exec", self.name(1), "unshare", "--uts", "bash", "-c",
                    'hostname "$0"; exec "$@"', self.name(1)]
        return Job(slots * len(numbers), *command, guard=[*guard, *on_first],
                   mpirun=[*mpirun, "--leave-session-attached", "-H", hosts],
                   MOEGRAD_TEST_HOSTS=self.prefix, **keywords)


def why_not():
    """Why there can be no hosts here; empty if there can."""
    try:
        with Hosts(2):
            return ""
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces are not to be had: {getattr(error, 'stderr', None) or error}"
