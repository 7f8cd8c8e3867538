"""kvilt pull as a person uses it, from a hub on loopback: progress, Ctrl-C, kill, a full disk, two processes, the path.

What a hub may answer is in src/hub/pull_test.cc.
"""
import hashlib
import http.server
import json
import os
import pathlib
import pty
import resource
import signal
import subprocess
import threading
import time

import pytest

from test_faults import GGUF, KVILT, ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(http.server.ThreadingHTTPServer):
    """Serves one file as org/name; holds back what comes after `gate` bytes until `open_gate` is set."""

    daemon_threads = True

    def __init__(self, contents, name="m-Q4_K_M.gguf"):
        super().__init__(("127.0.0.1", 0), Handler)
        self.contents, self.name, self.gate, self.open_gate = contents, name, None, threading.Event()
        self.sent = threading.Event()
        self.asked = []
        self.url = f"http://127.0.0.1:{self.server_port}"

    def __enter__(self):
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.open_gate.set()
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        hub = self.server
        if self.path.startswith("/api/models/org/name/revision/main"):
            digest = hashlib.sha256(hub.contents).hexdigest()
            size = len(hub.contents)
            body = json.dumps({"sha": COMMIT, "siblings": [{
                "rfilename": hub.name, "size": size, "blobId": "0" * 40,
                "lfs": {"sha256": digest, "size": size, "pointerSize": 130}}]}).encode()
            self.send_response(200)
        elif self.path == f"/org/name/resolve/{COMMIT}/{hub.name}":
            start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-"))
            hub.asked.append(start)
            body = hub.contents[start:]
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(hub.contents) - 1}/{len(hub.contents)}")
        else:
            self.send_error(404)
            return
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            if hub.gate is not None and "resolve" in self.path:
                self.wfile.write(body[:hub.gate])
                hub.sent.set()
                hub.open_gate.wait(60)
                body = body[hub.gate:]
            self.wfile.write(body)
        except OSError:
            pass


def environment(tmp_path):
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    return {**clean, "HF_HUB_CACHE": str(tmp_path), "HF_HOME": str(tmp_path / "home"), "no_proxy": "127.0.0.1"}


def command(hub, *flags, model="org/name"):
    return [KVILT, "pull", model, "--endpoint", hub.url, *flags]


def pull(hub, tmp_path, *flags, limits=(), model="org/name"):
    def limit():
        for which, value in limits:
            resource.setrlimit(which, (value, value))
    return subprocess.run(command(hub, *flags, model=model), capture_output=True, text=True, timeout=120, cwd=ROOT,
                          env=environment(tmp_path), preexec_fn=limit)


def file_of(tmp_path, name="m-Q4_K_M.gguf"):
    return tmp_path / "models--org--name" / "snapshots" / COMMIT / name


CONTENTS = os.urandom(3_000_000)


def test_it_prints_the_path_and_the_progress(tmp_path):
    with Hub(CONTENTS) as hub:
        dry = pull(hub, tmp_path, "--dry-run")
        assert dry.returncode == 0 and "3.0 MB  to come  m-Q4_K_M.gguf" in dry.stdout and hub.asked == []
        assert not list(tmp_path.glob("models--*"))
        done = pull(hub, tmp_path, model="org/name:Q4_K_M")
        assert done.returncode == 0, done.stderr
        assert done.stdout == f"{file_of(tmp_path)}\n" and file_of(tmp_path).read_bytes() == CONTENTS
        assert "100 %" in done.stderr and "\r" not in done.stderr and "kvilt serve org/name:Q4_K_M" in done.stderr
        quiet = pull(hub, tmp_path, "--quiet")
        assert quiet.stdout == done.stdout and quiet.stderr == "" and len(hub.asked) == 1
        assert "there    m-Q4_K_M.gguf" in pull(hub, tmp_path, "--dry-run").stdout


