"""The plugin with a sanitizer, in ranks of NCCL that have none: what they need, and what counts.

NCCL, the fake CUDA and ranks are not instrumented.  The sanitizer sees what the plugin's code does,
and what any code does with memory, threads and locks through the C library.  From asan every report
counts, but for the leaks that sanitizers/asan.supp names; from tsan what names code of the plugin,
since it sees none of the atomics by which NCCL's threads agree with each other.
"""
import pathlib
import re
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
SUPPRESSIONS = HERE / "sanitizers"
NAMES = ("asan", "tsan")

# The plugin's own frames: by source file, by library, and after NCCL has unloaded it by neither.
OURS = re.compile(r"libnccl-net-ha|unknown module|/(?:plugin|actors|ha|runtime)/[\w/]+\.(?:cpp|h):")
FRAME = re.compile(r"^ +#\d+ (?:0x[0-9a-f]+ )?(.*)$", re.MULTILINE)
LEAK = re.compile(r"^(?:Direct|Indirect) leak of .*?$\n(?:^ +#.*$\n)+", re.MULTILINE)
RUNTIME_ERROR = re.compile(r"^\S+: runtime error: .*$", re.MULTILINE)
ADDRESS = re.compile(r"^==\d+==ERROR: AddressSanitizer: .*?(?:^SUMMARY: .*?$|\Z)",
                     re.MULTILINE | re.DOTALL)
THREAD = re.compile(r"^WARNING: ThreadSanitizer: .*?(?:^SUMMARY: .*?$|\Z)",
                    re.MULTILINE | re.DOTALL)
# NCCL's service thread makes connections and registers memory, its progress thread sends over them.
# It hands them over by a lock in memory that it maps twice, which tsan takes for two locks.
MADE = re.compile(r"plugin::net_(?:listen|connect|accept|reg_mr|reg_mr_dmabuf)\(")
USED = re.compile(r"plugin::net_(?:isend|irecv|iflush|test)\(")
BROKEN = re.compile(r"^.*(?:AddressSanitizer CHECK failed|LeakSanitizer has encountered|"
                    r"Sanitizer runtime does not come first|(?:FATAL|ERROR): ThreadSanitizer).*$", re.MULTILINE)


def runtime(name):
    """The library that must be loaded first."""
    library = f"lib{name}.so"
    found = subprocess.run(["gcc", f"-print-file-name={library}"], capture_output=True, text=True,
                           check=True).stdout.strip()
    return str(pathlib.Path(found).resolve(strict=True))


def environment(name, plugin):
    """What a rank needs besides.  A report is judged here, so none changes how a rank ends."""
    if name == "asan":
        return {"NHA_PRELOAD": runtime(name),
                "LSAN_OPTIONS": f"suppressions={SUPPRESSIONS / 'asan.supp'}",
                "ASAN_OPTIONS": "detect_leaks=1:fast_unwind_on_malloc=0:malloc_context_size=12:"
                                "exitcode=0",
                "UBSAN_OPTIONS": "print_stacktrace=1"}
    # The plugin comes first as well: an instrumented library starts the sanitizer, and threads from
    # before that are unknown to it.  So it is never unloaded.
    return {"NHA_PRELOAD": f"{runtime(name)}:{plugin}",
            "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:second_deadlock_stack=1:"
                            "history_size=7:halt_on_error=0:exitcode=0"}


def found_in(text):
    """What counts in what a rank said, each report in one line."""
    reports = BROKEN.findall(text) + RUNTIME_ERROR.findall(text)
    reports += [summary(block) for block in ADDRESS.findall(text) + LEAK.findall(text)]
    reports += [summary(block) for block in THREAD.findall(text)
                if OURS.search(block) and not handed_over(block)]
    return reports


def handed_over(block):
    """A race between two calls of NCCL of which the one made what the other one is given."""
    parts = re.split(r"^  (?=\w)", block, flags=re.MULTILINE)
    if "data race" not in parts[0] or len(parts) < 4:
        return False
    one, other, where = parts[1:4]
    if "failed to restore the stack" in other:
        other = where  # long ago; but it is known who allocated it
    return any(MADE.search(made) and USED.search(used)
               for made, used in ((one, other), (other, one)))


def summary(block):
    """Its first line, and the plugin's innermost frame in it."""
    ours = next((frame for frame in FRAME.findall(block) if OURS.search(frame)), "")
    return f"{block.splitlines()[0]} {ours}".strip()
