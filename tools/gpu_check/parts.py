# The parts of the check, in their order.
import json
import re
import shutil
import statistics

from gpt2 import gpt2
from jobs import metrics, train, write_job
from machine import lines_of
from runner import Failed, Part, Skipped


def all_parts(machine):
    def part(name, seconds, run, *options):
        return Part(name, seconds, lambda session: run(machine, session, *options))

    return [
        part("versions", 60, versions),
        part("ceilings", 60, ceilings),
        part("losses", 150, losses),
        part("memory", 60, memory),
        part("resume", 60, resume),
        part("gpt2", 220, gpt2),
        part("kernels", 120, kernels),
        part("sanitizer", 120, sanitizer),
        part("nccl", 60, nccl),
        part("tests", 150, tests, False),
        part("tests-deterministic", 150, tests, True),
    ]


def need_gpu(machine):
    if machine.device == "cpu":
        raise Skipped("needs a GPU")


# ---- the machine

def versions(machine, session):
    figures = {}
    for name, command in (("driver", ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]),
                          ("nvcc", ["nvcc", "--version"]),
                          ("compute-sanitizer", ["compute-sanitizer", "--version"])):
        lines = lines_of(*command)
        figures[name] = lines[-1] if lines else "absent"
    figures["torch of python3"] = machine.python_torch() or "absent"
    report = session.command([machine.build / "perigee", "doctor"], machine.environment())
    for line in report.split("\n"):
        if found := re.match(r"(LibTorch|GPUs|\s{12})\s*((\w+): )?(\S.*)", line):
            figures.setdefault(found.group(1).strip() or found.group(3) or "", found.group(4))
    if "LibTorch" not in figures:
        raise Failed("doctor does not report LibTorch", figures)
    if machine.device == "cuda" and ("GPUs        none" in report or "does not work" in report):
        raise Failed(next(line.strip() for line in report.split("\n") if "none" in line or "does not work" in line), figures)
    return figures


def ceilings(machine, session):
    text = session.command([machine.build / "bench_ceilings", "--device", machine.device], machine.environment())
    machine.ceilings = json.loads(text.strip().split("\n")[-1])
    return machine.ceilings


# ---- training

# Largest difference of the losses of small models on the device from those of one rank on the CPU.
def losses(machine, session):
    ranks = {1, max(1, len(machine.gpus))} if machine.device == "cuda" else {2}
    figures, far = {}, []
    kinds = ("gpt", "llama", "moe", "resnet") if machine.device == "cuda" else ("gpt",)
    for kind in kinds:
        # A loss in bfloat16 has steps of 0.03.
        for dtype, bound in (("float32", 1e-3), ("bfloat16", 7e-2)):
            if kind == "resnet" and dtype == "bfloat16":
                continue
            job = write_job(session, f"{kind}-{dtype}", kind=kind, dtype=dtype, steps=8)
            expected = [step["loss"] for step in metrics(train(machine, session, job, "cpu", 1))]
            for count in sorted(ranks):
                try:
                    got = [step["loss"] for step in metrics(train(machine, session, job, machine.device, count))]
                except Failed as error:
                    far.append(f"{kind} in {dtype} on {count} ranks: {error}")
                    continue
                most = max(abs(a - b) for a, b in zip(got, expected, strict=True))
                figures[f"{kind} {dtype}, ranks {count}"] = most
                if not most <= bound:
                    far.append(f"{kind} in {dtype} on {count} ranks differs by {most:.2g}")
    if far:
        raise Failed("; ".join(far), figures)
    return figures


# On the CPU the prediction is exact. On a GPU LibTorch rounds small allocations up.
def memory(machine, session):
    job = write_job(session, "memory", kind="gpt", dtype="float32", steps=3, width=256, layers=4)
    summary = metrics(train(machine, session, job, machine.device, 1), summary=True)
    counted, predicted = summary["peak_bytes"][0], summary["predicted_peak_bytes"][0]
    figures = {"counted_bytes": counted, "predicted_bytes": predicted, "predicted / counted": predicted / counted}
    if counted != predicted if machine.device == "cpu" else predicted < 0.999 * counted:
        raise Failed("the predicted peak must be the counted one" if machine.device == "cpu" else
                     "the predicted peak must be at least 0.999 of the counted one", figures)
    return figures


# Six steps, and three steps with three more after a resume: the same losses and weights, bit for bit.
def resume(machine, session):
    same = {"kind": "gpt", "dtype": "float32", "deterministic": True, "checkpoint_every": 3}
    whole = train(machine, session, write_job(session, "whole", steps=6, **same), machine.device, 1)
    job = write_job(session, "parts", steps=6, **same)
    train(machine, session, job, machine.device, 1, "--set", "train.steps=3")
    parts = train(machine, session, job, machine.device, 1, "--resume")
    expected, got = metrics(whole), metrics(parts)
    for a, b in zip(expected, got, strict=True):
        for key in ("loss", "grad_norm"):
            if a[key] != b[key]:
                raise Failed(f"step {a['step']} after a resume has the {key} {b[key]}, but without one {a[key]}")
    weights = [(run / "checkpoints/step-6/rank-0.safetensors").read_bytes() for run in (whole, parts)]
    if weights[0] != weights[1]:
        raise Failed("the weights after a resume are not those without one")
    return {"steps": len(got), "last loss": got[-1]["loss"]}


# ---- tests of the tree

# Runs cases of a test executable; returns their number.
def cases(machine, session, executable, *filters, before=(), **environment):
    text = session.command([*before, machine.build / executable, *filters], {**machine.environment(), **environment}, machine.root,
                           allowed=range(256))
    if "skipped: no GPU" in text:
        raise Skipped("no GPU is found")
    if found := re.search(r"All tests passed \(.* in (\d+) test cases?\)", text):
        return int(found.group(1))
    names = re.findall(r"\n-{20,}\n(\S.*)\n-{20,}\n", text)
    found = re.search(r"test cases: .*", text)
    raise Failed(f"{executable}: {found.group(0) if found else 'ended early'}" + (f"; first: {names[0]}" if names else ""))


def kernels(machine, session):
    need_gpu(machine)
    return {"cases": cases(machine, session, "tests_cuda")}


def sanitizer(machine, session):
    need_gpu(machine)
    if not shutil.which("compute-sanitizer"):
        raise Skipped("compute-sanitizer is not installed")
    figures = {}
    for tool in ("memcheck", "racecheck"):
        before = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
        figures[tool] = cases(machine, session, "tests_cuda", "kernels*", before=before)
    return figures


# NCCL with one rank is tried by `doctor`.
def nccl(machine, session):
    need_gpu(machine)
    if len(machine.gpus) < 2:
        raise Skipped("one GPU: doctor has tried NCCL with one rank")
    job = write_job(session, "nccl", kind="gpt", dtype="float32", steps=8, width=256)
    steps = metrics(train(machine, session, job, "cuda", len(machine.gpus)))
    return {"ranks": len(machine.gpus), "ms a step": 1e3 * statistics.median(step["step_s"] for step in steps[2:])}


# The cases that run on any device.
def tests(machine, session, deterministic):
    if machine.device == "cpu" and deterministic:
        raise Skipped("a CPU is deterministic always")
    device = {} if machine.device == "cpu" else {"PERIGEE_TEST_DEVICE": "cuda deterministic" if deterministic else "cuda"}
    figures, failures = {}, []
    for executable in ("tests_exec", "tests_train", "tests_parity"):
        try:
            figures[executable] = cases(machine, session, executable, "[device]", **device)
        except Failed as error:
            failures.append(str(error))
    if failures:
        raise Failed("; ".join(failures), figures)
    return figures
