"""What tests/nccl/against_nccl_failover.py tries: faults, and networks of NCCL that meet them."""
import dataclasses
import pathlib
import random

TOPOLOGY = pathlib.Path(__file__).resolve().parent.parent / "emulated" / "topology.xml"


@dataclasses.dataclass(frozen=True)
class Fault:
    name: str
    title: str
    steps: tuple  # (seconds after the moment, what the lab is asked); {rail}, {other}, {from}
    lasts: float  # seconds until all is healed
    hit: tuple  # the links whose loss is to be proven
    proof: str = "carrier"  # or "frames": lost on purpose while the carrier stays
    during_init: bool = False


ALL_FAULTS = (
    Fault("pulled", "cable pulled for 6 s", ((0, "cut {rail} --for 6s"),), 6, ("{rail}",)),
    Fault("silent", "silent for 6 s", ((0, "cut {rail} --silent --for 6s"),), 6, ("{rail}",),
          "frames"),
    Fault("one-direction", "silent in one direction for 6 s",
          ((0, "cut {rail} --silent --from {from} --for 6s"),), 6, ("{rail}",), "frames"),
    Fault("flap", "pulled for 0.2 s", ((0, "cut {rail} --for 200ms"),), 0.2, ("{rail}",)),
    Fault("gone", "pulled for 10 s", ((0, "cut {rail} --for 10s"),), 10, ("{rail}",)),
    Fault("in-turn", "one rail for 5 s, 4 s later the other for 5 s",
          ((0, "cut {rail} --for 5s"), (9, "cut {other} --for 5s")), 14, ("{rail}", "{other}")),
    Fault("both", "both rails for 3 s", ((0, "cut {rail} --for 3s"), (0, "cut {other} --for 3s")), 3,
          ("{rail}", "{other}")),
    Fault("init-pulled", "pulled for 6 s, from a moment during ncclCommInitRank", ((0, "cut {rail} --for 6s"),), 6,
          ("{rail}",), during_init=True),
    # For longer than that call takes: NCCL's own network sends nothing over a rail before the first
    # operation.
    Fault("init-silent", "silent for 20 s, from a moment during ncclCommInitRank",
          ((0, "cut {rail} --silent --for 20s"),), 20, ("{rail}",), "frames", during_init=True),
    Fault("management", "management network gone for 10 s", ((0, "cut mgmt --for 10s"),), 10,
          ("mgmt",)),
)


@dataclasses.dataclass(frozen=True)
class Draw:
    """What is left to chance in one repeat: the same for every variant."""
    rail: str
    other: str
    sender: str
    share: float  # of the time in which the moment may lie

    def fill(self, text):
        return text.replace("{rail}", self.rail).replace("{other}", self.other).replace(
            "{from}", self.sender)


def draw(seed, fault, repeat, attempt=0):
    """Rails and directions take turns, moments are random."""
    chance = random.Random(f"{seed} {fault.name} {repeat} {attempt}")
    rails = ("rail0", "rail1") if repeat % 2 == 0 else ("rail1", "rail0")
    return Draw(*rails, f"h{repeat // 2 % 2 + 1}", chance.random())


@dataclasses.dataclass(frozen=True, eq=False)
class Variant:
    name: str
    title: str
    environment: dict
    proofs: tuple  # what the log of a rank has to say of the network
    net_proofs: tuple  # and what NCCL says with the subsystem NET switched on
    tag: str  # of its lines in the log
    # How long to wait until a rail that works again is used again: ours stands by instead (see
    # HA_NCCL_ENABLE_FAILBACK), and a job begins anew; NCCL tries five times, every five seconds.
    recovery_s: float

    @property
    def ours(self):
        return self.name == "ours"


# What NCCL's own network needs in these guests: which GIDs are RoCE v2, and a topology in which the two
# devices are functions of one card, as Soft-RoCE's have no place on a bus.
IB = {"NCCL_NET": "IB", "NCCL_IB_GID_INDEX": "1", "NCCL_IB_HCA": "rxe0,rxe1",
      "NCCL_TOPO_FILE": str(TOPOLOGY)}
# After the two devices, which are 0 and 1, comes what they were merged to.
MERGED = ("Using network IB", "via NET/IB/2")
MADE = (r"Made virtual device \[2\] name=rxe0\+rxe1 .*ndevs=2",)

ALL_VARIANTS = (
    # The default: the interfaces that NCCL_SOCKET_IFNAME names (the rank's script has another one).
    Variant("ours", "nccl-ha, defaults", {"HA_NCCL_IFNAME": "mgmt"},
            ("Using network HA", "via NET/HA"),
            ("using RDMA on rxe0 rxe1", r"connected to .* over RoCE rxe0:1 .* qp \d+",
             r"connected to .* over RoCE rxe1:1 .* qp \d+"), "NET/HA", 3),
    Variant("failover", "NCCL, failover and recovery on",
            {**IB, "NCCL_IB_RESILIENCY_PORT_FAILOVER": "1", "NCCL_IB_RESILIENCY_PORT_RECOVERY": "1",
             "NCCL_IB_TIMEOUT": "14", "NCCL_IB_RETRY_CNT": "3"},
            MERGED, MADE + ("Resiliency context was initialized",), "NET/IB", 30),
    Variant("defaults", "NCCL, defaults", IB, MERGED, MADE, "NET/IB", 30),
)


def fault_named(name):
    return next(fault for fault in ALL_FAULTS if fault.name == name)


def variant_named(name):
    return next(variant for variant in ALL_VARIANTS if variant.name == name)
