"""Nodes of one machine: network namespaces with a wire between them that has a speed, and can be
cut."""
import json
import os
import re
import signal
import subprocess
import tempfile

from test_network import MPIRUN, Case


def ip(*words):
    subprocess.run(["ip", *words], check=True, stderr=subprocess.PIPE, text=True)


class Wires:
    """Nodes as network namespaces, each with two wires to a switch: "data", which is shaped and may
    be cut, and "control", for the launcher and for where the ranks meet."""
    NETS = (("data", "10.77.0."), ("control", "10.78.0."))

    def __init__(self, nodes):
        self.base = "imbrex%d" % os.getpid()
        self.nodes = nodes
        self.switch = self.base + "s"
        self.made = []
        self.folder = tempfile.TemporaryDirectory()

    def name(self, node):
        return self.base + "n%d" % node

    def add(self, name):
        ip("netns", "add", name)
        self.made.append(name)
        ip("-n", name, "link", "set", "lo", "up")

    def open(self):
        self.add(self.switch)
        for net, _ in self.NETS:
            ip("-n", self.switch, "link", "add", net, "type", "bridge")
            ip("-n", self.switch, "link", "set", net, "up")
        for node in range(self.nodes):
            self.add(self.name(node))
            for net, address in self.NETS:
                port = net + str(node)
                ip("link", "add", net, "netns", self.name(node), "type", "veth", "peer", "name",
                   port, "netns", self.switch)
                ip("-n", self.switch, "link", "set", port, "master", net, "up")
                ip("-n", self.name(node), "addr", "add", "%s%d/24" % (address, node + 1), "dev",
                   net)
                ip("-n", self.name(node), "link", "set", net, "up")
        agent = os.path.join(self.folder.name, "agent")
        with open(agent, "w", encoding="ascii") as file:
            # A folder for each of Open MPI's daemons: two in one now and then remove what the other
            # has just made.
            file.write('#!/bin/sh\nnode=$((${1##*.} - 1))\nshift\n'
                       'export TMPDIR=%s/$node\nmkdir -p "$TMPDIR"\n'
                       'exec ip netns exec %sn$node /bin/sh -c "$*"\n'
                       % (self.folder.name, self.base))
        os.chmod(agent, 0o755)
        return self

    def shape(self):
        for node in range(self.nodes):
            subprocess.run(["tc", "-n", self.name(node), "qdisc", "add", "dev", "data", "root",
                            "tbf", "rate", "1gbit", "burst", "256kb", "latency", "100ms"],
                           check=True, stderr=subprocess.PIPE)

    def cut(self):
        ip("-n", self.switch, "link", "set", "data0", "down")

    def kill(self, node, program):
        pids = subprocess.run(["ip", "netns", "pids", self.name(node)], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.split()
        for pid in pids:
            with open("/proc/%s/cmdline" % pid, "rb") as file:
                name = file.read().split(b"\0")[0]
            if os.path.basename(name.decode()) == program:
                os.kill(int(pid), signal.SIGKILL)

    def sent(self):
        """Bytes that have left the nodes on the data wires."""
        text = subprocess.run(["ip", "-j", "-s", "-n", self.switch, "link"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout
        return sum(link["stats64"]["rx"]["bytes"] for link in json.loads(text)
                   if re.fullmatch(r"data\d+", link["ifname"]))

    def command(self, *words, each=2):
        """So many ranks a node, over TCP."""
        hosts = ",".join("10.78.0.%d:%d" % (node + 1, each) for node in range(self.nodes))
        return ["ip", "netns", "exec", self.name(0), *MPIRUN, "-H", hosts, "-n",
                str(each * self.nodes), "--mca", "plm_rsh_agent",
                os.path.join(self.folder.name, "agent"), "--mca", "orte_keep_fqdn_hostnames", "1",
                # Of Open MPI 4: its daemons, several on this machine, now and then crash as they
                # share what they know of it.
                "--mca", "rtc", "^hwloc",
                "--mca", "oob_tcp_if_include", "10.78.0.0/24", "--mca", "btl", "tcp,self",
                "--mca", "btl_tcp_if_include", "10.77.0.0/24", "-x", "MASTER_ADDR=10.78.0.1",
                "-x", "IMBREX_NET", *words]

    def close(self):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)
        self.folder.cleanup()


class Namespaces(Case):
    def wires(self, nodes):
        wires = Wires(nodes)
        self.addCleanup(wires.close)
        try:
            return wires.open()
        except (OSError, subprocess.CalledProcessError) as error:
            reason = getattr(error, "stderr", None) or error
            print("skipped: no network namespaces here: %s" % str(reason).strip())
            self.skipTest("no network namespaces")
