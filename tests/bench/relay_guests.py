#!/usr/bin/env python3
"""What hosts in between cost over queue pairs: latency and bandwidth from one end of a line to the other, over none
to three relay nodes, beside the same by datagrams.

usage: relay_guests.py [--turns N] [--relays N] [--build DIR]      (default: 3 turns, 3 relays)

Each host is an emulated machine with Soft-RoCE on its cables (nha-guests), with two relay nodes: one whose
hops are queue pairs, and one with datagrams only, in meshes of their own (NCCL_MESH_PORT).  In each turn the first
host meets each of the others, and within one run both kinds take turns; a ratio is the median of all runs with its
standard error.  Bandwidth: messages one after the other, back to back.  Latency: half round trip of 8 bytes, p50.
Callers drive (no progress thread), as a guest has one processor.  All guests share this machine's processors, and
what they do is software: ratios mean something, figures do not.
Exit status: 0, or 2 when something could not be measured.
"""
import argparse
import json
import pathlib
import subprocess
import sys

from untuned import median

ROUNDS = 5
SECONDS = 1
SIZES = {"64 KiB": 65536, "512 KiB": 524288, "4 MiB": 4194304}

# The first host is rank 0 of each run, the one behind so many relays rank 1.
SCRIPT = r"""
exec 2>&1
export NCCL_MESH_RELAY=auto NCCL_MESH_PAGE= HA_NCCL_USE_PROGRESS_THREAD=0
# A guest that waits for a processor is silent.
export HA_NCCL_ENABLE_BACKUP=0 HA_NCCL_HEARTBEAT_MS=0 HA_NCCL_IB_TIMEOUT=16 HA_NCCL_DGRAM_DEAD_MS=60000
export NCCL_MESH_DEAD_MS=30000
rc="NCCL_MESH_PORT=18740" dg="NCCL_MESH_PORT=18741 HA_NCCL_FABRIC=datagram"
for kind in rc dg; do
  : > /tmp/$kind.log
  env ${!kind} nccl-ha relay >> /tmp/$kind.log 2>&1 & pid=$!
  grep -q 'relay node' <(tail -n +1 -f --pid=$pid /tmp/$kind.log) || { cat /tmp/$kind.log; exit 9; }
  until env ${!kind} nccl-ha info --routes 2>/dev/null | grep -q ': HOSTS hosts'; do
    kill -0 $pid || exit 9; sleep 0.3
  done
done
host=$RANK port=20000
export WORLD_SIZE=2
for turn in $(seq TURNS); do
  for relays in $(seq 0 RELAYS); do
    for what in "latency -b 8 -e 8 -I 200 -w 20" "pt2pt -b 64K -e 4M -f 8 -c 0 -w 1 --seconds SECONDS"; do
      port=$((port + 4))
      case $host in
        0) RANK=0 ;;
        $((relays + 1))) RANK=1; until (exec 9<> /dev/tcp/$MASTER_ADDR/$port) 2>/dev/null; do sleep 1; done ;;
        *) continue ;;
      esac
      nccl-ha perf $what --rendezvous $MASTER_ADDR:$port --plugin ha --against ha --rounds ROUNDS --timeout 3000 \
        $(for one in $rc; do echo --env $one; done) $(for one in $dg; do echo --env-against $one; done) \
        --json /tmp/report.json > /tmp/perf.txt || { cat /tmp/perf.txt; exit 8; }
      [ $host != 0 ] || echo "REPORT $relays ${what%% *} $(tr -d '\n' < /tmp/report.json)"
    done
  done
done
[ $host = 0 ] || exit 0
"""


def measure(options):
    """Reports by relays and operation, a list of the turns' each, and an exit status."""
    script = SCRIPT
    for name, value in (("HOSTS", options.relays + 2), ("TURNS", options.turns), ("RELAYS", options.relays),
                        ("SECONDS", SECONDS), ("ROUNDS", ROUNDS)):
        script = script.replace(name, str(value))
    command = [str(options.build / "bin" / "nha-guests"), "--topology", f"line-{options.relays + 2}",
               "--no-check", "--quiet", "--timeout", str(300 + 400 * options.turns), "--", "bash", "-c", script]
    found = {}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as lab:
        for line in lab.stdout:
            words = line.split(" ", 4)
            if words[:2] == ["[h1]", "REPORT"]:
                found.setdefault((int(words[2]), words[3]), []).append(json.loads(words[4])["results"])
                print(f"relay_guests.py: {words[2]} relays, {words[3]}: measured", file=sys.stderr)
            else:
                print(line, end="", file=sys.stderr)
    if lab.returncode != 0:
        print(f"relay_guests.py: the lab ended with {lab.returncode}", file=sys.stderr)
    return found, 0 if lab.returncode == 0 else 2


def rounds(turns, bytes_, side, key):
    """Of all turns, in order."""
    return [one[key] for turn in turns for row in turn if row["bytes"] == bytes_
            for one in row["plugins"][side]["rounds"]]


def ratio(over, under):
    value, error = median([a / b for a, b in zip(over, under)])
    return f"{value:.2f} +-{error:.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    root = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--build", type=pathlib.Path, default=root / "build" / "release")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--relays", type=int, default=3)
    options = parser.parse_args()
    found, status = measure(options)
    print("| what | relays | queue pairs | datagrams | of the datagrams' | of the direct path's |\n"
          "|---|---|---|---|---|---|")
    for name, bytes_ in {"8 B": 8, **SIZES}.items():
        what, key = ("latency", "p50_us") if bytes_ == 8 else ("pt2pt", "time_us")
        for relays in sorted(relays for relays, operation in found if operation == what):
            rc, datagrams = (rounds(found[relays, what], bytes_, side, key) for side in (0, 1))
            direct = rounds(found[0, what], bytes_, 0, key)
            shown = [median(values)[0] for values in (rc, datagrams)]
            unit = "us" if bytes_ == 8 else "MB/s"
            if bytes_ != 8:
                shown = [bytes_ / us for us in shown]
                rc, datagrams, direct = ([1 / us for us in values] for values in (rc, datagrams, direct))
            print(f"| {name} | {relays} | {shown[0]:.3g} {unit} | {shown[1]:.3g} {unit} | {ratio(rc, datagrams)} | "
                  f"{ratio(rc, direct) if relays else ''} |", flush=True)
    return status


if __name__ == "__main__":
    sys.exit(main())
