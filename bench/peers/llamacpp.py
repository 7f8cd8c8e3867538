#!/usr/bin/env python3
"""Measures llama.cpp (llama-cpp-python's source package, default build) on the model that Kvilt is measured on.

usage: llamacpp.py MODEL.gguf [--work DIR] [--threads 1,2] [--prompt 512,2048] [--skip-speed] [--json OUT.json]

Builds llama-bench and llama-server in a private folder (once; 15 to 60 minutes on two cores), then reports
  - prefill and decode in tokens/s (llama-bench, median of repetitions and its spread);
  - how much of a reordered prompt its --cache-reuse reuses: a system text of 54 tokens, three documents of 500 and a
    question of 42, first in order 1-2-3, then 3-1-2 (1,596 tokens; the server's own timings say how many it computed).
Needs cmake, ninja, g++, pip; nothing is installed outside DIR.
"""
import argparse
import contextlib
import json
import pathlib
import random
import socket
import statistics
import subprocess
import sys
import tarfile
import time
import urllib.request

VERSION = "0.3.36"
SETTINGS = {  # name: flags of llama-server besides model, threads and context
    "default": [],
    "cache-reuse 256": ["--cache-reuse", "256"],
    "one slot": ["--parallel", "1"],
    "one slot, cache-reuse 256": ["--parallel", "1", "--cache-reuse", "256"],
    "one slot, cache-reuse 32": ["--parallel", "1", "--cache-reuse", "32"],
    "one slot, cache-reuse 1, no similarity floor": ["--parallel", "1", "--cache-reuse", "1", "--slot-prompt-similarity", "0"],
}


def build(work):
    programs = work / "build/bin"
    if not (programs / "llama-server").exists():
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "-d", work,
                        f"llama-cpp-python=={VERSION}"], check=True)
        with tarfile.open(work / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
            archive.extractall(work / "src", filter="data")
        source = work / f"src/llama_cpp_python-{VERSION}/vendor/llama.cpp"
        subprocess.run(["cmake", "-G", "Ninja", "-S", source, "-B", work / "build", "-DCMAKE_BUILD_TYPE=Release"], check=True)
        subprocess.run(["cmake", "--build", work / "build", "--target", "llama-bench", "llama-server"], check=True)
    return programs


def speed(programs, args):
    command = [programs / "llama-bench", "-m", args.model, "-t", args.threads, "-p", args.prompt, "-n", "64", "-r", str(args.repeat), "-o", "json"]
    rows = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return " ".join(map(str, command)), [
        {"kind": "prefill" if r["n_prompt"] else "decode", "threads": r["n_threads"], "tokens": r["n_prompt"] or r["n_gen"],
         "tok_s": round(statistics.median(r["samples_ts"]), 2), "tok_s_min": min(r["samples_ts"]), "tok_s_max": max(r["samples_ts"])} for r in rows]


def ask(port, path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=600) as answer:
        return json.load(answer)


def wait_until_ready(server, port):
    for _ in range(600):
        try:
            return ask(port, "/health")
        except OSError:
            if server.poll() is not None:
                raise SystemExit("llama-server ended; see its log")
            time.sleep(0.2)
    raise SystemExit("llama-server does not get ready")


def prompts():
    draw = random.Random(1)
    tokens = lambda n: [draw.randrange(1000, 100000) for _ in range(n)]
    system, question, documents = tokens(54), tokens(42), [tokens(500) for _ in range(3)]
    return [system + sum((documents[i] for i in order), []) + question for order in ((0, 1, 2), (2, 0, 1))]


@contextlib.contextmanager
def serving(programs, model, log, *flags):
    """The port of a llama-server that is ready, for as long as the block runs."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [programs / "llama-server", "-m", model, "--port", str(port), "--no-webui", *flags]
    with open(log, "w") as out, subprocess.Popen(command, stdout=out, stderr=out) as server:
        try:
            wait_until_ready(server, port)
            yield port
        finally:
            server.terminate()


def complete(port, prompt):
    return ask(port, "/completion", {"prompt": prompt, "n_predict": 1, "cache_prompt": True, "temperature": 0})


def reuse(programs, args, flags):
    with serving(programs, args.model, args.work / "server.log", "-t", args.threads.split(",")[-1], "-c", "8192", *flags) as port:
        answers = [complete(port, p) for p in prompts()]
    timings = answers[1]["timings"]
    total = len(prompts()[1])
    return {"prompt_tokens": total, "computed_tokens": timings["prompt_n"], "reused_tokens": total - timings["prompt_n"],
            "first_s": round(answers[0]["timings"]["prompt_ms"] / 1000, 3), "reordered_s": round(timings["prompt_ms"] / 1000, 3)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--work", type=pathlib.Path, default=pathlib.Path("build/peers/llamacpp"))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--prompt", default="512,2048")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--skip-speed", action="store_true")
    parser.add_argument("--skip-reuse", action="store_true")
    parser.add_argument("--settings", default=";".join(SETTINGS), help="of the reuse measurement (default: all), joined by ;")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    programs = build(args.work.resolve())
    result = {"peer": f"llama.cpp of llama-cpp-python {VERSION}", "model": pathlib.Path(args.model).name}
    if not args.skip_reuse:
        result["reuse"] = []
        for name, flags in ((name, flags) for name, flags in SETTINGS.items() if name in args.settings.split(";")):
            result["reuse"].append({"setting": name, "flags": " ".join(flags), **reuse(programs, args, flags)})
            print(result["reuse"][-1], flush=True)
    if not args.skip_speed:
        result["speed_command"], result["speed"] = speed(programs, args)
        print(*result["speed"], sep="\n")
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
