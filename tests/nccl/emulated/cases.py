#!/usr/bin/env python3
"""Runs NCCL's own host code over a plugin, case by case.

usage: cases.py BUILD PLUGIN [--planted PLUGIN] [--sanitizer asan|tsan] [--long] [--list] [--logs DIR]
                [PATTERN]
  BUILD    what emulated/CMakeLists.txt made
  PLUGIN   libnccl-net-ha.so, or none for NCCL's own sockets
  PATTERN  a regular expression: only cases that it finds
  --planted  the plugin as tests/mutants builds it: mistakes in it must be found
  --sanitizer  PLUGIN was built with it; what it reports about the plugin makes a case WRONG

One line per case: verdict, seconds, name, the last words of rank 0.  A case is right when every rank
ended as it should, its log says that NCCL used the plugin, and its kernels were run by the
algorithms and protocols that the case asks for.  Logs of the others are named.  Ends with
"N passed, N failed"; exit status 0 only if none failed.
"""
import argparse
import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path.insert(0, str(HERE.parents[1] / "support"))
import sanitizers  # pylint: disable=wrong-import-position
from ports import port_to_meet_at  # pylint: disable=wrong-import-position

# What a rank says of itself.
WORDS = re.compile(r"^\[\d+\.\d+\] rank (\d+): (.*)$", re.MULTILINE)
EVENTS = re.compile(r"^net events of rank \d+: (\d+) sends of (\d+) bytes, (\d+) receives of (\d+) bytes,"
                    r" (\d+) open, (\d+) wrong$", re.MULTILINE)
FOUND = re.compile(r"is wrong|hangs$|asynchronous error|emulated kernel:")
# What a process says at its end: collective, algorithm, protocol.
RAN = re.compile(r"^emulated kernels: (\w+) (\w+) (\w+): \d+$", re.MULTILINE)


@dataclasses.dataclass
class Case:
    name: str
    ranks: int
    arguments: str
    environment: dict = dataclasses.field(default_factory=dict)
    only_long: bool = False
    program: str = "rank"
    abi: int = 0  # the only ABI version that NCCL sees
    dies: int = -1  # the rank that is to die; the others see it, abort and end
    mistake: bool = False  # something is wrong on purpose, and a rank must say so
    # A profiler is loaded that counts the events of transfers: so many bytes leave each rank, or any.
    events: int = -1
    registrations: int = 0  # how often NCCL registers a buffer for a connection
    planted: str = ""  # the mistake in the plugin, by its name in tests/mutants/mutation.h
    limit: int = 120
    says: tuple = ()  # patterns that rank 0's log must have as well
    never_says: tuple = ()  # and that no log may have


INLINE = {"HA_NCCL_USE_PROGRESS_THREAD": "0"}
LL = {"NCCL_PROTO": "LL", "NCCL_P2P_LL_THRESHOLD": "16384"}
BOTH = {"NCCL_PROTO": "LL,Simple", "NCCL_P2P_LL_THRESHOLD": "16384"}
# NCCL takes LL128 of its own accord only between GPUs and NICs that are near each other.
LL128 = {"NCCL_PROTO": "LL128"}
SIMPLE = {"NCCL_PROTO": "Simple"}
# It has trees for all_reduce only.
TREE = {"NCCL_ALGO": "Ring;AllReduce:Tree"}
FAULTS = {"HA_NCCL_DGRAM_FAULTS": "drop=0.02,dup=0.01,reorder=0.01,seed=1",
          "HA_NCCL_DGRAM_MTU": "1500"}
# With more of them the C library maps what suits it, however long a thread has been gone.
ONE_ARENA = {"MALLOC_ARENA_MAX": "1"}
THREADS = {"HA_NCCL_PROGRESS_THREADS": "4"}
NIC = {"NHA_FAKE_NIC": "1"}
GPU_NIC = {**NIC, "NHA_FAKE_GPUDIRECT": "1", "NCCL_NET_GDR_LEVEL": "SYS"}
# NCCL's own transport over the same NIC: what is wrong there is wrong with the NIC.
NET_IB = {**NIC, "NCCL_NET": "IB"}
TWO_NICS = {"NCCL_TOPO_FILE": str(HERE / "two_nics.xml"), "NHA_NIC": "devices=2"}
COLLNET = {"NCCL_COLLNET_ENABLE": "1", "NCCL_ALGO": "CollNetChain,CollNetDirect,Ring",
           "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING"}
