#!/usr/bin/env python3
"""What a lost cable, or a lost relay node, costs hosts that are cabled without a switch.

usage: mesh_cuts.py [--faults N] [--ends N] [--tool FILE] [cables] [relays] [line]

cables: a ring of four, whose processes relay themselves, under all_reduce; in turn one cable and the
other, half of the cuts silent.  relays: the same ring with relay nodes under alltoall; in turn the node
of h2 and that of h4 gets SIGKILL and is started anew, as systemd would.  line: a line of three is cut
under alltoall, with a retry budget of 3 s; both sides must end with an error.
Default: all three, 50 faults each, 5 cuts of the line.

Prints the stall's percentiles.  Exit status 0 if every byte was right and the goals hold, 1 if not, 2
if it could not be measured.
"""
import argparse
import json
import pathlib
import re
import subprocess
import sys
import tempfile

from cuts import TOOL, percentile

# After each fault the path is made anew, and the other one carries until its turn comes.
CABLE_PLAN = ("cut h1-h2 --for 400ms@3s..3.5s, cut h3-h4 --for 400ms@8s..8.5s, "
              "cut h1-h2 --silent --for 400ms@13s..13.5s, cut h3-h4 --silent --for 400ms@18s..18.5s")
# The lab's state tells hosts when to kill their node: a limit that nothing comes near.
RELAY_PLAN = "slow h2.mgmt 100gbit@4s..4.5s, heal h2.mgmt@7s, slow h4.mgmt 100gbit@9s..9.5s, heal h4.mgmt@12s"
GOAL_MS = 500.0
RING = 4
LINE_BUDGET_MS = 3000
LINE_LIMIT_S = 10.0

NODE = r"""
cd FOLDER
node() { while [ ! -e over ]; do nccl-ha relay >> $RANK.log 2>&1 & echo $! > $RANK.pid; wait $!; sleep 0.1; done; }
: > $RANK.log
node & nodes=$!
until nccl-ha info --routes 2>/dev/null | grep -q 'SHAPE'; do kill -0 $nodes || exit 9; sleep 0.1; done
touch $RANK.ready
until [ $(ls | grep -c ready) = HOSTS ]; do sleep 0.1; done
"""
KILLER = r"""
marked() { nccl-ha lab show | grep -F "$NHA_LAB_HOST.mgmt" | grep -q 'Mbit/s'; }
killer() {
  while [ ! -e over ]; do
    until marked; do [ -e over ] && return; sleep 0.2; done
    kill -KILL $(cat $RANK.pid) && echo "killed the relay node" || { echo "no relay node:"; tail -n 2 $RANK.log; }
    while marked; do [ -e over ] && return; sleep 0.2; done
  done
}
case $NHA_LAB_HOST in h2|h4) killer & ;; esac
"""
END = r"""
status=$?
[ $RANK != 0 ] || touch over
touch $RANK.done
until [ $(ls | grep -c done) = HOSTS ]; do sleep 0.1; done
kill $(cat $RANK.pid)
wait
exit $status
"""


def lab(tool, topology, relay, script, limit_s, environment=()):
    command = [str(tool), "lab", "run", topology, "-q", "--timeout", str(limit_s)]
    for one in (f"NCCL_MESH_RELAY={relay}", "HA_NCCL_FABRIC=datagram", *environment):
        command += ["--env", one]
    command += ["--", "bash", "-c", "exec 2>&1\n" + script]
    return subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)


