"""Stands between the agent and one container's process.

It is a program of its own so that the agent may end and come back: the shim keeps the pipes, writes the log, and notes
the exit code. It imports the standard library alone and is started with `python -I -S`, so that it is up in
milliseconds.

    python -I -S shim.py <attempt folder>

The folder holds `spec.json` (`argv`, `env`, `cwd`, `log`, `max_log_bytes`). The shim adds `state.json` when the program
runs, and `exit.json` when it has ended and none of its descendants is left: as in a container, all of them end with the
first.
"""

import ctypes
import json
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
LINE_LIMIT = 16384
DRAIN_SECONDS = 1.0
SWEEP_SECONDS = 5.0


def timestamp(nanoseconds: int) -> str:
    """RFC 3339 with nanoseconds, as container logs have it."""
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:09d}Z"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write so that a reader sees the whole object or none."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(value))
    temporary.replace(path)


def start_ticks(pid: int) -> int:
    """Start time of a process in clock ticks since boot; with the pid it names one process for good."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


class LogWriter:
    """Writes lines in the container log format: `<time> <stream> <F|P> <text>`; keeps one older file when it grows."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self.path = path
        self.max_bytes = max_bytes
        self.pending: dict[str, bytes] = {"stdout": b"", "stderr": b""}
        self.fd = self._open()
        self.size = os.fstat(self.fd).st_size

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def feed(self, stream: str, data: bytes) -> None:
        """Take bytes as they come; whole lines go out at once, an overlong one in pieces marked P."""
        data = self.pending[stream] + data
        *lines, rest = data.split(b"\n")
        out = []
        stamp = timestamp(time.time_ns()).encode()
        for line in lines:
            while len(line) > LINE_LIMIT:
                out.append(b"%s %s P %s\n" % (stamp, stream.encode(), line[:LINE_LIMIT]))
                line = line[LINE_LIMIT:]
            out.append(b"%s %s F %s\n" % (stamp, stream.encode(), line))
        while len(rest) > LINE_LIMIT:
            out.append(b"%s %s P %s\n" % (stamp, stream.encode(), rest[:LINE_LIMIT]))
            rest = rest[LINE_LIMIT:]
        self.pending[stream] = rest
        self._write(b"".join(out))

    def close_stream(self, stream: str) -> None:
        """Write the last line when it had no line end."""
        rest, self.pending[stream] = self.pending[stream], b""
        if rest:
            self._write(b"%s %s F %s\n" % (timestamp(time.time_ns()).encode(), stream.encode(), rest))

    def _write(self, data: bytes) -> None:
        if not data:
            return
        if self.size + len(data) > self.max_bytes and self.size > 0:
            os.rename(self.path, self.path + ".1")
            os.close(self.fd)
            self.fd = self._open()
            self.size = 0
        try:
            os.write(self.fd, data)
            self.size += len(data)
        except OSError:
            # A full disk costs log lines, never the program: a blocked pipe would stop it.
            return


def launch(spec: dict[str, Any], outputs: tuple[int, int], libc: Any) -> tuple[int, str]:
    """Fork and exec the program in a session of its own; gives its pid and, when exec failed, the reason."""
    error_read, error_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            for number in (
                signal.SIGTERM,
                signal.SIGINT,
                signal.SIGHUP,
                signal.SIGCHLD,
                signal.SIGPIPE,
                signal.SIGXFSZ,
            ):
                signal.signal(number, signal.SIG_DFL)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(outputs[0], 1)
            os.dup2(outputs[1], 2)
            os.chdir(spec["cwd"])
            os.umask(0o022)
            os.execve(spec["argv"][0], spec["argv"], spec["env"])
        except OSError as error:
            os.write(error_write, str(error).encode())
        finally:
            os._exit(128)
    os.close(error_write)
    with os.fdopen(error_read, "rb") as pipe:
        return pid, pipe.read().decode()


def children_of(parent: int) -> list[int]:
    """Pids whose parent is the given process."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    stat = file.read()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == parent:
                found.append(int(entry))
    return found


def sweep() -> None:
    """End every descendant that is left; orphans come to us because we are their subreaper."""
    deadline = time.monotonic() + SWEEP_SECONDS
    while time.monotonic() < deadline:
        for child in children_of(os.getpid()):
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.005)


def pump(pid: int, pipes: dict[int, str], log: LogWriter, wakeup: int) -> None:
    """Copy output into the log until the program has ended; reaps orphans on the way, the program itself stays a
    zombie.
    """
    open_pipes = dict(pipes)
    while True:
        ready, _, _ = select.select([*open_pipes, wakeup], [], [])
        for fd in ready:
            if fd == wakeup:
                os.read(wakeup, 4096)
            else:
                data = os.read(fd, 65536)
                if data:
                    log.feed(open_pipes[fd], data)
                else:
                    log.close_stream(open_pipes.pop(fd))
        while True:
            status = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if status is None:
                break
            if status.si_pid == pid:
                return
            os.waitpid(status.si_pid, os.WNOHANG)


def drain(pipes: dict[int, str], log: LogWriter) -> None:
    """Take what the pipes still hold."""
    open_pipes = dict(pipes)
    deadline = time.monotonic() + DRAIN_SECONDS
    while open_pipes and time.monotonic() < deadline:
        ready, _, _ = select.select(list(open_pipes), [], [], 0.05)
        for fd in ready:
            data = os.read(fd, 65536)
            if data:
                log.feed(open_pipes[fd], data)
            else:
                log.close_stream(open_pipes.pop(fd))
    for stream in open_pipes.values():
        log.close_stream(stream)


def main() -> None:
    """Run the container of the folder named by the first argument."""
    folder = Path(sys.argv[1])
    spec = json.loads((folder / "spec.json").read_text())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    out_read, out_write = os.pipe()
    err_read, err_write = os.pipe()
    log = LogWriter(spec["log"], spec["max_log_bytes"])

    started = time.time_ns()
    pid, error = launch(spec, (out_write, err_write), libc)
    os.close(out_write)
    os.close(err_write)
    if error:
        os.waitpid(pid, 0)
        write_json(
            folder / "exit.json", {"code": 128, "signal": 0, "error": error, "finished": timestamp(time.time_ns())}
        )
        return
    state = {"pid": pid, "ticks": start_ticks(pid), "shim": os.getpid(), "shim_ticks": start_ticks(os.getpid())}
    write_json(folder / "state.json", state | {"started": timestamp(started)})
    # The agent waits for the end of this output before it calls the container running.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    pipes = {out_read: "stdout", err_read: "stderr"}
    pump(pid, pipes, log, wakeup_read)
    finished = timestamp(time.time_ns())
    # The zombie still holds the group's number, so this can hit no other group.
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        finished = timestamp(time.time_ns())
    _, status = os.waitpid(pid, 0)
    sweep()
    drain(pipes, log)
    code = os.waitstatus_to_exitcode(status)
    write_json(
        folder / "exit.json",
        {"code": 128 - code if code < 0 else code, "signal": max(0, -code), "error": "", "finished": finished},
    )


if __name__ == "__main__":
    main()
