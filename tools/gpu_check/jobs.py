# Jobs of the check, and the metrics of their runs.
import json
import shutil

MODELS = {
    "gpt": {"layers": 2, "width": 128, "heads": 4},
    "llama": {"layers": 2, "width": 128, "heads": 4},
    "moe": {"layers": 2, "width": 128, "heads": 4, "experts": 4},
    "resnet": {"width": 16},
}


def toml(value):
    return json.dumps(value)  # strings, numbers, booleans and lists are written alike


# Writes a job on synthetic data, and returns its file. `keys`: further keys of [model].
def write_job(session, name, kind, dtype, steps, deterministic=False, checkpoint_every=0, **keys):
    tables = {
        "model": {"kind": kind, "dtype": dtype, **MODELS[kind], **keys},
        "data": {"synthetic": True, "sequence": 64},
        "batch": {"global": 8},
        "train": {"steps": steps, "validate_every": 0, "checkpoint_every": checkpoint_every},
        "lr_schedule": {"steps": steps, "warmup": 2},
        "cluster": {"deterministic": deterministic},
    }
    return write_tables(session, name, tables)


# `tables`: keys by table.
def write_tables(session, name, tables, strategy="ddp"):
    text = f"strategy = {toml(strategy)}\n"
    for table, rows in tables.items():
        text += f"[{table}]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in rows.items())
    job = session.scratch / f"{name}.toml"
    job.write_text(text)
    return job


# Trains a job, and returns the folder of the run.
def train(machine, session, job, device, ranks, *options):
    run = job.parent / f"{job.stem}-{device}-{ranks}"
    if "--resume" not in options:
        shutil.rmtree(run, ignore_errors=True)
    session.command([machine.build / "perigee", "train", job, "--nproc", ranks, "--set", f"cluster.device={device}",
                     "--set", f"train.output={run}", *options], machine.environment())
    return run


# Returns the steps of a run, or its summary.
def metrics(run, summary=False):
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    if summary:
        return lines[-1]["summary"]
    return [line for line in lines if "step" in line]
