"""What nic_report.py does on one host: facts of it, programs, and its link."""
import json
import os
import pathlib
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
import time

LINK_DOWN_MAX_S = 90  # then it comes up whatever happens
INFINIBAND = pathlib.Path("/sys/class/infiniband")


def text_of(path):
    try:
        return pathlib.Path(path).read_text(errors="replace").strip()
    except OSError:
        return None


def said_by(*command, limit=20):
    """What a program says; None where there is none."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False,
                              stdin=subprocess.DEVNULL)
        return (done.stdout or done.stderr).strip()[:4000] if done.returncode == 0 else None
    except (OSError, subprocess.SubprocessError):
        return None


def sysfs_of(device):
    """What NCCL and drivers read of a device."""
    found = {name: text_of(device / name) for name in ("board_id", "fw_ver", "hca_type", "node_guid",
                                                       "sys_image_guid")}
    for name in ("current_link_speed", "current_link_width", "max_link_speed", "numa_node"):
        found[name] = text_of(device / "device" / name)
    driver = device / "device" / "driver"
    found["driver"] = driver.resolve().name if driver.exists() else None
    for port in sorted((device / "ports").glob("*")):
        found[f"port {port.name}"] = {name: text_of(port / name)
                                      for name in ("state", "phys_state", "rate", "link_layer")}
    return found


class Half:
    """Runs only programs of the build, and its link's commands."""

    def __init__(self, build, options):
        self.build = build
        self.options = options
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="nha-report-"))
        self.running = {}
        self.is_down = None
        self.watchdog = None

    def close(self):
        for name in list(self.running):
            self.end(name)
        self.bring_up()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- facts

    def facts(self):
        modules = ("mlx5_core", "mlx5_ib", "ib_core", "ib_uverbs", "nvidia", "nvidia_peermem", "irdma",
                   "bnxt_re")
        limits = text_of("/proc/self/limits") or ""
        lines = (text_of("/etc/os-release") or "").splitlines()
        return {
            "kernel": said_by("uname", "-srvm"),
            "system": [line.partition("=")[2].strip('"') for line in lines
                       if line.startswith("PRETTY_NAME=")],
            "kernel command line": text_of("/proc/cmdline"),
            "processor": [line.partition(":")[2].strip()
                          for line in (text_of("/proc/cpuinfo") or "").splitlines()
                          if line.startswith("model name")][:1],
            "locked memory": [line for line in limits.splitlines() if "locked memory" in line],
            "modules": {name: text_of(f"/sys/module/{name}/version") or "loaded"
                        for name in modules if pathlib.Path(f"/sys/module/{name}").exists()},
            "rdma-core": said_by("dpkg-query", "-W", "libibverbs1", "ibverbs-providers")
            or said_by("rpm", "-q", "libibverbs", "rdma-core"),
            "ofed": said_by("ofed_info", "-s"),
            "gpus": said_by("nvidia-smi", "--query-gpu=name,driver_version,pci.bus_id",
                            "--format=csv,noheader"),
            "nccl-ha": said_by(str(self.program("nccl-ha")), "--version"),
            "devices": self.probed(),
            "sysfs": {device.name: sysfs_of(device) for device in sorted(INFINIBAND.glob("*"))},
            "info": self.json_said(["info", "--json"], 60),
            "check": self.json_said(["check", "--json"], 120),
        }

    def probed(self):
        said = said_by(str(self.program("nha-nic-probe")), "list", limit=60)
        return json.loads(said)["devices"] if said else None

    def json_said(self, arguments, limit):
        """Of nccl-ha, whose status says whether anything is wrong."""
        done = subprocess.run([str(self.program("nccl-ha")), *arguments], capture_output=True, text=True,
                              timeout=limit, check=False, stdin=subprocess.DEVNULL)
        try:
            return json.loads(done.stdout)
        except ValueError:
            return {"status": done.returncode, "said": (done.stdout + done.stderr)[-2000:]}

    # --- programs

    def program(self, name):
        return self.build / "bin" / name

    def start(self, name, program, arguments, environment):
        if program not in ("nccl-ha", "nha-peers", "nha-nic-probe"):
            raise ValueError(f"{program} is none of the programs")
        arguments = [str(self.build / "lib" / word) if word == "libnccl-net-ha.so" else
                     str(self.folder / word) if word == "perf.json" else word for word in arguments]
        self.end(name)
        (self.folder / "perf.json").unlink(missing_ok=True)
        output = [self.folder / f"{name}.{stream}" for stream in ("out", "err")]
        with open(output[0], "w") as out, open(output[1], "w") as err:
            process = subprocess.Popen([str(self.program(program)), *arguments], stdout=out, stderr=err,
                                       stdin=subprocess.DEVNULL, env={**os.environ, **environment},
                                       cwd=self.folder, start_new_session=True)
        self.running[name] = (process, output, [program, *arguments])

    def await_line(self, name, line, limit):
        process, output, _ = self.running[name]
        until = time.monotonic() + limit
        while time.monotonic() < until and process.poll() is None:
            if line in (text_of(output[0]) or "").splitlines():
                return True
            time.sleep(0.05)
        return line in (text_of(output[0]) or "").splitlines()

    def finish(self, name, limit):
        process, output, command = self.running[name]
        try:
            status = process.wait(limit)
        except subprocess.TimeoutExpired:
            status = f"no end within {limit:.0f} s"
        self.end(name)
        made = text_of(self.folder / "perf.json")
        return {"command": shlex.join(command), "status": status, "out": text_of(output[0]) or "",
                "err": text_of(output[1]) or "", "json": json.loads(made) if made else None}

    def end(self, name):
        process, _, _ = self.running.pop(name, (None, None, None))
        if process is not None:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()

    # --- the link

    def netdev_of(self, device):
        found = sorted((INFINIBAND / device / "device" / "net").glob("*"))
        return found[0].name if found else None

    def link_command(self, device, up):
        own = self.options.up_there if up else self.options.down_there
        if own:
            return shlex.split(own)
        command = ["ip", "link", "set", self.netdev_of(device) or "", "up" if up else "down"]
        return command if os.geteuid() == 0 else ["sudo", "-n", *command]

    def why_no_link(self, device):
        """Empty: its link can be taken down."""
        if not self.options.link_down:
            return "not asked for (--link-down)"
        if self.options.down_there:
            return ""
        netdev = self.netdev_of(device)
        if netdev is None:
            return f"{device} has no network interface here: name commands (--down-there)"
        if not netdev.startswith("ib") and os.geteuid() != 0 and said_by("sudo", "-n", "true") is None:
            return "this needs root on that host, or sudo without a password"
        if netdev.startswith("ib"):
            return ("InfiniBand: `ip link` leaves the port up; name commands, as --down-there 'mlxlink -d "
                    "mlx5_0 --port_state dn'")
        caller = os.environ.get("SSH_CONNECTION", "").split()
        if caller and f" dev {netdev} " in (said_by("ip", "-o", "route", "get", caller[0]) or "") + " ":
            return f"the way to this script is over {netdev}: it would cut itself off"
        return ""

    def set_link(self, device, up):
        """Milliseconds that the command took."""
        if not up:
            reason = self.why_no_link(device)
            if reason:
                raise ValueError(reason)
            self.is_down = device
            self.watchdog = threading.Timer(LINK_DOWN_MAX_S, self.bring_up)
            self.watchdog.daemon = True
            self.watchdog.start()
        elif self.is_down is None:
            return 0
        began = time.monotonic()
        subprocess.run(self.link_command(device, up), check=True, timeout=30, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)
        if up:
            self.is_down = None
            self.watchdog.cancel()
        return round((time.monotonic() - began) * 1000, 1)

    def bring_up(self):
        if self.is_down is not None:
            self.set_link(self.is_down, True)


CALLS = ("facts", "start", "await_line", "finish", "why_no_link", "set_link")


def answer(half, lines_in, lines_out):
    """Until the caller is gone; the link is up then and nothing runs."""
    def end(*_):
        raise SystemExit(1)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGHUP, end)
    try:
        for line in lines_in:
            name, *arguments = json.loads(line)
            try:
                if name not in CALLS:
                    raise ValueError(f"no such call: {name}")
                said = {"value": getattr(half, name)(*arguments)}
            except (OSError, ValueError, KeyError, subprocess.SubprocessError) as error:
                said = {"error": f"{name}: {type(error).__name__}: {error}"}
            lines_out.write((json.dumps(said) + "\n").encode())
            lines_out.flush()
    finally:
        half.close()
    return 0
