"""Copied into a test's tree as src/sitecustomize.py, which each Python process that a rule starts imports first.

It puts a stand-in where the measuring process imports its training loop, and one where the doctor is, so that a
study takes seconds and no torch. All else is the tree's own: Snakefile, rules, supervisor, child, collect, report.
Files in the tree's root tell it what to do; no source is changed, so that fingerprints are the real ones.
"""

import json
import math
import os
import random
import signal
import statistics
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

NEED_A_GPU = ("fp16", "tf32")
STEPS = 5
# of the default optimizer: on a GPU a run counts only with it
KERNEL = "multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4, (at::native::ADAM_MODE)0, false>>()"


def environment():
    """As a test has written it into the tree's root, or none of this world."""
    if Path("environment.json").exists():
        return json.loads(Path("environment.json").read_text())
    return {"torch": os.environ.get("STAND_IN_TORCH", "1.0"), "cpu": "a stand-in"}


def begin(emit):
    emit("environment", environment=environment())
    hang = Path("hang")
    if hang.exists():
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
        emit("phase", phase="hanging")
        if hang.is_fifo():  # to a test that cannot see this output
            hang.write_text(f"{os.getpid()}\n")
        signal.sigwait([signal.SIGUSR1])  # "go on"


def measure(run, emit):
    print(f"sys.path: {json.dumps(sys.path)}", f"planted: {find_spec('planted') is not None}", sep="\n", flush=True)
    begin(emit)
    if run["precision"] in NEED_A_GPU:
        return {"status": "unsupported", "reason": f"{run['precision']} needs an NVIDIA GPU; this run is on the CPU"}
    noise = random.Random(f"{run['seed']}/{run['precision']}")
    middle = (10.0 if run["precision"] == "fp32" else 8.0) * noise.lognormvariate(0, 0.01)
    times = [middle * noise.lognormvariate(0, 0.01) for _ in range(STEPS)]
    step = {"phase": "window", "loss": 1.0, "skipped": 0}
    return {
        "status": "ok",
        "reason": "",
        "summary": {
            "sample_unit": "tokens",
            "samples_per_step": run["batch"],
            "steps": STEPS,
            "skipped_steps": 0,
            "step_ms_median": statistics.median(times),
            "step_ms_mean": statistics.fmean(times),
            "step_ms_p05": min(times),
            "step_ms_p95": max(times),
            "wall_ms_mean": statistics.fmean(times),
            "first_step_s": 0.5,
            "model_tflop_per_step": 0.001,
            "compile_s": None if run["compile"] == "none" else 0.4,
        },
        "steps": [{"step": number, "step_ms": ms, "wall_ms": ms, **step} for number, ms in enumerate(times)],
        "kernels": [] if run["device"] == "cpu" else [{"kernel": KERNEL, "calls_per_step": 1, "ms_per_step": 1.0}],
        "applied": {"gemm": "fp32"},
    }


def train(run, emit):
    """Seeds differ, and a recipe has the curve of its seed."""
    begin(emit)
    noise = random.Random(run["seed"])
    level = 1 + noise.gauss(0, 0.02)
    return {
        "status": "ok",
        "reason": "",
        "summary": {} if run["compile"] == "none" else {"compile_s": 0.4},
        "curve": [
            {
                "step": step,
                "loss": level * (1 + 3 * math.exp(-step / 30)) * (1 + noise.gauss(0, 0.03)),
                "gradient_norm": level * (1 + noise.gauss(0, 0.05)),
                "skipped": 0,
                "data": f"{step:016x}",
            }
            for step in range(run["steps"])
        ],
        "applied": {"parameters_trained": 1000, "parameters_optimized": 1000},
    }


def measure_operator(run, emit):
    emit("environment", environment={"torch": os.environ.get("STAND_IN_TORCH", "1.0"), "cpu": "a stand-in"})
    noise = random.Random(f"{run['seed']}/{run['gemm']}")
    row = {"status": "ok", "reason": "", "sample_unit": "calls", "samples_per_step": 1, "steps": STEPS}
    return {
        "status": "ok",
        "reason": "",
        "summaries": [
            {
                **row,
                "case": f"{n}x{n}x{n}",
                "step_ms_median": noise.lognormvariate(0, 0.01),
                "model_tflop_per_step": 1.0,
            }
            for n in (64, 128)
        ],
        "applied": {"gemm": "bf16"},
    }


def stand_in(name, **contents):
    module = ModuleType(name)
    vars(module).update(contents)
    sys.modules[name] = module


# where a test asks for it parity runs are left as they are: that a recipe trains well no stand-in could show
trains = Path("trains").exists() and "halfstep.measure.parity" in "".join(sys.orig_argv)
if "halfstep.measure.child" in sys.orig_argv and trains:
    # one thread each: of tiny models, beside other work, two would wait for each other most of the time
    os.sched_getaffinity = lambda process: {0}
elif "halfstep.measure.child" in sys.orig_argv:
    stand_in("halfstep.measure.training", measure=measure)
    stand_in("halfstep.measure.operators", measure=measure_operator)
    stand_in("halfstep.measure.parity", measure=train)
elif Path("gpu").exists() and "run" in sys.orig_argv:
    from halfstep.system import gpu  # before the supervisor takes the function from there

    found = gpu.Gpu(0, Path("gpu").read_text(), "NVIDIA H200", "h200", 139.8, (9, 0), "580.0", "13.0", 700.0, 700.0)
    gpu.visible_gpu = lambda: found
elif "doctor" in sys.orig_argv:
    stand_in(
        "halfstep.system.doctor",
        examine=lambda: {"machine": {}, "capabilities": []},
        print_table=lambda result: None,
    )
