#!/usr/bin/env python3
"""Measures llama.cpp (llama-cpp-python's source package, default build) on the model that Kvilt is measured on.

usage: llamacpp.py MODEL.gguf [--work DIR] [--threads 1,2] [--prompt 512,2048] [--skip-speed] [--no-amx]
                   [--json OUT.json]

Builds llama-bench and llama-server in a private folder (once; 15 to 60 minutes on two cores). Where that build dies of an
illegal instruction, as its AMX kernels do on some machines, it builds again without AMX (`--no-amx`: at once). Then reports
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
import re
import signal
import socket
import statistics
import subprocess
import sys
import tarfile
import time
import urllib.request

VERSION = "0.3.36"
INSTRUCTIONS = {  # llama.cpp's options for x86 without AMX: the machine's word for each
    "SSE42": "sse4_2", "AVX": "avx", "AVX2": "avx2", "BMI2": "bmi2", "FMA": "fma", "F16C": "f16c", "AVX_VNNI": "avx_vnni",
    "AVX512": "avx512f", "AVX512_VBMI": "avx512vbmi", "AVX512_VNNI": "avx512_vnni", "AVX512_BF16": "avx512_bf16",
}
SETTINGS = {  # name: flags of llama-server besides model, threads and context
    "default": [],
    "cache-reuse 256": ["--cache-reuse", "256"],
    "one slot": ["--parallel", "1"],
    "one slot, cache-reuse 256": ["--parallel", "1", "--cache-reuse", "256"],
    "one slot, cache-reuse 32": ["--parallel", "1", "--cache-reuse", "32"],
    "one slot, cache-reuse 1, no similarity floor": ["--parallel", "1", "--cache-reuse", "1", "--slot-prompt-similarity", "0"],
}


def configure(work, amx):
    source = work / f"src/llama_cpp_python-{VERSION}/vendor/llama.cpp"
    chosen = [f"-DGGML_NATIVE={'ON' if amx else 'OFF'}"]
    if not amx:  # GGML_NATIVE would bring AMX, so what else the machine has is named
        has = set(re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.MULTILINE).group(1).split())
        chosen += [f"-DGGML_{option}={'ON' if flag in has else 'OFF'}" for option, flag in INSTRUCTIONS.items()]
    subprocess.run(["cmake", "-G", "Ninja", "-S", source, "-B", work / "build", "-DCMAKE_BUILD_TYPE=Release", *chosen], check=True)


def is_native(work):
    """Whether it is built with all that the machine has, AMX too."""
    return "GGML_NATIVE:BOOL=OFF" not in (work / "build/CMakeCache.txt").read_text()


def make(work, amx):
    configure(work, amx)
    subprocess.run(["cmake", "--build", work / "build", "--target", "llama-bench", "llama-server"], check=True)


def is_illegal_here(programs, model):
    """Whether it dies of an instruction that the machine does not take: its AMX kernels do on some."""
    command = [programs / "llama-bench", "-m", model, "-p", "64", "-n", "1", "-r", "1", "-o", "json"]
    return subprocess.run(command, capture_output=True).returncode == -signal.SIGILL


def build(work, model, no_amx=False):
    programs = work / "build/bin"
    if not (programs / "llama-server").exists():
        work.mkdir(parents=True, exist_ok=True)
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "-d", work,
                        f"llama-cpp-python=={VERSION}"], check=True)
        with tarfile.open(work / f"llama_cpp_python-{VERSION}.tar.gz") as archive:
            archive.extractall(work / "src", filter="data")
        make(work, amx=not no_amx)
    if is_native(work) and (no_amx or is_illegal_here(programs, model)):
        print("llama.cpp is built again without AMX" + ("" if no_amx else ", whose instructions end it here"), file=sys.stderr)
        make(work, amx=False)
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
    parser.add_argument("--no-amx", action="store_true", help="build it without AMX")
    parser.add_argument("--json", type=pathlib.Path)
    args = parser.parse_args()
    programs = build(args.work.resolve(), args.model, args.no_amx)
    result = {"peer": f"llama.cpp of llama-cpp-python {VERSION}", "native": is_native(args.work), "model": pathlib.Path(args.model).name}
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