def test_one_line_is_rewritten_on_a_terminal(tmp_path):
    with Hub(CONTENTS) as hub:
        ours, theirs = pty.openpty()
        with subprocess.Popen(command(hub), stdout=subprocess.PIPE, stderr=theirs, env=environment(tmp_path)) as process:
            os.close(theirs)
            text = b""
            while True:
                try:
                    part = os.read(ours, 4096)
                except OSError:  # the other end is closed
                    break
                text += part
            assert process.wait(timeout=60) == 0
        os.close(ours)
        assert b"\r\x1b[K" in text and b" % " in text


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_came_stays(tmp_path, how):
    with Hub(CONTENTS) as hub:
        hub.gate = 2_000_000
        # Whoever runs the tests in the background has SIGINT ignored, and `pull` keeps to that.
        with subprocess.Popen(command(hub), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              env=environment(tmp_path), preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)) as process:
            assert hub.sent.wait(60)
            begun = tmp_path / "models--org--name/blobs" / (hashlib.sha256(CONTENTS).hexdigest() + ".incomplete")
            while process.poll() is None and (not begun.exists() or begun.stat().st_size < 1_000_000):
                time.sleep(0.01)
            process.send_signal(how)
            said = process.communicate(timeout=60)[1]
            assert process.returncode == (-9 if how == signal.SIGKILL else 128 + how)
            assert how == signal.SIGKILL or "the same command goes on" in said
        assert not file_of(tmp_path).exists() and not (tmp_path / "models--org--name/refs").exists()
        kept = begun.stat().st_size
        hub.gate = None
        assert pull(hub, tmp_path).returncode == 0
        assert hub.asked == [0, kept] and file_of(tmp_path).read_bytes() == CONTENTS


def test_a_full_disk_says_so_and_goes_on(tmp_path):
    with Hub(CONTENTS) as hub:
        full = pull(hub, tmp_path, limits=[(resource.RLIMIT_FSIZE, 1 << 20)])
        assert full.returncode == 1 and "File too large" in full.stderr and ".incomplete" in full.stderr
        assert pull(hub, tmp_path).returncode == 0
        assert hub.asked == [0, 1 << 20]


def test_a_second_process_waits_for_the_first(tmp_path):
    with Hub(CONTENTS) as hub:
        hub.gate = 1000
        with subprocess.Popen(command(hub), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                              env=environment(tmp_path)) as first:
            assert hub.sent.wait(60)
            with subprocess.Popen(command(hub), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  env=environment(tmp_path)) as second:
                assert any("another process downloads it" in line for line in second.stderr)
                hub.open_gate.set()
                assert first.communicate(timeout=60)[0] == second.communicate(timeout=60)[0] == f"{file_of(tmp_path)}\n"
        assert len(hub.asked) == 1


def test_what_was_pulled_is_found_by_its_name(tmp_path):
    def info(name):
        return subprocess.run([KVILT, "info", name], capture_output=True, text=True, timeout=120, cwd=ROOT,
                              env=environment(tmp_path))
    with Hub(pathlib.Path(GGUF).read_bytes(), "stories-F32.gguf") as hub:
        before = info("org/name:F32")
        assert before.returncode == 1 and "kvilt pull org/name:F32" in before.stderr
        assert pull(hub, tmp_path, model="org/name:F32").returncode == 0
        assert info("org/name:F32").returncode == 0
        other = info("org/name:Q8_0")
        assert other.returncode == 1 and "kvilt pull org/name:Q8_0" in other.stderr and "stories-F32.gguf" in other.stderr


@pytest.mark.parametrize("args,word", [
    (["just-a-name"], "ORG/NAME"),
    (["org/name", "--endpoint", "ftp://x"], "https://HOST"),
    (["org/name", "--revision", "../x", "--endpoint", "http://127.0.0.1:1"], "no revision"),
    (["org/name", "--endpoint", "http://127.0.0.1:1"], "is there a network?"),
])
def test_a_wrong_word_is_a_sentence(tmp_path, args, word):
    done = subprocess.run([KVILT, "pull", *args], capture_output=True, text=True, timeout=120, env=environment(tmp_path))
    assert done.returncode == 1 and word in done.stderr and done.stderr.startswith("error: ")