# In NCCL's table of what it expects: a bandwidth of 0 with each of three protocols.
COLLNET_IS_OFF = (r"(?s)CollNetChain((?!AllReduce).)*AllReduce \|"
                  r"(\s*[\d.]+/\s*0\.0 \|){3}")
# The log must say what NCCL registers.
REGISTER = {"NCCL_LOCAL_REGISTER": "1", "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,REG"}
COUNTS = "0,1,7,1000,65536,1000003"
FEW = "1,1000,65536"
TYPES = "float,int32,uint8"
OTHER_TYPES = "double,half,bfloat16,int64"
REDUCED = "--ops all_reduce,all_reduce_max,all_reduce_avg"


def all_cases(abis):
    def short(name, ranks, arguments, *environments, **more):
        merged = {key: value for each in environments for key, value in each.items()}
        return Case(name, ranks, arguments, merged, **more)

    def long(*arguments, **more):
        return short(*arguments, only_long=True, **more)

    every = f"--ops all --types float --counts {COUNTS}"
    some = f"--ops all --types float --counts {FEW}"
    yield short("simple-2", 2, f"--ops all,all_reduce_avg --types {TYPES} --counts {COUNTS}")
    yield short("simple-2-inline", 2, every, INLINE)
    yield short("ll-2", 2, f"--ops all,all_reduce_avg --types {TYPES} --counts 0,7,65536", LL)
    yield short("ll-2-inline", 2, some, LL, INLINE)
    yield short("both-2", 2, every, BOTH)
    yield short("types-2", 2, "--ops all,all_reduce_avg --counts 1000,65536"
                              f" --types {OTHER_TYPES}", BOTH)
    yield short("ll128-2", 2, f"--ops all,all_reduce_avg --types {TYPES} --counts 0,7,65536", LL128)
    yield short("tree-4", 4, f"{REDUCED} --types {TYPES} --counts 0,7,65536", TREE, BOTH)
    yield from tree_and_ll128_cases(long)
    yield short("simple-4", 4, f"--ops all --types float --counts {FEW}")
    yield short("ll-3-inline", 3, "--ops all --types float --counts 1,1000", LL, INLINE)
    yield long("simple-4-types", 4, f"--ops all --types float,int64 --counts {COUNTS}")
    yield long("simple-4-inline", 4, f"--ops all --types float,int64 --counts {COUNTS}", INLINE)
    yield long("ll-4", 4, some, LL)
    yield long("simple-8", 8, some, limit=400)
    yield long("ll-8-inline", 8, "--ops all --types float --counts 1,1000", LL, INLINE, limit=400)
    yield short("large-2", 2, "--ops all_reduce,sendrecv --counts 4194304")
    yield long("larger-2", 2, "--ops all_reduce,all_gather,sendrecv --counts 16777216")
    yield long("larger-2-inline", 2, "--ops all_reduce,all_gather,sendrecv --counts 16777216",
               INLINE)
    yield long("channels-8", 2, every, {"NCCL_MAX_NCHANNELS": "8", "NCCL_MIN_NCHANNELS": "8"})
    yield short("small-buffers", 2, some, {"NCCL_BUFFSIZE": "65536"})
    yield short("unshared", 2, f"--ops sendrecv,alltoall --counts {COUNTS}",
                {"NCCL_NET_SHARED_BUFFERS": "0"})
    yield long("unshared-ll", 2, f"--ops sendrecv,alltoall --counts {COUNTS}", LL,
               {"NCCL_NET_SHARED_BUFFERS": "0"}, says=("kernels: sendrecv Ring LL:",))
    yield short("faults-2", 2, some, FAULTS)
    yield short("faults-ll-2-inline", 2, some, FAULTS, LL, INLINE)
    yield long("faults-2-inline", 2, every, FAULTS, INLINE)
    yield long("faults-ll-2", 2, some, FAULTS, LL)
    yield long("faults-4", 4, some, FAULTS)
    yield short("nic-2", 2, some, NIC)
    yield short("nic-2-inline", 2, some, NIC, INLINE)
    yield short("nic-gpu-2", 2, every, GPU_NIC)
    yield short("nic-gpu-2-inline", 2, some, GPU_NIC, INLINE)
    yield short("nic-gpu-both-2", 2, some, GPU_NIC, BOTH)
    yield short("nic-gpu-comms-4", 2, f"--comms 4 --ops all_reduce,alltoall --counts {FEW}", GPU_NIC)
    yield short("nic-gpu-cycles-3", 2, "--cycles 3 --ops all_reduce,sendrecv --counts 1000", GPU_NIC)
    yield short("nic-gpu-abort", 2, "--abort 0.3 --cycles 2", GPU_NIC)
    yield short("net-ib-2", 2, some, NET_IB)
    yield short("net-ib-gpu-2", 2, some, GPU_NIC, NET_IB)
    yield short("net-ib-two-nics-2", 2, some, NET_IB, TWO_NICS, says=("via NET/IB/2",))
    yield long("net-ib-4", 4, every, NET_IB, {"NHA_NIC": "ib,any_order,tear=128,foreign_gids=1"})
    yield long("nic-gpu-4", 4, some, GPU_NIC)
    yield long("nic-gpu-4-inline", 4, some, GPU_NIC, INLINE)
    yield long("nic-gpu-larger-2", 2, "--ops all_reduce,sendrecv --counts 16777216", GPU_NIC)
    yield long("nic-gpu-queue-pairs-4", 2, every, GPU_NIC,
               {"HA_NCCL_IB_QPS_PER_CONNECTION": "4", "HA_NCCL_IB_SPLIT_BYTES": "4096"})
    yield long("nic-gpu-threads-4", 2, f"--comms 4 {some}", GPU_NIC, THREADS)
    # The plugin has no collectives of its own to offer, whatever is asked for.
    yield long("collnet-asked", 2, some, COLLNET, says=(COLLNET_IS_OFF,),
               never_says=("Loaded collnet plugin",))
    yield long("graph-asked", 2, f"--graph 1 {some}", says=("graphs are refused; goes on without",))
    # all_reduce, its maximum, all_gather and broadcast; sendrecv and alltoall.
    registered = f"--register 1 --ops all --types float --counts {COUNTS}"
    # Of five counts: six in a ring over two channels, two in a send and a receive; not 0 elements.
    times = 5 * (4 * 6 + 2 * 2)
    yield short("nic-gpu-registered-2", 2, registered, GPU_NIC, REGISTER, registrations=times)
    yield long("nic-gpu-registered-2-inline", 2, registered, GPU_NIC, REGISTER, INLINE,
               registrations=times)
    yield long("nic-gpu-registered-4", 4, f"--comms 2 {registered}", GPU_NIC, REGISTER,
               registrations=2 * 5 * (4 * 6 + 2 + 6))
    yield long("nic-gpu-registered-large-2", 2,
               "--register 1 --ops all_reduce,all_gather,sendrecv --counts 16777216", GPU_NIC,
               REGISTER, registrations=6 + 6 + 2)
    yield long("nic-gpu-split", 2, "--split 1 --ops all_reduce,sendrecv --counts 1,65536", GPU_NIC)
    yield short("comms-4", 2, f"--comms 4 --ops all_reduce,alltoall --counts {FEW}")
    yield long("comms-4-all", 2, f"--comms 4 {some}")
    yield long("comms-4-inline", 2, f"--comms 4 {some}", INLINE)
    yield long("comms-4-faults", 2, f"--comms 4 {some}", FAULTS)
    yield long("comms-3-ranks-4", 4, f"--comms 3 --ops all_reduce,alltoall --counts {FEW}")
    yield short("threads-4", 2, f"--comms 4 --ops all_gather,sendrecv --counts {FEW}", THREADS)
    yield long("threads-4-all", 2, f"--comms 4 {some}", THREADS)
    yield short("split", 2, "--split 1 --ops all_reduce,sendrecv --counts 1,65536")
    yield short("cycles-3", 2, "--cycles 3 --ops all_reduce,sendrecv --counts 1000")
    yield short("cycles-3-inline", 2, "--cycles 3 --ops all_reduce,sendrecv --counts 1000", INLINE)
    cycles = "--cycles 16 --growth 1 --ops all_reduce,sendrecv --counts 1000"
    yield long("cycles-16", 2, cycles, ONE_ARENA)
    yield long("cycles-16-inline", 2, cycles, ONE_ARENA, INLINE)
    # What may block is done by a pool of threads, of which there are more or fewer as it happens.
    yield long("cycles-16-nic-gpu", 2, cycles.replace("--growth 1", "--growth 2"), ONE_ARENA, GPU_NIC)
    yield long("cycles-keep", 2, "--cycles 4 --ops all_reduce,sendrecv --counts 1000",
               {"NCCL_NET_PLUGIN_REF_COUNT": "1"})
    for abi in abis:
        yield short(f"abi-{abi}", 2, "--ops all_reduce,alltoall --counts 1,65536", BOTH, abi=abi)
        yield long(f"abi-{abi}-simple", 2, some, abi=abi)
        yield long(f"abi-{abi}-ll", 2, some, LL, abi=abi)
        yield long(f"abi-{abi}-nic-gpu", 2, some, GPU_NIC, abi=abi)
    counted = "--ops sendrecv,alltoall --types float --counts 1,1000,65536"
    yield short("profiler-2", 2, counted, events=2 * 4 * 66537)
    yield long("profiler-nic-gpu-2-inline", 2, counted, GPU_NIC, INLINE, events=2 * 4 * 66537)
    yield long("profiler-faults-4", 4, f"--comms 2 {some}", FAULTS, BOTH, events=0)
    yield long("profiler-cycles-3", 2, "--cycles 3 --ops all_reduce --counts 1000", events=0)
    yield short("nonblocking", 2, "--blocking 0 --cycles 2 --ops all_reduce --counts 1000")
    yield short("abort", 2, "--abort 0.3 --cycles 2")
    yield short("abort-inline", 2, "--abort 0.3 --cycles 2", INLINE)
    yield long("abort-4", 4, "--abort 1 --cycles 2")
    yield long("abort-comms", 2, "--abort 1 --cycles 2 --comms 3")
    dying = "--limit 60 --ops all_reduce --counts 1000003"
    yield short("die-2", 2, f"--die 1@3 {dying}", dies=1)
    yield short("die-2-inline", 2, f"--die 1@3 {dying}", INLINE, dies=1)
    yield short("nic-gpu-die-2", 2, f"--die 1@3 {dying}", GPU_NIC, dies=1)
    yield long("nic-gpu-die-2-inline", 2, f"--die 1@3 {dying}", GPU_NIC, INLINE, dies=1)
    yield long("die-first", 2, f"--die 0@3 {dying}", dies=0)
    yield long("die-at-once", 2, f"--die 1@0 {dying}", dies=1)
    yield short("die-3-rebuild", 3, f"--die 2@3 --rebuild 1 {dying}", dies=2)
    yield long("die-4", 4, f"--die 2@30 {dying}", dies=2)
    for mistake in ("element", "size", "early_tail"):
        yield short(f"wrong-kernel-{mistake}", 2, "--ops all_reduce --counts 65536 --limit 10",
                    {"NHA_KERNEL_MISTAKE": mistake}, mistake=True)
    yield short("wrong-kernel-flag", 2, "--ops all_reduce --counts 1000 --limit 3", LL,
                {"NHA_KERNEL_MISTAKE": "flag"}, mistake=True)
    yield short("wrong-kernel-early_flag", 2, "--ops all_reduce --counts 65536 --limit 10", LL128,
                {"NHA_KERNEL_MISTAKE": "early_flag"}, mistake=True)
    yield short("wrong-kernel-root", 2, "--ops all_reduce --counts 65536 --limit 10", TREE,
                {"NHA_KERNEL_MISTAKE": "root"}, mistake=True)
    yield short("one-process-2", 1, "1", {"NHA_FAKE_DEVICES": "2"}, program="one_process")
    yield long("one-process-4", 1, "3", {"NHA_FAKE_DEVICES": "4"}, program="one_process")
    yield long("one-process-4-inline", 1, "3", {"NHA_FAKE_DEVICES": "4"}, INLINE,
               program="one_process")


