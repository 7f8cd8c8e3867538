"""A redis-server of one's own, on a unix socket, that can be killed, stopped and started again. For tests and the soak."""
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time

PROGRAM = shutil.which("redis-server") or shutil.which("valkey-server")
CLIENT = shutil.which("redis-cli") or shutil.which("valkey-cli")


class Redis:
    def __init__(self, *flags):
        self.flags = flags
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="kvilt_redis_", dir="/tmp"))  # a socket's path is short
        self.socket = self.folder / "redis"
        self.start()

    def start(self):
        self.process = subprocess.Popen(
            [PROGRAM, "--port", "0", "--unixsocket", self.socket, "--save", "", "--appendonly", "no", "--dir", self.folder,
             "--logfile", self.folder / "log", *self.flags])
        until(self.socket.exists)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.socket.unlink(missing_ok=True)

    def stall(self):
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self):
        self.process.send_signal(signal.SIGCONT)

    def ask(self, *words):
        """The plain text of its answer, by its own client."""
        return subprocess.run([CLIENT, "-s", self.socket, *words], capture_output=True, text=True, timeout=60, check=True).stdout

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go_on()
        self.kill()
        shutil.rmtree(self.folder)


def until(done):
    for _ in range(3000):
        if done():
            return
        time.sleep(0.02)
    raise AssertionError("it never came")
