#!/usr/bin/env python3
"""What hosts in between cost: latency and bandwidth from one end of a line to the other, over none to three
relay nodes, beside bare forwarders that copy the same bytes between the same sockets.

usage: relay_hops.py [--turns N] [--relays N] [--build DIR]      (default: 5 turns, 3 relays)

Each host is a network namespace (`nccl-ha lab run line-N`).  Ours and bare_forwarder take turns; a ratio is
the median of the turns with its standard error.  Bandwidth: messages of 1 MiB, eight on the way.  Latency:
half round trip of 8 bytes, p50.  Processor seconds are those of both ends and of the relays.
Goals: bandwidth through relays at least 0.9 of the bare forwarders'; each relay adds at most one direct
hop's latency.  Exit status: 0 when they hold within their error, 1 when not, 2 when something could not be
measured.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

from untuned import median

BANDWIDTH_GOAL = 0.9
MEGABYTES = 600
SEGMENT = 1448
ITERATIONS = 500  # of 1 MiB

# Each host of the line has its relay node; its first and its last one are the ranks.
OURS = r"""
cd FOLDER
ticks() { awk '{ print $14 + $15 }' /proc/$1/stat; }
meet() { touch $RANK.$1; until [ $(ls | grep -c "\.$1\$") = HOSTS ]; do sleep 0.05; done; }
: > $RANK.log
nccl-ha relay >> $RANK.log 2>&1 & pid=$!
# Before that info --routes would have the port.
grep -q 'relay node' <(tail -n +1 -f --pid=$pid $RANK.log) || exit 9
until nccl-ha info --routes 2>/dev/null | grep -q ': HOSTS hosts'; do kill -0 $pid || exit 9; sleep 0.1; done
meet ready
rank=$RANK
end=1; case $RANK in 0) export RANK=0 ;; LAST) export RANK=1 ;; *) end=0 ;; esac
export WORLD_SIZE=2
perf() { [ $end = 0 ] || nccl-ha perf "$@" -c 0 --timeout 60 $([ $RANK = 0 ] && echo --json $what.json) > $rank.$what.txt 2>&1; }
what=bandwidth; before=$(ticks $pid)
perf pt2pt -b 1M -e 1M -w 20 -I ITERATIONS || { cat $rank.$what.txt; exit 8; }
RANK=$rank; meet bandwidth_over; [ $rank != LAST ] || RANK=1
echo $(($(ticks $pid) - before)) > $rank.ticks
what=latency
perf latency -b 8 -e 8 -w 200 -I 3000 || { cat $rank.$what.txt; exit 8; }
RANK=$rank; meet over
kill $pid; wait $pid
"""
BARE = r"""
cd FOLDER
meet() { touch $RANK.$1; until [ $(ls | grep -c "\.$1\$") = HOSTS ]; do sleep 0.05; done; }
before=198.18.$((RANK - 1)).$RANK next=198.18.$RANK.$((RANK + 2))
for what in "source $next MEGABYTES SEGMENT" "ping $next 3000"; do
  name=${what%% *}
  case $RANK in
    0) meet $name.up; bare_forwarder $what > $RANK.$name || exit 8 ;;
    *) role="forward $before $next"; [ $RANK != LAST ] || role="sink $before"
       : > $RANK.$name
       bare_forwarder $role >> $RANK.$name & pid=$!
       grep -q bound <(tail -n +1 -f --pid=$pid $RANK.$name) || exit 8
       meet $name.up; wait $pid || exit 8 ;;
  esac
  meet $name.over