def tree_and_ll128_cases(long):
    some = f"--ops all --types float --counts {FEW}"
    queue_pairs = {"HA_NCCL_IB_QPS_PER_CONNECTION": "4", "HA_NCCL_IB_SPLIT_BYTES": "4096"}
    for name, protocol in (("simple", SIMPLE), ("ll", LL), ("ll128", LL128)):
        reduced = f"{REDUCED} --types {TYPES} --counts {COUNTS}"
        yield long(f"tree-{name}-2", 2, reduced, TREE, protocol)
        yield long(f"tree-{name}-2-inline", 2, reduced, TREE, protocol, INLINE)
        yield long(f"tree-{name}-4", 4, reduced, TREE, protocol)
        yield long(f"tree-{name}-4-inline", 4, f"{REDUCED} --counts {FEW}", TREE, protocol, INLINE)
        yield long(f"tree-{name}-8", 8, f"{REDUCED} --counts {FEW}", TREE, protocol, limit=400)
        yield long(f"tree-{name}-types-3", 3, f"--ops all_reduce,all_reduce_max --counts 1000,65536"
                                              f" --types {OTHER_TYPES}", TREE, protocol)
        yield long(f"faults-tree-{name}-4", 4, f"{REDUCED} --counts {FEW}", TREE, protocol, FAULTS)
        yield long(f"nic-gpu-tree-{name}-2", 2, reduced, TREE, protocol, GPU_NIC)
        yield long(f"nic-gpu-tree-{name}-4", 4, f"{REDUCED} --counts {FEW}", TREE, protocol,
                   GPU_NIC)
        yield long(f"nic-gpu-tree-{name}-2-inline", 2, f"{REDUCED} --counts {FEW}", TREE, protocol,
                   GPU_NIC, INLINE)
    yield long("tree-comms-4", 2, f"--comms 4 {some}", TREE, BOTH)
    yield long("tree-larger-4", 4, "--ops all_reduce --counts 4194304", TREE)
    yield long("tree-abort-4", 4, "--abort 1 --cycles 2", TREE)
    yield long("tree-die-4", 4, "--die 2@3 --limit 60 --ops all_reduce --counts 1000003", TREE,
               dies=2)
    yield long("ll128-2-inline", 2, f"--ops all --types float --counts {COUNTS}", LL128, INLINE)
    yield long("ll128-types-2", 2, "--ops all,all_reduce_avg --counts 1000,65536"
                                   f" --types {OTHER_TYPES}", LL128)
    yield long("ll128-4", 4, f"--ops all --types float,int64 --counts {COUNTS}", LL128)
    yield long("ll128-8", 8, some, LL128, limit=400)
    yield long("ll128-larger-2", 2, "--ops all_reduce,all_gather --counts 16777216", LL128)
    yield long("ll128-abort", 2, "--abort 0.3 --cycles 2", LL128)
    yield long("faults-ll128-2", 2, some, LL128, FAULTS)
    yield long("faults-ll128-2-inline", 2, some, LL128, FAULTS, INLINE)
    yield long("faults-ll128-4", 4, some, LL128, FAULTS)
    yield long("nic-ll128-2", 2, some, LL128, NIC)
    yield long("nic-gpu-ll128-2", 2, f"--ops all --types {TYPES} --counts {COUNTS}", LL128, GPU_NIC)
    yield long("nic-gpu-ll128-2-inline", 2, some, LL128, GPU_NIC, INLINE)
    yield long("nic-gpu-ll128-4", 4, some, LL128, GPU_NIC)
    yield long("nic-gpu-ll128-queue-pairs-4", 2, some, LL128, GPU_NIC, queue_pairs)


