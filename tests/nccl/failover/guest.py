"""The part of tests/nccl/against_nccl_failover.py that runs in the guests of nha-guests.

usage: guest.py PLAN.json

The first guest injects faults and measures, the other one does what the first one asks.  Prints a
line "RESULT {...}" for each repeat.
"""
import argparse
import json
import os
import pathlib
import re
import select
import statistics
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import faults  # pylint: disable=wrong-import-position
import jobs  # pylint: disable=wrong-import-position

PORT = 29400
RAILS = ("rail0", "rail1")
# All_reduce of 256 KiB moves four times as much over each of two rails; what only watches a rail, and
# retries, are far below.
IN_USE_BYTES = 32 * 1024
WATCHED_S = 3  # after a fault is over
NAMES = {"rail0": r"rxe0|rail0|198\.18\.0\.", "rail1": r"rxe1|rail1|198\.18\.1\.",
         "mgmt": r"mgmt|198\.19\.0\."}


class Unusable(Exception):
    """Nothing could be measured: this says nothing of a network."""


class Lab:
    """Asks the lab through the port that it gives its guests.  `nccl-ha lab` does the same, but in a machine
    that is emulated a program takes seconds of the only processor to start, which ranks lack meanwhile."""

    FORM = argparse.ArgumentParser()
    FORM.add_argument("verb")
    FORM.add_argument("target", nargs="?", default="")
    FORM.add_argument("--silent", action="store_true")
    FORM.add_argument("--from", default="")
    FORM.add_argument("--for", dest="lasts", default="")

    def __init__(self):
        ports = [name.parent for name in pathlib.Path("/sys/class/virtio-ports").glob("*/name")
                 if name.read_text(encoding="ascii").strip() == "nccl-ha-lab"]
        if not ports:
            raise RuntimeError("this is no guest of a lab")
        self.port = open(f"/dev/{ports[0].name}", "r+b", buffering=0)

    def ask(self, text):
        """What a user would type after `nccl-ha lab`."""
        self.port.write(json.dumps(vars(self.FORM.parse_args(text.split()))).encode() + b"\n")
        said = b""
        while not said.endswith(b"\n"):
            if not select.select([self.port], [], [], 60)[0]:
                raise RuntimeError(f"lab {text}: no answer")
            said += self.port.read(65536)
        answer = json.loads(said)
        if "error" in answer:
            raise RuntimeError(f"lab {text}: {answer['error']}")
        return answer

    def links(self):
        """Bytes, and frames that were lost on purpose, by the rail or network."""
        found = {}
        for link in self.ask("show")["links"]:
            sums = found.setdefault(link["group"], {"bytes": 0, "dropped": 0})
            for way in link["directions"]:
                sums["bytes"] += way["bytes"]
                sums["dropped"] += way["dropped"]
        return found


