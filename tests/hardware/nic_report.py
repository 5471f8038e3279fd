#!/usr/bin/env python3
"""Measures what nccl-ha relies on of two hosts' RDMA NICs, and writes one report to send back.

usage: nic_report.py HOST [OPTIONS]           HOST is reached by ssh without a password
       nic_report.py --serve PORT [OPTIONS]   without ssh: first on the other host, which says what
       nic_report.py --join HOST:PORT/TOKEN   to call on this one

docs/hardware.md says what is measured and what to expect.  It takes about 20 minutes, 40 with
--link-down; at most an hour.  Nothing is changed on either host, but for --link-down.  Needs root
for that alone.  Exit status: 0 every section has figures or a reason why not, 1 a section failed,
2 nothing could be measured.
"""
import argparse
import datetime
import getpass
import hmac
import json
import os
import pathlib
import secrets
import shlex
import socket
import subprocess
import sys
import time

sys.dont_write_bytecode = True
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import nic_half  # pylint: disable=wrong-import-position

FILES = ("nic_report.py", "nic_half.py")
PROGRAMS = ("bin/nccl-ha", "bin/nha-peers", "bin/nha-nic-probe", "lib/libnccl-net-ha.so")
DOWN_AFTER_S, DOWN_FOR_S = 4, 6


class Failed(Exception):
    """A section has no figures; the text says why."""