def measured(tool, relay, before, after, perf, plan, per_round, faults):
    """The stalls and everything that was said; None when a byte was wrong."""
    rounds = -(-faults // per_round)
    limit_s = 120 + 30 * rounds
    with tempfile.TemporaryDirectory(prefix="nha-mesh-") as folder:
        report = pathlib.Path(folder, "report.json")
        script = (before + f"nccl-ha perf {perf} -w 0 -I 4 -v --timeout {limit_s - 20} --fault '{plan}' "
                  f"--fault-rounds {rounds} $([ $RANK = 0 ] && echo --json {report})\n" + after)
        script = script.replace("FOLDER", folder).replace("HOSTS", str(RING)).replace("SHAPE", "ring: 4")
        done = lab(tool, f"ring-{RING}", relay, script, limit_s)
        if done.returncode != 0 or not report.exists():
            print(done.stdout[-4000:], done.stderr[-1000:])
            return None
        found = json.loads(report.read_text(encoding="utf-8"))
    happened = [fault for row in found["results"] for plugin in row["plugins"]
                for one in plugin["rounds"] for fault in one.get("faults", [])]
    return happened, done.stdout


def told(what, happened, said, least_moves, signs=(" moved to the shadow", " moved back to path")):
    moves = sum(said.count(sign) for sign in signs)
    stalls = [fault["stall_ms"] for fault in happened]
    held = percentile(stalls, 0.99) <= GOAL_MS and moves >= least_moves
    print(f"{what}: {len(stalls)} faults, {moves} moves of traffic, every byte right (goal: p99 {GOAL_MS:.0f} ms)"
          f"{'' if held else '  MISSED'}", flush=True)
    for kind in sorted({"silent" if "--silent" in fault["what"] else "told" for fault in happened}):
        some = [fault["stall_ms"] for fault in happened if ("--silent" in fault["what"]) == (kind == "silent")]
        print(f"  {kind}: {len(some)}, stall p50 {percentile(some, 0.5):.1f} ms, p99 {percentile(some, 0.99):.1f} ms, "
              f"max {max(some):.1f} ms", flush=True)
    return held


def cables(options):
    found = measured(options.tool, "inline", "", "", "all_reduce -b 1M -e 1M", CABLE_PLAN, 4, options.faults)
    # A cut moves at least the two connections that take that cable, unless it ends before.
    return found is not None and told("a cable of the ring is cut", *found, options.faults)


def relays(options):
    found = measured(options.tool, "auto", NODE + KILLER, END, "alltoall -b 1M -e 1M", RELAY_PLAN, 2,
                     options.faults)
    if found is None:
        return False
    # On a busy machine a job's process may relay itself before the node is back and has taken over again.
    marks = {host: iter(re.findall(rf"\[{host}\] (killed the relay node|no relay node)", found[1]))
             for host in ("h2", "h4")}
    met = [fault for fault in found[0]
           if next(marks[re.search("h[24]", fault["what"])[0]], "").startswith("killed")]
    if any(list(left) for left in marks.values()) or 10 * len(met) < 9 * options.faults:
        print(f"only {len(met)} of {len(found[0])} relay nodes were killed")
        return False
    if len(met) < len(found[0]):
        print(f"{len(found[0]) - len(met)} of {len(found[0])} times a job's process relayed, and no node was there to kill")
    # Load is on both ways round: the one that is left carries it, each way, until the other is made anew.
    return told("a relay node of the ring is killed", met, found[1], len(met), ("failover of path ",))


def line(options):
    held = True
    times = []
    for _ in range(options.ends):
        script = r"""
carried() { nccl-ha lab show --json | python3 -c '
import json, sys
print(max(way["bytes"] for link in json.load(sys.stdin)["links"] if link["name"] == "h2-h3"
          for way in link["directions"]))'; }
[ $RANK = 0 ] && { until [ $(carried) -gt 20000000 ]; do :; done
                   nccl-ha lab cut h2-h3 > /dev/null && echo "cut $EPOCHREALTIME"; } &
nccl-ha perf alltoall -b 1M -e 1M -I 100000 -w 0 --timeout 60
echo "ended $? $EPOCHREALTIME"
wait
"""
        done = lab(options.tool, "line-3", "inline", script, 90,
                   [f"HA_NCCL_RETRY_BUDGET_MS={LINE_BUDGET_MS}"])
        cut = re.search(r"cut ([\d.]+)", done.stdout)
        ends = re.findall(r"\[(h\d)\] ended (\d+) ([\d.]+)", done.stdout)
        told_why = re.findall(r"\[(h\d)\] nccl-ha perf: rank", done.stdout)
        if not cut or len(ends) != 3 or any(status == "0" for _, status, _ in ends) or \
                not {"h3"} <= set(told_why) or not {"h1", "h2"} & set(told_why):
            print(done.stdout[-3000:])
            held = False
            continue
        times.append(max(float(when) - float(cut[1]) for _, _, when in ends))
    if times:
        held = held and max(times) <= LINE_LIMIT_S
        print(f"a line is cut: {len(times)} times, an error on both sides after {min(times):.1f} to "
              f"{max(times):.1f} s with a retry budget of {LINE_BUDGET_MS / 1000:.0f} s (goal: "
              f"{LINE_LIMIT_S:.0f} s){'' if held else '  MISSED'}", flush=True)
    return held and bool(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--faults", type=int, default=50)
    parser.add_argument("--ends", type=int, default=5)
    parser.add_argument("--tool", type=pathlib.Path, default=TOOL)
    parser.add_argument("parts", nargs="*", choices=[[], "cables", "relays", "line"])
    options = parser.parse_args()
    if not options.tool.exists():
        print(f"mesh_cuts.py: build the preset release first: {options.tool} is missing")
        return 2
    held = [{"cables": cables, "relays": relays, "line": line}[part](options)
            for part in options.parts or ("cables", "relays", "line")]
    return 0 if all(held) else 1


if __name__ == "__main__":
    sys.exit(main())
