#!/usr/bin/env python3
"""Two "nodes" in network namespaces on one machine train and switch: two_nodes_test.py DYNATRAIN

Needs root and `ip`. Each namespace has a loopback of its own and one end of a link; the launchers of the two meet at the
first one's address, as they would on two machines. Where namespaces cannot be made the test says NOT RUN and ends with
code 77, which ctest tells as skipped.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

NOT_RUN = 77
DEADLINE_S = 150
ADDRESSES = ("10.98.76.1", "10.98.76.2")


def not_run(why):
    print(f"two_nodes_test: NOT RUN: {why}")
    sys.exit(NOT_RUN)


def ip(*arguments):
    return subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True).stdout


class Nodes:
    """Two namespaces and the link between them; gone with the object."""

    def __init__(self):
        self.names = [f"dt{os.getpid()}n{i}" for i in range(2)]
        self.links = [f"dt{os.getpid() % 10**6}v{i}" for i in range(2)]

    def __enter__(self):
        links = self.links
        try:
            for name in self.names:
                ip("netns", "add", name)
            ip("link", "add", links[0], "type", "veth", "peer", "name", links[1])
            for name, link, address in zip(self.names, links, ADDRESSES):
                ip("link", "set", link, "netns", name)
                ip("-n", name, "addr", "add", f"{address}/24", "dev", link)
                ip("-n", name, "link", "set", link, "up")
                ip("-n", name, "link", "set", "lo", "up")
        except (subprocess.CalledProcessError, OSError) as error:
            self.__exit__()
            not_run(f"cannot make network namespaces: {getattr(error, 'stderr', error)}")
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True)

    def received_bytes(self, node):
        """What came to the node over the link so far."""
        (link,) = json.loads(ip("-n", self.names[node], "-json", "-statistics", "link", "show", "dev", self.links[node]))
        return link["stats64"]["rx"]["bytes"]

    def processes(self):
        return [pid for name in self.names for pid in ip("netns", "pids", name).split()]

    def start(self, node, program, *arguments):
        environment = {**os.environ, "RANK": str(node), "WORLD_SIZE": "2", "MASTER_ADDR": ADDRESSES[0], "MASTER_PORT": "29555",
                       "OMP_NUM_THREADS": "1"}
        for name in ("GLOO_SOCKET_IFNAME", "SLURM_PROCID", "TORCHELASTIC_USE_AGENT_STORE"):
            environment.pop(name, None)
        return subprocess.Popen(["ip", "netns", "exec", self.names[node], program, *arguments], env=environment, text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def main():
    program = sys.argv[1]
    if os.geteuid() != 0:
        not_run("network namespaces are made by root")
    if shutil.which("ip") is None:
        not_run("there is no `ip` (iproute2)")
    with tempfile.TemporaryDirectory(prefix="dynatrain-nodes-") as folder, Nodes() as nodes:
        text = pathlib.Path(folder) / "text.txt"
        text.write_text("two nodes train on one text and switch while they do. " * 400)
        lines = pathlib.Path(folder) / "lines.jsonl"
        train = ["train", "--model", "micro-llama", "--global-batch", "4", "--seq", "32", "--data", str(text), "--nproc", "2",
                 "--layout", "tp=2,dp=1,ranks=2-3", "--steps", "120", "--verify", "full", f"--json={lines}",
                 "--switch", "3:tp=2,dp=2,zero=1", "--switch", "50:dp=2,zero=1,ranks=0+3"]
        jobs = [nodes.start(node, program, *train) for node in (1, 0)]
        deadline = time.monotonic() + DEADLINE_S
        said = []
        for job in jobs:
            try:
                said.append(job.communicate(timeout=max(1, deadline - time.monotonic()))[0])
            except subprocess.TimeoutExpired:
                for other in jobs:
                    other.kill()
                sys.exit(f"no end within {DEADLINE_S} s\n{said}\n{job.communicate()[0]}")
        codes = [job.returncode for job in jobs]
        if codes != [0, 0]:
            sys.exit(f"exit codes {codes}\n" + "\n--\n".join(said))
        events = [json.loads(line) for line in lines.read_text().splitlines()]
        steps = [e["step"] for e in events if e["event"] == "step"]
        # Each once; who tells them changes with the layout, and what another node tells may come a step late.
        assert sorted(steps) == list(range(1, 121)), steps
        switches = [e for e in events if e["event"] == "switch"]
        assert [s["outcome"] for s in switches] == ["committed"] * 2, switches
        for s in switches:
            assert s["digest_before"] == s["digest_after"] != "0" * 16 == s["replica_check"], s
            assert s["moved_bytes"] > 0, s
        # The first switch brings all state to the ranks of node 0, which held none; there is no way but the link.
        crossed = nodes.received_bytes(0)
        assert crossed > switches[0]["moved_bytes"], (crossed, switches[0])
        assert nodes.processes() == [], "processes are left in the namespaces"
        print(f"two nodes: {len(steps)} steps, {crossed} bytes to node 0; " + "; ".join(f"{s['from']} -> {s['to']}: {s['outcome']}" for s in switches))


if __name__ == "__main__":
    main()