def planted_cases():
    """Each mistake beside a run of the same kind without one, which must be right."""
    every = "--ops all_reduce,sendrecv --counts 1,65536,1000003 --limit 5"
    yield Case("planted-none", 2, every, planted="none")
    for mistake in ("done_too_early", "request_forgotten"):
        yield Case(f"planted-{mistake}", 2, every, planted=mistake, mistake=True)
    yield Case("planted-gpu-none", 2, every, GPU_NIC, planted="none")
    for mistake in ("done_too_early", "size_untold", "region_let_go", "flush_skipped",
                    "local_key_told"):
        yield Case(f"planted-gpu-{mistake}", 2, every, GPU_NIC, planted=mistake, mistake=True)


def number_of(mistake):
    """In the order of the names in tests/mutants/mutation.h."""
    text = (HERE.parents[1] / "mutants" / "mutation.h").read_text(encoding="utf-8")
    body = re.search(r"enum class Mutation.*?\{(.*?)\};", text, re.DOTALL).group(1)
    names = re.findall(r"^ *(\w+),", body, re.MULTILINE)
    return names.index(mistake)


class Runner:
    def __init__(self, build, plugin, planted, sanitizer, logs):
        self.build = build
        self.sanitizer = sanitizer
        self.plugin = plugin
        self.planted = planted
        self.logs = logs
        self.passed = 0
        self.failed = 0
        # NCCL before 2.30 has no name any more for a plugin that it has unloaded, and goes on without.
        version = [int(part) for part in re.findall(r"\d+", build.name)]
        self.forgets_plugins = version < [2, 30]

    def environment(self, case, rank, port):
        plugin = self.plugin
        more = dict(case.environment)
        if case.planted:
            plugin = self.planted
            more["NHA_MUTANT"] = str(number_of(case.planted))
        if case.abi:
            more["NHA_ONE_ABI_PLUGIN"] = plugin
            plugin = str(self.build / f"libone_abi_v{case.abi}.so")
        kept = {key: value for key, value in os.environ.items()
                if not key.startswith(("NCCL_", "HA_NCCL_", "NHA_"))}
        kept.update(RANK=str(rank), WORLD_SIZE=str(case.ranks), MASTER_ADDR="127.0.0.1",
                    MASTER_PORT=str(port), **more)
        if more.get("NCCL_NET") == "IB":
            plugin = "none"
            kept["NHA_PRELOAD"] = str(self.build / "nic" / "libnha_nic_sysfs.so")
        again = case.program == "one_process" or re.search("--(cycles|rebuild)", case.arguments)
        if self.forgets_plugins and again:
            kept.setdefault("NCCL_NET_PLUGIN_REF_COUNT", "1")
        if case.events >= 0:
            kept["NCCL_PROFILER_PLUGIN"] = str(self.build / "libnet_events.so")
        if self.sanitizer:
            kept.update(sanitizers.environment(self.sanitizer, self.plugin))
        return plugin, kept

    def run(self, case):
        start = time.monotonic()
        folder = self.logs / case.name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        port = port_to_meet_at()
        ranks = []
        for rank in range(case.ranks):
            plugin, environment = self.environment(case, rank, port)
            with open(folder / f"rank{rank}", "wb") as log:
                ranks.append(subprocess.Popen(
                    [HERE / "rank.sh", self.build, plugin, case.program, *case.arguments.split()],
                    env=environment, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=subprocess.STDOUT))
        limit = case.limit * (5 if self.sanitizer else 1)
        statuses = [self.wait(process, start + limit) for process in ranks]
        texts = [(folder / f"rank{rank}").read_text(encoding="utf-8", errors="replace")
                 for rank in range(case.ranks)]
        why = self.judge(case, statuses, texts)
        words = [match[1] for match in WORDS.findall(texts[0 if case.dies != 0 else 1])]
        if case.mistake:
            found = [words for text in texts for _, words in WORDS.findall(text)
                     if FOUND.search(words)]
            words = sorted(found, key=lambda words: "is wrong" in words)
        verdict, last = ("right", words[-1] if words else "") if why is None else ("WRONG", why)
        self.passed += why is None
        self.failed += why is not None
        print(f"{verdict}  {time.monotonic() - start:6.1f} s  {case.name:24} {last}"[:150])
        if why is not None:
            print(f"         logs: {folder}")
        sys.stdout.flush()

    def run_tests_of_the_emulation(self):
        """A GoogleTest program; each of its tests counts."""
        self.logs.mkdir(parents=True, exist_ok=True)
        log = self.logs / "emulation_tests"
        with open(log, "wb") as out:
            status = subprocess.run([self.build / "emulation_tests"], stdout=out, check=False,
                                    stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL).returncode
        text = log.read_text(encoding="utf-8", errors="replace")
        good = len(re.findall(r"^\[       OK \]", text, re.MULTILINE))
        bad = len(re.findall(r"^\[  FAILED  \] .* ms\)$", text, re.MULTILINE))
        if bad == 0 and (status != 0 or good == 0):
            bad = 1
        self.passed += good
        self.failed += bad
        print(f"{'WRONG' if bad else 'right'}           tests of the emulation itself: {good} of"
              f" {good + bad}" + (f"; log: {log}" if bad else ""), flush=True)

    @staticmethod
    def wait(process, until):
        try:
            return process.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return "still running"

    def judge(self, case, statuses, texts):
        """What is wrong, or None."""
        for rank, text in enumerate(texts if self.sanitizer else []):
            for report in sanitizers.found_in(text):
                return f"rank {rank}: {report}"
        if case.mistake:
            if not any(FOUND.search(words) for text in texts for _, words in WORDS.findall(text)):
                return f"the mistake was not found (statuses {statuses})"
            return self.judge_use(case, texts)
        for rank, (status, text) in enumerate(zip(statuses, texts)):
            good = "kernels ended" if case.dies >= 0 else "every element right"
            if case.abi == 0 and "--abort" in case.arguments:
                good = "aborted in"
            if rank == case.dies:
                if status != -9 or "kills itself" not in text:
                    return f"rank {rank} was to die and ended with {status}"
            elif status != 0 or good not in text:
                return f"rank {rank} ended with {status}: {self.last_words(text)}"
        return (self.judge_kernels(case, texts) or self.judge_use(case, texts) or
                self.judge_events(case, texts))

    @staticmethod
    def judge_kernels(case, texts):
        """Whether NCCL took the algorithms and protocols that it was asked for, and only those."""
        by_tree = "Tree" in case.environment.get("NCCL_ALGO", "")
        asked = set(case.environment.get("NCCL_PROTO", "Simple").split(","))
        for rank, text in enumerate(texts):
            if case.dies >= 0:
                continue  # it ends at once, and says nothing then
            ran = RAN.findall(text)
            if not ran:
                return f"rank {rank} does not say which kernels ran"
            collectives = [each for each in ran if each[0] != "sendrecv"]
            for name, algorithm, protocol in collectives:
                wanted = "Tree" if by_tree and name == "all_reduce" else "Ring"
                if algorithm != wanted or protocol not in asked:
                    return f"rank {rank}: {name} was run by {algorithm}, {protocol}"
            missing = asked - {protocol for _, _, protocol in collectives}
            if by_tree and not any(algorithm == "Tree" for _, algorithm, _ in collectives):
                missing.add("Tree")
            if collectives and missing:
                return f"rank {rank}: nothing was run by {', '.join(sorted(missing))}"
        return None

    @staticmethod
    def judge_events(case, texts):
        """What libnet_events.so counted of each communicator."""
        sent = came = 0
        for rank, text in enumerate(texts if case.events >= 0 else []):
            found = EVENTS.findall(text)
            if not found:
                return f"rank {rank}: no events of transfers"
            for sends, out, receives, into, still_open, wrong in (map(int, each) for each in found):
                if still_open or wrong or not sends or not receives or case.events not in (0, out):
                    return (f"rank {rank}: {sends} sends of {out} bytes, {receives} receives,"
                            f" {still_open} events open, {wrong} wrong")
                sent += out
                came += into
        return None if sent == came else f"events tell of {sent} bytes sent and {came} received"

    def judge_use(self, case, texts):
        for said in case.says:
            if not re.search(said, texts[0]):
                return f"rank 0: nothing says '{said}'"
        for rank, text in enumerate(texts):
            for said in case.never_says:
                if re.search(said, text):
                    return f"rank {rank} says '{said}'"
        network = case.environment.get("NCCL_NET", "HA")
        if self.plugin == "none" and network == "HA":
            return None
        proofs = [f"Using network {network}", f"via NET/{network}"]
        if "NHA_FAKE_NIC" in case.environment:
            proofs.append("over RoCE mlx5_0" if network == "HA" else "mlx5_0:1/(RoCE|IB)")
        if "NHA_FAKE_GPUDIRECT" in case.environment:
            proofs.append(f"via NET/{network}/0/GDRDMA")
        if "HA_NCCL_DGRAM_FAULTS" in case.environment:
            proofs.append("faults injected: [1-9]")
        for rank, text in enumerate(texts):
            other = re.search(rf"Using network (?!{network}$).*", text, re.MULTILINE)
            if other:
                return f"rank {rank}: {other[0]}"
            for proof in proofs:
                if not re.search(proof, text):
                    return f"rank {rank}: nothing says '{proof}'"
            registered = len(re.findall(r"NET register userbuff 0x\w+ \(handle 0x", text))
            if registered != case.registrations:
                return f"rank {rank}: NCCL registered buffers {registered} times"
        return None

    @staticmethod
    def last_words(text):
        lines = [line for line in text.splitlines() if line]
        said = [line for line in lines if WORDS.match(line)]
        return (said or lines or ["no output"])[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("plugin")
    parser.add_argument("--planted", type=pathlib.Path)
    parser.add_argument("--sanitizer", choices=sanitizers.NAMES)
    parser.add_argument("--long", action="store_true", help="all cases")
    parser.add_argument("--list", action="store_true", help="only names the cases")
    parser.add_argument("--logs", type=pathlib.Path)
    parser.add_argument("pattern", nargs="?", default="")
    arguments = parser.parse_intermixed_args()
    build = arguments.build.resolve()
    plugin = arguments.plugin
    if plugin != "none":
        plugin = str(pathlib.Path(plugin).resolve(strict=True))
    abis = sorted(int(re.sub(r"\D", "", path.name)) for path in build.glob("libone_abi_v*.so"))
    cases = list(all_cases(abis if plugin != "none" else []))
    if arguments.planted:
        cases += planted_cases()
    cases = [case for case in cases
             if (arguments.long or not case.only_long) and re.search(arguments.pattern, case.name)]
    if arguments.sanitizer:  # it looks at the plugin only
        cases = [case for case in cases if case.environment.get("NCCL_NET") != "IB"]
    planted = str(arguments.planted.resolve()) if arguments.planted else ""
    runner = Runner(build, plugin, planted, arguments.sanitizer, arguments.logs or build / "logs")
    if not arguments.list and re.search(arguments.pattern, "emulation"):
        runner.run_tests_of_the_emulation()
    for case in cases:
        if arguments.list:
            print(case.name)
        else:
            runner.run(case)
    if arguments.list:
        return 0
    print(f"{runner.passed} passed, {runner.failed} failed")
    return 1 if runner.failed or not runner.passed else 0


if __name__ == "__main__":
    sys.exit(main())
