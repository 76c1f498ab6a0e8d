"""Copied into a test's tree as src/sitecustomize.py, beside the stand-in: what goes wrong in a run, by its variant."""

import ctypes
import datetime
import os
import resource
import signal
import statistics
import subprocess
import sys
from pathlib import Path

from stand_in import measure, stand_in

NO_FILES = (resource.RLIMIT_FSIZE, (0, 0))
real = datetime.datetime


class SetBack(real):
    """A clock that is set back by an hour whenever it is read."""

    hours = 0

    @classmethod
    def now(cls, tz=None):
        cls.hours += 1
        return real.now(tz) - datetime.timedelta(hours=cls.hours)


def hang(result):
    subprocess.Popen([sys.executable, "-S", "-c", "import signal; signal.pause()"])
    print("started a helper", flush=True)
    signal.pause()


def exhausted(result):
    import torch

    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB.\nGPU 0 has 79 GiB")


def lose_gpu(result):
    raise RuntimeError("CUDA error: unspecified launch failure\nCompile with `TORCH_USE_CUDA_DSA` | or not")


def refuses(result):
    from halfstep.errors import Unsupported

    raise Unsupported("this recipe needs what no machine has")


def exits(result):
    print("leaving early", flush=True)
    os._exit(3)


def endless_output(result):
    print("the first line", flush=True)
    for _ in range(200):
        os.write(1, b"x" * 99_999 + b"\n")
    print("the last line", file=sys.stderr, flush=True)


def no_descriptors(result):
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
    os.open("/", os.O_RDONLY)


def no_number(result):
    result["summary"]["step_ms_median"] = float("nan")


def drift(result):
    times = [10.0] * 4 + [10.5] * 4 + [11.0] * 4
    step = {"phase": "window", "skipped": 0}
    result["steps"] = [
        {"step": n, "step_ms": ms, "wall_ms": ms, "loss": 7 - n / 100, **step} for n, ms in enumerate(times)
    ]
    result["summary"] |= {"steps": len(times), "step_ms_median": statistics.median(times)}
    result["summary"]["step_ms_mean"] = statistics.fmean(times)


def stand_still(result):
    drift(result)
    for row in result["steps"]:
        row["loss"] = 7 - row["step"] % 4 / 100


IN_THE_WINDOW = {
    "killed": lambda result: os.kill(os.getpid(), signal.SIGKILL),
    "crash": lambda result: ctypes.string_at(0),
    "hang": hang,
    "exhausted": exhausted,
    "gpu-lost": lose_gpu,
    "refuses": refuses,
    "exits": exits,
    "endless-output": endless_output,
    "full-tmp": lambda result: resource.setrlimit(*NO_FILES),
    "no-descriptors": no_descriptors,
    "no-number": no_number,
    "drift": drift,
    "stands-still": stand_still,
}


def go_wrong(run, emit):
    variant = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"]).parent.name
    emit("phase", phase="window")
    emit("window_start")
    result = measure(run, emit)
    IN_THE_WINDOW.get(variant, lambda result: None)(result)
    emit("window_end")
    return result


if "halfstep.measure.child" in sys.orig_argv:
    stand_in("halfstep.measure.training", measure=go_wrong)
elif "run" in sys.orig_argv:
    folder = next((word for word in sys.orig_argv if "/runs/faults/" in word), "")
    if "/full-disk/" in folder:
        resource.setrlimit(*NO_FILES)
    elif "/clock/" in folder:
        datetime.datetime = SetBack
    elif "/few-descriptors/" in folder:
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, 8))