class Remote:
    """The other host's half, over a pair of streams: a line of JSON each way."""

    def __init__(self, lines_in, lines_out, close):
        self.lines_in, self.lines_out, self.close = lines_in, lines_out, close

    def call(self, name, *arguments):
        self.lines_out.write((json.dumps([name, *arguments]) + "\n").encode())
        self.lines_out.flush()
        line = self.lines_in.readline()
        if not line:
            raise Failed("the other host's half has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"on the other host: {answer['error']}")
        return answer["value"]


class Local:
    def __init__(self, half):
        self.half = half

    def call(self, name, *arguments):
        return getattr(self.half, name)(*arguments)


def over_ssh(options):
    """Copies what is needed, and begins a half there."""
    ssh = [*shlex.split(options.ssh), options.host, "--"]
    folder = options.there
    if not folder:
        made = subprocess.run([*ssh, "mktemp -d -t nha-report.XXXXXX"], capture_output=True, text=True,
                              timeout=60, check=False, stdin=subprocess.DEVNULL)
        if made.returncode != 0:
            raise Failed(f"{shlex.join(ssh)} gave status {made.returncode}: {made.stderr.strip()}")
        folder = made.stdout.strip()
        sources = [(HERE, name) for name in FILES] + [(options.build, name) for name in PROGRAMS]
        pack = ["tar", "-c", "-h"]
        for top, name in sources:
            pack += ["-C", str(top), name]
        with subprocess.Popen(pack, stdout=subprocess.PIPE) as packing:
            subprocess.run([*ssh, f"tar -x -C {shlex.quote(folder)}"], stdin=packing.stdout, timeout=600,
                           check=True)
    own = str(HERE) if options.there else folder
    half = [options.python, f"{own}/nic_report.py", "--half", "--build", folder, *link_options(options)]
    command = shlex.join(half)
    if not options.there:
        command += f"; rm -rf {shlex.quote(folder)}"
    process = subprocess.Popen([*ssh, command], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def close():
        process.stdin.close()  # it ends what it started, and brings its link up
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    return Remote(process.stdout, process.stdin, close)


def link_options(options):
    words = ["--link-down"] if options.link_down else []
    words += ["--down-there", options.down_there] if options.down_there else []
    words += ["--up-there", options.up_there] if options.up_there else []
    return words


def over_tcp(options):
    place, _, token = options.join.partition("/")
    host, _, port = place.rpartition(":")
    connection = socket.create_connection((host, int(port)), 30)
    connection.settimeout(1200)
    stream = connection.makefile("rwb")
    stream.write((token + "\n").encode())
    stream.flush()
    return Remote(stream, stream, connection.close)


def serve(options, half):
    """One caller that knows the token."""
    token = secrets.token_hex(8)
    with socket.create_server(("", options.serve)) as door:
        print(f"on the other host: {pathlib.Path(sys.argv[0]).name} "
              f"--join {socket.getfqdn()}:{door.getsockname()[1]}/{token}", flush=True)
        door.settimeout(3600)
        while True:
            connection, _ = door.accept()
            connection.settimeout(1800)
            with connection, connection.makefile("rwb") as stream:
                if hmac.compare_digest(stream.readline(200).decode(errors="replace").strip(), token):
                    return nic_half.answer(half, stream, stream)


class Report:
    """Runs the sections, one after another, and keeps what each says."""

    def __init__(self, options, here, there):
        self.options, self.here, self.there = options, here, there
        self.ends = time.monotonic() + options.limit
        self.sections = {}
        self.failed = False
        self.port = options.port

    def section(self, name, measure):
        if self.options.only and name not in ["versions", *self.options.only]:
            self.sections[name] = {"skipped": "left out (--only)"}
            return
        began = time.monotonic()
        print(f"{name} ...", flush=True)
        try:
            if began >= self.ends:
                raise Failed("the time is up (--limit)")
            figures = measure()
            self.sections[name] = figures if "skipped" in figures else {"figures": figures}
        except (Failed, OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
            self.sections[name] = {"failed": f"{type(error).__name__}: {error}"}
            self.failed = True
        self.sections[name]["seconds"] = round(time.monotonic() - began, 1)
        for key in ("skipped", "failed"):
            if key in self.sections[name]:
                print(f"  {key}: {self.sections[name][key]}", flush=True)

    def run(self):
        self.section("versions", self.versions)
        if self.failed:
            raise Failed(self.sections["versions"]["failed"])
        for name, measure in (("control verbs", self.verbs),
                              ("order of data, end under load", self.pair),
                              ("link down", self.link_down), ("failover stall", self.failover),
                              ("against net_ib", self.against_ib)):
            self.section(name, measure)

    def versions(self):
        """Chooses the devices too, where none was named."""
        found = self.on_both("facts")
        options = self.options
        for name, facts in found.items():
            active = [device for device, one in (facts["devices"] or {}).items()
                      if one and any(port["active"] for port in one["ports"])]
            wanted = options.device if name == "this host" else options.device_there or options.device
            if not active or wanted and wanted not in facts["devices"]:
                raise Failed(f"{name}: no RDMA device {wanted or 'with an active port'}; it has "
                             f"{', '.join(facts['devices'] or {}) or 'none'}")
            if name == "this host":
                options.device = wanted or active[0]
            else:
                options.device_there = wanted or active[0]
        return {**found, "measured": [options.device, options.device_there]}

    def next_port(self):
        self.port += 20  # perf takes some above it
        return self.port

    def limit(self, wanted):
        return max(1, min(wanted, self.ends - time.monotonic()))

    def on_both(self, name, *arguments):
        return {"this host": self.here.call(name, *arguments),
                "other host": self.there.call(name, *arguments)}

    # --- what the probe measures

    def device_of(self, half):
        return self.options.device if half is self.here else self.options.device_there

    def probe_options(self, half):
        options = self.options
        words = ["--repeat", str(options.repeat), "--rounds", str(options.rounds)]
        words += ["--device", self.device_of(half)]
        words += ["--gid", str(options.gid)] if options.gid is not None else []
        return words

    def verbs(self):
        found = {}
        for name, half in (("this host", self.here), ("other host", self.there)):
            half.call("start", "verbs", "nha-nic-probe", ["verbs", *self.probe_options(half)], {})
            found[name] = json_of(half.call("finish", "verbs", self.limit(300)))
        return found

    def start_pair(self, what, listens, calls):
        """Data flows from `calls` to `listens`; the addresses are this host's or the other's."""
        port = self.next_port()
        address = self.options.address if listens is self.here else self.options.there_address
        listens.call("start", what, "nha-nic-probe",
                     [what, "--listen", str(port), *self.probe_options(listens)], {})
        calls.call("start", what, "nha-nic-probe",
                   [what, "--peer", f"{address}:{port}", *self.probe_options(calls)], {})

    def pair(self):
        found = {}
        for name, listens, calls in (("to this host", self.here, self.there),
                                     ("to the other host", self.there, self.here)):
            self.start_pair("pair", listens, calls)
            found[name] = {"receiver": json_of(listens.call("finish", "pair", self.limit(600))),
                           "sender": json_of(calls.call("finish", "pair", self.limit(60)))}
        return found

    def link_down(self):
        """The receiver's link, then the sender's."""
        reason = self.there.call("why_no_link", self.options.device_there)
        if reason:
            return {"skipped": reason}
        found = {}
        for name, listens, calls in (("of the receiver", self.there, self.here),
                                     ("of the sender", self.here, self.there)):
            self.start_pair("link", listens, calls)
            for half in (listens, calls):
                if not half.call("await_line", "link", "streaming", self.limit(60)):
                    raise Failed("no data flowed before the link went down")
            time.sleep(1)
            took = self.there.call("set_link", self.options.device_there, False)
            try:
                found[name] = {"command took ms": took,
                               "sender": json_of(calls.call("finish", "link", self.limit(120))),
                               "receiver": json_of(listens.call("finish", "link", self.limit(120)))}
            finally:
                self.there.call("set_link", self.options.device_there, True)
            time.sleep(self.options.settle)
        return found

    # --- what nccl-ha perf measures

    def perf(self, arguments, seconds, meanwhile=None, alone=False):
        """`alone`: beside net_ib, with no other RDMA device than the measured one."""
        port = self.next_port()
        for rank, half in enumerate((self.here, self.there)):
            environment = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                           "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": self.options.address,
                           "MASTER_PORT": str(port)}
            words = ["perf", *arguments, "--json", "perf.json", "-T", str(int(seconds) + 60)]
            program = "nccl-ha"
            if alone:
                program = "nha-peers"
                environment["NCCL_IB_HCA"] = "=" + self.device_of(half)
                if self.options.libnccl:
                    environment["LIBNCCL"] = self.options.libnccl
            else:
                words += ["--device", self.device_of(half)]
            half.call("start", "perf", program, words, environment)
        if meanwhile:
            meanwhile()
        first = self.here.call("finish", "perf", self.limit(seconds + 90))
        second = self.there.call("finish", "perf", self.limit(30))
        if first["status"] != 0 or second["status"] != 0:
            lines = (first["out"] + first["err"] + second["out"] + second["err"]).splitlines()
            raise Failed(f"perf {arguments[0]} ended with {first['status']} and {second['status']}: "
                         + "; ".join(line for line in lines if "nccl-ha perf:" in line)[-1500:])
        return first, second

    def failover(self):
        """Beside the same without a fault."""
        seconds = self.options.seconds
        words = ["sendrecv", "-b", "1M", "-e", "1M", "--seconds", str(seconds), "--percentiles",
                 "--plugin", "libnccl-net-ha.so"]
        quiet, _ = self.perf(words, seconds)
        found = {"without a fault": stalls(quiet)}
        reason = self.there.call("why_no_link", self.options.device_there)
        if reason:
            found["with the link down"] = {"skipped": reason}
            return found

        def fault():
            time.sleep(DOWN_AFTER_S + self.options.settle)
            self.there.call("set_link", self.options.device_there, False)
            time.sleep(min(DOWN_FOR_S, seconds / 4))
            self.there.call("set_link", self.options.device_there, True)

        words[words.index("--seconds") + 1] = str(seconds + 20)
        try:
            first, second = self.perf(words, seconds + 20, fault)
        finally:
            self.there.call("set_link", self.options.device_there, True)
        found["with the link down"] = {**stalls(first), "log here": log_of(first),
                                       "log there": log_of(second)}
        if not any(" is down: " in line for line in log_of(first) + log_of(second)):
            raise Failed("the link went down and no path did: was it the device's?")
        return found

    def against_ib(self):
        found = {}
        common = ["--against", "ib", "--plugin", "libnccl-net-ha.so", "--rounds",
                  str(self.options.turns)]
        for name, words in (("one message of 8 bytes", ["latency", "-b", "8", "-e", "8", "-I", "2000"]),
                            ("bandwidth", ["pt2pt", "-b", "64K", "-e", self.options.largest, "-f", "16",
                                           "--reuse", "-c", "0", "--seconds", "1"])):
            try:
                first, _ = self.perf([*words, *common], 300, alone=True)
            except Failed as error:
                if "libnccl" in str(error) or "NCCL" in str(error) and not found:
                    return {"skipped": f"net_ib could not be used: {error}"}
                raise
            found[name] = [{"bytes": row["bytes"], "ratio": row["ratio"],
                            "p50_us": [side["p50_us"] for side in row["plugins"]]}
                           for row in first["json"]["results"]]
        return found


def json_of(finished):
    if finished["status"] != 0:
        raise Failed(f"{finished['command']} ended with {finished['status']}: "
                     + (finished["err"] or finished["out"])[-800:])
    return json.loads(finished["out"].splitlines()[-1])


def stalls(finished):
    """Of iterations, in milliseconds; the longest one is the stall."""
    row = finished["json"]["results"][0]
    row = row["plugins"][0] if "plugins" in row else row
    return {f"{name} ms": round(row[f"{name}_us"] / 1000, 3) for name in ("p50", "p99", "max")}


def summary(sections):
    """What a reader looks at first; the report has the rest."""
    def figures(name):
        return sections[name].get("figures", {})

    lines = []
    for host, found in figures("control verbs").items():
        for verb in ("create_qp", "modify_qp ERR", "destroy_qp", "reg_mr 4K", "reg_mr 1G"):
            time_of = found["verbs"][verb]
            lines.append(f"{host}: {verb} p50 {time_of['p50_us']} us, max {time_of['max_us']} us")
    for way, sides in figures("order of data, end under load").items():
        for name, seen in sides["receiver"]["order"].items():
            if "incomplete at their completion" in seen:
                count = seen["incomplete at their completion"]
                lines.append(f"{way}: {name}: {count} of {seen['messages']} messages incomplete")
        for name, ends in sides["receiver"]["end_under_load"].items():
            lines.append(f"{way}: {name}: destroy_qp max {ends['destroy_qp']['max_us']} us, memory changed "
                         f"later {ends['memory changed after destroy_qp']} times")
    for side, found in figures("link down").items():
        lines.append(f"link down {side}: {found['sender']['status']} after "
                     f"{found['sender']['ms from last success to failure']} ms")
    for name, found in figures("failover stall").items():
        if "max ms" in found:
            lines.append(f"perf {name}: p50 {found['p50 ms']} ms, longest {found['max ms']} ms")
    for name, rows in figures("against net_ib").items():
        lines += [f"{name}, {row['bytes']} bytes: {row['ratio']:.3f} of net_ib" for row in rows]
    return lines


def log_of(finished):
    signs = (" is down: ", " are down", "failover of ", " moved ", " back after ")
    lines = (finished["out"] + finished["err"]).splitlines()
    return [line.split("NET/HA : ")[-1] for line in lines if any(sign in line for sign in signs)][:40]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, add_help=True,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("host", nargs="?", help="the other host, as ssh knows it")
    add("--build", type=pathlib.Path, default=HERE.parent.parent / "build" / "release",
        help="where nccl-ha was built (default: build/release)")
    add("--there", help="the same on the other host (default: the programs are copied)")
    add("--ssh", default="ssh -o BatchMode=yes -o ConnectTimeout=20",
        help="what runs a command on a host; it is given HOST -- COMMAND")
    add("--python", default="python3", help="on the other host")
    add("--address", help="of this host, as the other one reaches it by TCP (default: found out); not over "
                          "the NIC whose link goes down")
    add("--there-address", help="of the other host (default: HOST)")
    add("--port", type=int, default=29600, help="TCP ports from here on, some 200 (default: 29600)")
    add("--serve", type=int, metavar="PORT", help="be the other host's half, without ssh; 0: any port")
    add("--join", metavar="HOST:PORT/TOKEN", help="the half that --serve began")
    add("--half", action="store_true", help=argparse.SUPPRESS)
    add("--device", default="", help="RDMA device (default: the first with an active port)")
    add("--device-there", default="", help="of the other host (default: as --device)")
    add("--gid", type=int, help="its GID (default: RoCE v2 with an IPv4 address)")
    add("--link-down", action="store_true",
        help="take the link of the other host's device down, for some seconds each time; needs root there")
    add("--down-there", metavar="COMMAND", help="what does that (default: ip link set NETDEV down); for "
                                                "InfiniBand, or at the switch")
    add("--up-there", metavar="COMMAND", help="and ends it")
    add("--settle", type=float, default=10, help="seconds for a link to come up again (default: 10)")
    add("--repeat", type=int, default=200, help="of each control verb (default: 200)")
    add("--rounds", type=int, default=20, help="of queue pairs that end under load (default: 20)")
    add("--seconds", type=float, default=20, help="of each perf run (default: 20)")
    add("--turns", type=int, default=5, help="of plugin and net_ib (default: 5)")
    add("--largest", default="64M", help="message of the comparison (default: 64M)")
    add("--libnccl", help="libnccl.so.2, for net_ib (default: that of this host)")
    add("--only", action="append", metavar="SECTION", help="this section alone; may be repeated")
    add("--limit", type=float, default=3600, help="seconds for everything (default: 3600)")
    add("--output", type=pathlib.Path, help="default: nic-report-DATE.json")
    options = parser.parse_args()
    if not (options.half or options.serve is not None or options.join or options.host):
        parser.error("name the other host, or see --help for two halves without ssh")
    if (options.down_there is None) != (options.up_there is None):
        parser.error("--down-there and --up-there belong together")
    return options


def addresses(options):
    """Of both hosts, as the other one reaches them."""
    host = options.host.rsplit("@")[-1] if options.host else options.join.rpartition(":")[0]
    options.there_address = options.there_address or host
    if not options.address:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((options.there_address, 9))
            options.address = probe.getsockname()[0]


def main():
    options = parse()
    half = nic_half.Half(options.build.resolve(), options)
    if options.half:
        return nic_half.answer(half, sys.stdin.buffer, sys.stdout.buffer)
    if options.serve is not None:
        return serve(options, half)
    there = None
    try:
        addresses(options)
        there = over_tcp(options) if options.join else over_ssh(options)
        report = Report(options, Local(half), there)
        report.run()
    except (Failed, OSError, subprocess.SubprocessError) as error:
        print(f"nothing could be measured: {error}", file=sys.stderr)
        return 2
    finally:
        if there is not None:
            there.close()
        half.close()
    now = datetime.datetime.now().isoformat(timespec="seconds")
    path = options.output or pathlib.Path(f"nic-report-{now.replace(':', '')}.json")
    lines = summary(report.sections)
    path.write_text(json.dumps({"made": now, "by": getpass.getuser(), "arguments": sys.argv[1:],
                                "summary": lines, "sections": report.sections}, indent=1) + "\n")
    print("\n".join(lines))
    print(f"the report is {path.resolve()}: look through it for names that are not to leave your site, "
          "then send it (docs/hardware.md)")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