class Measurement:
    def __init__(self, plan, rank, other):
        self.plan = plan
        self.rank = rank
        self.other = other
        self.lab = Lab()
        self.held = None  # the last result, until it is clear how the job went on
        self.inits = {}

    def both(self, call, *arguments):
        return [getattr(side, call)(*arguments) for side in (self.rank, self.other)]

    def pause(self, seconds):
        """Until then; less when the job ends before."""
        self.rank.until(lambda: False, max(0.0, seconds))

    # Jobs.

    def start(self, fault, variant, subsystems="INIT,ENV"):
        """NET is switched off: what NCCL's own network says there while it recovers slows it down."""
        self.log = f"{fault.name}-{variant.name}-{time.strftime('%H%M%S')}"
        plugin = self.plan["plugin"] if variant.ours else "none"
        for number, side in ((1, self.other), (0, self.rank)):
            side.start(self.plan["build"], plugin,
                       {**variant.environment, "NCCL_DEBUG_SUBSYS": subsystems},
                       f"{self.plan['logs']}/{self.log}-rank{number}.log")

    def get_known(self, fault, variant):
        """A first job of each variant, that nothing happens to."""
        if variant.name not in self.inits:
            self.running(fault, variant, "INIT,ENV,NET", variant.proofs + variant.net_proofs)
            wrong = self.finish()
            if wrong is not None:
                raise Unusable(f"{variant.name}: a job that was left alone: {wrong}")

    def running(self, fault, variant, subsystems="INIT,ENV", proofs=None):
        """A job that has done some operations over the right network, on all rails."""
        for _ in range(3):
            self.start(fault, variant, subsystems)
            if self.rank.until(lambda: self.rank.count() >= 5, 180) and \
               self.used(variant, proofs or variant.proofs) and \
               self.until_all_rails_carry(0, 30) is not None:
                self.inits.setdefault(variant.name, []).append(self.rank.init_s)
                return
            print(f"a job that was left alone did not run: {self.both('last_words')}", flush=True)
            self.end()
        raise Unusable(f"{variant.name}: three jobs that were left alone did not run")

    def used(self, variant, proofs):
        lacking = self.both("lacks", proofs)
        if any(lacking):
            raise Unusable(f"{variant.name}: the ranks' logs lack {lacking}: {self.log}")
        return True

    def end(self):
        """Whatever state it is in; the lab is as good as new then."""
        self.both("end", 0)
        self.lab.ask("heal")

    def finish(self):
        """Ends a job that goes on, and says whether that went well."""
        if self.rank.ended() is None:
            self.rank.finish()
        statuses = self.both("end", 60)
        words = self.both("last_words")
        self.lab.ask("heal")
        if statuses == [0, 0] and all("every element right" in said for said in words):
            return None
        return f"at its end: {statuses} {words}"

    def emit(self):
        if self.held is not None:
            self.tell_time()
            print("RESULT " + json.dumps(self.held), flush=True)
        self.held = None

    def tell_time(self):
        """For the host to compare with its own."""
        print("CLOCKS " + json.dumps(self.both("clock")), flush=True)

    # Faults.

    def until_all_rails_carry(self, earliest, latest):
        """Seconds until what operations move goes over all rails; None when it does not by then."""
        start = time.monotonic()
        while self.rank.ended() is None:
            before, first = self.lab.links(), self.rank.count()
            if not self.rank.until(lambda: self.rank.count() >= first + 5, 15) and \
               self.rank.ended() is None and self.other.ended() is not None:
                self.rank.end(15)
                return None
            done = self.rank.count() - first
            now = self.lab.links()
            moved = [now[rail]["bytes"] - before[rail]["bytes"] for rail in RAILS]
            took = time.monotonic() - start
            if done >= 5 and min(moved) >= done * IN_USE_BYTES:
                self.pause(earliest - took)
                return took
            if done >= 5 and took > latest:
                return None
        return None

    def strike(self, fault, draw):
        """Does what the fault is, until all of it is healed."""
        start = time.monotonic()
        for after, text in fault.steps:
            self.pause(start + after - time.monotonic())
            self.lab.ask(draw.fill(text))
        time.sleep(max(0.0, start + fault.lasts - time.monotonic()))
        self.lab.ask("heal")

    def surroundings(self):
        return {"links": self.lab.links(), "carrier": self.both("carrier_changes")}

    def proven(self, fault, draw, before):
        """Whether each link that the fault hits was really out of order."""
        deadline = time.monotonic() + 10  # a kernel finds its carrier within some seconds
        while True:
            now = self.surroundings()
            lost = [now["links"][draw.fill(link)]["dropped"] -
                    before["links"][draw.fill(link)]["dropped"] for link in fault.hit]
            changes = [after[draw.fill(link)] - earlier[draw.fill(link)] for link in fault.hit
                       for after, earlier in zip(now["carrier"], before["carrier"])]
            if min(lost if fault.proof == "frames" else changes) >= (
                    1 if fault.proof == "frames" else 2):
                return {"lost": lost, "carrier": changes}
            if time.monotonic() > deadline:
                return None
            time.sleep(0.5)

    def judged(self, fault, variant, repeat, draw, since, first):
        """The result as it looks now."""
        names = "|".join(NAMES[draw.fill(link)] for link in fault.hit)
        warnings = [side.told(mark, variant.tag, names)
                    for side, mark in zip((self.rank, self.other), since)]
        words = self.both("last_words")
        ended = self.rank.ended() is not None or self.other.ended() is not None
        return {
            "fault": fault.name, "variant": variant.name, "repeat": repeat,
            "seed": self.plan["seed"], "rail": draw.rail, "sender": draw.sender, "share": draw.share,
            "survived": not ended, "right": not any("is wrong" in said for said in words),
            "error": " / ".join(words) if ended else "",
            "stall_s": max(self.both("slowest", first)),
            "warned": next((warning for warning in warnings if warning), ""),
            "log": self.log,
        }

    def ended_by_itself(self, variant):
        """Nothing had happened to it yet: a result of no fault's, which counts as every other one."""
        words = " / ".join(word for word in self.both("last_words") if word)
        self.held = {"fault": "none", "variant": variant.name, "repeat": 0,
                     "seed": self.plan["seed"], "survived": False, "right": "is wrong" not in words,
                     "error": words or "a job ended before any fault", "stall_s": 0.0, "log": self.log}
        self.emit()

    def under_load(self, fault, variant, repeats):
        todo = list(repeats)
        unproven = 0
        while todo:
            if unproven > 3:
                raise Unusable(f"{fault.name}, {variant.name}: it cannot be measured")
            self.running(fault, variant)
            while todo and self.rank.ended() is None:
                draw = faults.draw(self.plan["seed"], fault, todo[0], unproven)
                before = self.surroundings()
                since = self.both("mark")
                self.pause(draw.share * 2)
                if self.rank.ended() is not None:
                    if self.held is None:
                        self.ended_by_itself(variant)
                        unproven += 1
                    break
                self.emit()
                # The slowest of all operations that were not over at the moment.
                first = self.rank.count()
                moment = time.monotonic()
                self.strike(fault, draw)
                back = self.until_all_rails_carry(WATCHED_S, variant.recovery_s)
                proof = self.proven(fault, draw, before)
                if proof is None:
                    unproven += 1
                    print(f"{fault.name}: the fault did not happen, once more", flush=True)
                    break
                self.held = self.judged(fault, variant, todo.pop(0), draw, since, first)
                self.held.update(proof, back_s=back, took_s=time.monotonic() - moment)
                if back is None:
                    break
            wrong = self.finish()
            if wrong is not None and self.held is not None and self.held["survived"]:
                self.held.update(survived=False, error=wrong)
            self.emit()

    def during_init(self, fault, variant, repeats):
        for repeat in repeats:
            for attempt in range(5):
                if self.one_init(fault, variant, repeat, attempt):
                    break
            else:
                raise Unusable(f"{fault.name}: it does not happen during ncclCommInitRank")

    def one_init(self, fault, variant, repeat, attempt):
        draw = faults.draw(self.plan["seed"], fault, repeat, attempt)
        before = self.surroundings()
        self.start(fault, variant)
        if not self.rank.until(lambda: self.rank.begun, 60):
            self.end()
            return False
        moment = draw.share * statistics.median(self.inits[variant.name])
        self.pause(moment)
        in_time = self.rank.init_s is None and self.rank.ended() is None
        self.strike(fault, draw)
        proof = self.proven(fault, draw, before)
        if not in_time or proof is None:
            print(f"{fault.name}: too late, or nothing was lost; once more", flush=True)
            self.finish()
            return False
        self.rank.until(lambda: self.rank.count() >= 5, 120)
        back = self.until_all_rails_carry(WATCHED_S, variant.recovery_s)
        self.held = self.judged(fault, variant, repeat, draw, [0, 0], 0)
        inits = [took for took in self.both("init_took") if took is not None]
        self.held.update(proof, back_s=back, moment_s=moment, init_s=max(inits, default=None))
        if inits:
            self.held["stall_s"] = max(self.held["stall_s"], *inits)
            if self.held["survived"]:
                self.used(variant, variant.proofs)
        wrong = self.finish()
        if wrong is not None and self.held["survived"]:
            self.held.update(survived=False, error=wrong)
        self.emit()
        return True

    def run(self):
        """Whether all of the plan was measured."""
        self.tell_time()
        complete = True
        for fault_name, variant_name, repeats in self.plan["todo"]:
            fault, variant = faults.fault_named(fault_name), faults.variant_named(variant_name)
            try:
                self.get_known(fault, variant)
                (self.during_init if fault.during_init else self.under_load)(fault, variant, repeats)
            except Unusable as unusable:
                print(f"UNUSABLE {re.sub(r'[^ -~]', ' ', str(unusable))}", flush=True)
                self.end()
                complete = False
        return complete


def main():
    plan = json.loads(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    rank = jobs.Rank()
    if os.environ["RANK"] != "0":
        jobs.serve(rank, os.environ["MASTER_ADDR"], PORT)
        return 0
    measurement = Measurement(plan, rank, jobs.OtherRank(PORT))
    try:
        return 0 if measurement.run() else 3
    finally:
        measurement.end()


if __name__ == "__main__":
    sys.exit(main())