done
"""


def lab(options, relays, script, environment):
    hosts = relays + 2
    with tempfile.TemporaryDirectory(prefix="nha-hops-") as folder:
        for name, value in (("FOLDER", folder), ("HOSTS", hosts), ("LAST", hosts - 1), ("MEGABYTES", MEGABYTES),
                            ("SEGMENT", SEGMENT), ("ITERATIONS", ITERATIONS)):
            script = script.replace(name, str(value))
        script = f"export PATH={options.build / 'bin'}:$PATH\n" + script
        command = [str(options.build / "bin" / "nccl-ha"), "lab", "run", f"line-{hosts}", "-q", "--timeout", "150"]
        for one in environment:
            command += ["--env", one]
        command += ["--", "bash", "-c", "exec 2>&1\n" + script]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        if done.returncode != 0:
            print(f"relay_hops.py: {relays} relays: the lab ended with {done.returncode}\n"
                  f"{done.stdout[-3000:]}{done.stderr[-1000:]}", file=sys.stderr)
            sys.exit(2)
        return {path.name: path.read_text(encoding="utf-8") for path in pathlib.Path(folder).iterdir()
                if path.is_file()}


def ours(options, relays):
    found = lab(options, relays, OURS, ("NCCL_MESH_RELAY=auto", "HA_NCCL_FABRIC=datagram"))
    bandwidth = json.loads(found["bandwidth.json"])["results"][0]["plugins"][0]
    latency = json.loads(found["latency.json"])["results"][0]["plugins"][0]
    # The nodes of the ends take no part in it.
    ticks = sum(int(found[f"{host}.ticks"]) for host in range(1, relays + 1))
    gigabytes = ITERATIONS * 2**20 / 1e9
    return {"gbps": bandwidth["algbw_gigabytes_per_s"], "us": latency["p50_us"], "ends": bandwidth["cpu_s_per_gb"],
            "relays": ticks / 100 / gigabytes}


def number(text, name):
    return float(text.split(name)[1].split()[0])


def bare(options, relays):
    found = lab(options, relays, BARE, ())
    used = [number(found[f"{host}.source"], "cpu_s") / (MEGABYTES / 1000) for host in range(relays + 2)]
    return {"gbps": number(found["0.source"], "gbps"), "us": number(found["0.ping"], "p50_us"),
            "ends": used[0] + used[-1], "relays": sum(used[1:-1])}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "release")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--relays", type=int, default=3)
    options = parser.parse_args()
    for name in ("nccl-ha", "bare_forwarder"):
        if not (options.build / "bin" / name).exists():
            print(f"relay_hops.py: {options.build / 'bin' / name} is missing: build preset release")
            return 2
    turns = []
    for _ in range(options.turns):
        turns.append([(ours(options, relays), bare(options, relays)) for relays in range(options.relays + 1)])
    missed = 0
    print("relays   ours GB/s   bare GB/s  ours / bare      of direct   s/GB: ends, relays; bare  ours us  bare us  "
          "added by each relay / direct")
    for relays in range(options.relays + 1):
        mine, theirs = ({key: median([turn[relays][side][key] for turn in turns])[0]
                         for key in ("gbps", "us", "ends", "relays")} for side in (0, 1))
        ratio, error = median([turn[relays][0]["gbps"] / turn[relays][1]["gbps"] for turn in turns])
        direct, direct_error = median([turn[relays][0]["gbps"] / turn[0][0]["gbps"] for turn in turns])
        text = (f"{relays:>6} {mine['gbps']:>11.3f} {theirs['gbps']:>11.3f} {ratio:>8.2f} +-{error:<5.2f}"
                f"{direct:>8.2f} +-{direct_error:<4.2f} {mine['ends']:>8.2f} {mine['relays']:>7.2f}; "
                f"{theirs['ends']:.2f} {theirs['relays']:.2f} {mine['us']:>10.1f} {theirs['us']:>8.1f}")
        if relays > 0:
            added, added_error = median([(turn[relays][0]["us"] - turn[0][0]["us"]) / relays / turn[0][0]["us"]
                                         for turn in turns])
            held = ratio + error >= BANDWIDTH_GOAL, added - added_error <= 1.0
            missed += sum(not one for one in held)
            text += (f" {added:>8.2f} +-{added_error:<5.2f} bandwidth {'holds' if held[0] else 'MISSED'}, latency "
                     f"{'holds' if held[1] else 'MISSED'}")
        print(text, flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
