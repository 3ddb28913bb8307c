# Runs parts one after the other, each with a time-out of its own, and reports them as a table and as JSON.
import json
import os
import pathlib
import signal
import subprocess
import time


class Failed(Exception):
    """The part ran and found something wrong. It may have figures nevertheless."""

    def __init__(self, reason, figures=None):
        super().__init__(reason)
        self.figures = figures or {}


class Skipped(Exception):
    """The part cannot run on this machine."""


class Late(Exception):
    """A command of the part ran past the part's time-out."""


class Part:
    # `run(session)` returns the part's figures, or raises one of the above. `seconds`: its time-out.
    def __init__(self, name, seconds, run):
        self.name, self.seconds, self.run = name, seconds, run


# Ends every process of the session that `leader` began, also those that made process groups of their own.
def end_session(leader):
    for _ in range(100):
        members = []
        for entry in os.listdir("/proc"):
            try:
                fields = pathlib.Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()
            except (OSError, UnicodeDecodeError):
                continue
            if entry.isdigit() and int(fields[3]) == leader and fields[0] != "Z":
                members.append(int(entry))
        for process in members:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                pass
        if not members:
            return
        time.sleep(0.02)


class Session:
    # `output`: folder of the log and the reports. `scratch`: of files that are removed at the end.
    def __init__(self, output, scratch):
        self.output, self.scratch = output, scratch
        self.log = open(output / "gpu-check.log", "w")
        self.deadline = None  # of the running part
        self.results = []

    # Runs a command, with its output in the log, and returns the output. Raises Late at the part's time-out, Failed for another exit
    # status than those of `allowed`.
    def command(self, arguments, environment=None, folder=None, allowed=(0,)):
        arguments = [str(argument) for argument in arguments]
        self.log.write(f"$ {' '.join(arguments)}\n")
        self.log.flush()
        begin = self.log.tell()
        try:
            process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, cwd=folder,
                                       env={**os.environ, **(environment or {})}, start_new_session=True)
        except OSError as error:
            raise Failed(f"{arguments[0]} does not start: {error.strerror}") from error
        try:
            process.wait(max(0.0, self.deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            raise Late() from None
        finally:
            # Output of a command may come from processes that outlive it.
            end_session(process.pid)
            process.wait()
            self.log.seek(0, os.SEEK_END)
        with open(self.log.name, errors="replace") as log:
            log.seek(begin)
            text = log.read()
        if process.returncode not in allowed:
            lines = [line for line in text.strip().split("\n") if line.strip()]
            raise Failed(f"{pathlib.Path(arguments[0]).name} ended with {process.returncode}: {lines[-1] if lines else 'no output'}")
        return text

    # Runs a part within its time-out and `left` seconds, and adds its result.
    def run(self, part, left):
        begin = time.monotonic()
        seconds = min(part.seconds, left)
        self.deadline = begin + seconds
        self.log.write(f"\n==== {part.name}\n")
        status, reason, figures = "passed", "", {}
        try:
            if left <= 0:
                raise Skipped("no time is left")
            figures = part.run(self) or {}
        except Skipped as error:
            status, reason = "skipped", str(error)
        except Failed as error:
            status, reason, figures = "failed", str(error), error.figures
        except Late:
            status, reason = "late", f"ran past its {seconds:.0f} s"
        except Exception as error:  # an output that the part does not understand
            status, reason = "failed", f"{type(error).__name__}: {error}"
        self.log.write(f"---- {status}{': ' if reason else ''}{reason}\n")
        self.log.flush()
        self.results.append({"name": part.name, "status": status, "seconds": round(time.monotonic() - begin, 1), "reason": reason,
                             "figures": figures})
        return status


def text_of(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


# Returns the lines of the table: a row for each part, and a row for each of its figures.
def table(results):
    rows = [("part", "result", "s", "")]
    for result in results:
        rows.append((result["name"], result["status"], f"{result['seconds']:.1f}", result["reason"]))
        rows += [("  " + name, text_of(value), "", "") for name, value in result["figures"].items()]
    width = max(len(row[0]) for row in rows)
    return [f"{name:<{width}}  {value:<8}  {seconds:>5}  {reason}".rstrip() for name, value, seconds, reason in rows]


# Writes both reports; after each part, so that a check that is killed leaves those of the parts before it.
def report(session, device, begun):
    data = {"device": device, "begun": begun, "parts": session.results}
    (session.output / "gpu-check.json").write_text(json.dumps(data, indent=1) + "\n")
    (session.output / "gpu-check.txt").write_text("\n".join(table(session.results)) + "\n")
