#!/usr/bin/env python3
"""Dense speed of Kvilt and of the CPU engines that people would take instead: one set of weights, machine and prompts.

usage: dense.py setup                      installs and builds the peers in a private folder (once; up to an hour)
       dense.py weights --model Q4_K_M.gguf    writes the model again as Q8_0 and Q4_0 (OpenVINO reads no Q5_0)
       dense.py run [--rounds 3]           alternates the engines, A B C A B C, over formats and prompts; prints the table
       dense.py cell ENGINE FORMAT PROMPT BATCH    one engine's one measurement; each `run` is made of these
       dense.py table                      the table of what has been measured

Peers: llama.cpp as in the llama-cpp-python source package, its default build (march=native) and one with OpenBLAS (from
PyPI: scipy-openblas32); openvino-genai from PyPI. Every cell is one process that loads the model, runs once to warm up
and measures prefill of PROMPT tokens and then a decode of 64, `--repeat` times; --batch N decodes N sequences at once.
Prefill is tokens / time to the first token. Samples are kept in WORK/samples.json, one list for each cell, so that a
run may be interrupted and cells measured again (`--fresh` forgets). --wrap PROGRAM runs each cell under a program, e.g.
one that keeps the machine quiet. `table --json F --markdown F` writes medians, spreads (half the interquartile
distance) and ratios. Needs python3 with venv and pip, cmake, ninja, g++.
"""
import argparse
import glob
import json
import os
import pathlib
import platform
import random
import shlex
import statistics
import subprocess
import sys
import tarfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
LLAMACPP = "0.3.36"
OPENVINO = "2026.4.1.0"
PACKAGES = ["numpy", "gguf==0.19.0", f"openvino-genai=={OPENVINO}", "scipy-openblas32==0.3.34.481.3", "cmake", "ninja"]
ENGINES = ["kvilt", "llamacpp", "llamacpp-openblas", "openvino"]
FORMATS = ["q4_k_m", "q8_0", "q4_0"]
BATCH_PROMPT = 128  # of each sequence when several are decoded at once
LONG = 4000  # prompts beyond are measured once and without a first run: they warm themselves

# The library's names carry a prefix, so that it can live next to another BLAS; llama.cpp does not know it.
SHIM = """#pragma once
#define cblas_sgemm scipy_cblas_sgemm
#define openblas_set_num_threads scipy_openblas_set_num_threads
#define openblas_get_parallel scipy_openblas_get_parallel
#include_next <cblas.h>
"""


def sh(*command, **more):
    return subprocess.run([str(part) for part in command], check=True, **more)


# ---- Setup -----------------------------------------------------------------------------------------------------------

def cmake_flags(work, variant):
    if variant == "llamacpp":
        return []
    blas = pathlib.Path(glob.glob(str(work / "env/lib/python3*/site-packages/scipy_openblas32"))[0])
    (work / "shim").mkdir(exist_ok=True)
    (work / "shim/cblas.h").write_text(SHIM)
    return ["-DGGML_BLAS=ON", "-DGGML_BLAS_VENDOR=OpenBLAS", f"-DBLAS_LIBRARIES={blas}/lib/libscipy_openblas.so",
            f"-DBLAS_INCLUDE_DIRS={work}/shim;{blas}/include", f"-DCMAKE_BUILD_RPATH={blas}/lib"]


def setup(args):
    work = args.work
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "env/bin/python").exists():
        sh(sys.executable, "-m", "venv", work / "env")
        sh(work / "env/bin/pip", "install", "--quiet", *PACKAGES)
    source = work / f"src/llama_cpp_python-{LLAMACPP}/vendor/llama.cpp"
    if not source.exists():
        sh(work / "env/bin/pip", "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", "-d", work, f"llama-cpp-python=={LLAMACPP}")
        with tarfile.open(work / f"llama_cpp_python-{LLAMACPP}.tar.gz") as archive:
            archive.extractall(work / "src", filter="data")
    tools = os.environ | {"PATH": f"{work}/env/bin:{os.environ['PATH']}"}
    for variant, target in (("llamacpp", "llama-batched-bench"), ("llamacpp-openblas", "ggml")):
        # The variants differ only in the ggml libraries; the program takes the other ones by LD_LIBRARY_PATH.
        if not (work / variant / "bin/libggml.so").exists():
            sh("cmake", "-G", "Ninja", "-S", source, "-B", work / variant, "-DCMAKE_BUILD_TYPE=Release", *cmake_flags(work, variant), env=tools)
            sh("cmake", "--build", work / variant, "--target", target, env=tools)


def weights(args):
    for kind in ("Q8_0", "Q4_0"):
        out = model_path(args, kind.lower())
        if not out.exists():
            sh(args.work / "env/bin/python", ROOT / "bench/peers/rewrite_gguf.py", model_path(args, "q4_k_m"), out, "--type", kind)


def model_path(args, kind):
    return args.model if kind == "q4_k_m" else args.model.with_name(args.model.name.replace("q4_k_m", kind))


# ---- Engines: each returns lists of tokens a second ---------------------------------------------------------------------

def run_kvilt(args, path, prompt, batch):
    out = args.work / "kvilt.json"
    warm = int(prompt <= LONG)
    done = sh(args.kvilt, "bench", "dense", "--speed-only", "--model", path, "--threads", args.threads, "--prompt", prompt, "--batch", batch,
              "--decode", args.decode, "--rounds", args.repeat + warm, "--json", out, *args.kvilt_flags, capture_output=True, text=True)
    row = json.loads(out.read_text())["rows"][0]
    return row["prefill_samples_tok_s"][warm:], row["decode_samples_tok_s"][warm:], done.args


def run_llamacpp(args, path, prompt, batch, variant="llamacpp"):
    program = args.work / "llamacpp/bin/llama-batched-bench"
    command = [program, "-m", path, "-t", args.threads, "-tb", args.threads, "-npp", ",".join([str(prompt)] * args.repeat), "-ntg", args.decode,
               "-npl", batch, "-c", (prompt + args.decode) * batch + 256, "--output-format", "jsonl"]
    done = sh(*command, capture_output=True, text=True, env=os.environ | {"LD_LIBRARY_PATH": str(args.work / variant / "bin")})
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return [r["speed_pp"] for r in rows], [r["speed_tg"] for r in rows], done.args


def run_openvino(args, path, prompt, batch):
    inner = [args.work / "env/bin/python", __file__, "openvino-inner", path, prompt, batch, args.threads, args.decode, args.repeat, args.work]
    done = sh(*inner, capture_output=True, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    return result["prefill"], result["decode"], ["openvino_genai.LLMPipeline" if batch == 1 else "openvino_genai.ContinuousBatchingPipeline", str(path)]


def openvino_inner(path, prompt, batch, threads, decode, repeat, work):
    """In the private environment. One sequence: LLMPipeline and its own metrics; several: continuous batching, timed step by step."""
    import numpy
    import openvino
    import openvino_genai as genai
    path, prompt, batch, threads, decode, repeat = pathlib.Path(path), int(prompt), int(batch), int(threads), int(decode), int(repeat)
    folder = pathlib.Path(work) / "openvino" / path.stem  # the model as OpenVINO keeps it: converting takes half a minute
    if not (folder / "openvino_model.xml").exists():
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / path.name).exists():
            (folder / path.name).symlink_to(path.resolve())
        genai.LLMPipeline(str(folder / path.name), "CPU", enable_save_ov_model=True)
    warm = int(prompt <= LONG)
    config = genai.GenerationConfig(max_new_tokens=decode + 1, ignore_eos=True, do_sample=False)
    draw = random.Random(1)
    ids = lambda: openvino.Tensor(numpy.array([[draw.randrange(1000, 100000) for _ in range(prompt)]], dtype=numpy.int64))
    prefill, decoded = [], []
    if batch == 1:
        pipe = genai.LLMPipeline(str(folder), "CPU", INFERENCE_NUM_THREADS=threads)
        for _ in range(repeat + warm):
            metrics = pipe.generate(ids(), config).perf_metrics
            prefill.append(prompt / metrics.get_ttft().mean * 1000)
            decoded.append(1000 / metrics.get_tpot().mean)
    else:
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size, scheduler.max_num_seqs, scheduler.enable_prefix_caching = 2, batch, False
        pipe = genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
        for round in range(repeat + warm):
            p, d = openvino_batch(pipe, config, ids, batch, prompt, decode, round)
            prefill.append(p), decoded.append(d)
    print(json.dumps({"prefill": prefill[warm:], "decode": decoded[warm:]}))


def openvino_batch(pipe, config, ids, batch, prompt, decode, round):
    config.max_new_tokens = decode + 1 + 4 * batch  # so that no sequence ends before the last one has decoded its share
    handles = [pipe.add_request(round * batch + i, ids(), config) for i in range(batch)]
    begin, counts, marks = time.perf_counter(), [0] * batch, []
    while pipe.has_non_finished_requests():
        pipe.step()
        now = time.perf_counter()
        for i, handle in enumerate(handles):
            if handle.can_read():
                counts[i] += sum(len(o.generated_ids) for o in handle.read().values())
        if all(counts):
            marks.append((now, sum(counts)))
        if len(marks) > decode:
            for handle in handles:
                handle.cancel() if hasattr(handle, "cancel") else handle.drop()
    (first, before), (last, after) = marks[0], marks[min(decode, len(marks) - 1)]
    return batch * prompt / (first - begin), (after - before) / (last - first)


# ---- Cells and runs -----------------------------------------------------------------------------------------------------

def cell(args):
    path = model_path(args, args.format)
    batch, prompt = args.batch_size, args.prompt_size
    runs = {"kvilt": run_kvilt, "llamacpp": run_llamacpp, "openvino": run_openvino,
            "llamacpp-openblas": lambda *a: run_llamacpp(*a, variant="llamacpp-openblas")}
    prefill, decode, command = runs[args.engine](args, path, prompt, batch)
    samples = read_samples(args)
    entry = samples.setdefault(f"{args.format} {prompt} {batch} {args.engine}", {"prefill": [], "decode": []})
    entry["prefill"] += prefill
    entry["decode"] += decode
    entry["command"] = " ".join(pathlib.Path(str(part)).name if os.sep in str(part) else str(part) for part in command)
    temporary = args.work / "samples.part"
    temporary.write_text(json.dumps(samples, indent=1))
    temporary.rename(args.work / "samples.json")
    print(f"{args.engine:18} {args.format:7} {prompt:6} x{batch:<3} prefill {statistics.median(prefill):8.1f}  decode {statistics.median(decode):8.1f}", flush=True)


def read_samples(args):
    file = args.work / "samples.json"
    return json.loads(file.read_text()) if file.exists() else {}


def run(args):
    if args.fresh:
        (args.work / "samples.json").unlink(missing_ok=True)
    shapes = [(int(p), 1) for p in args.prompts.split(",") if p] + [(BATCH_PROMPT, int(b)) for b in args.batches.split(",") if b]
    for _ in range(args.rounds):
        for kind in args.formats.split(","):
            for prompt, batch in shapes:
                for engine in args.engines.split(","):
                    if engine == "openvino" and kind == "q4_k_m":
                        continue  # its reader knows no Q5_0, which this file has
                    common = ["--work", args.work, "--model", args.model, "--kvilt", args.kvilt, "--threads", args.threads, "--decode", args.decode,
                              "--repeat", 1 if prompt > LONG else args.repeat, f"--kvilt-flags={shlex.join(args.kvilt_flags)}"]
                    done = subprocess.run([*shlex.split(args.wrap), sys.executable, __file__, *map(str, common), "cell", engine, kind, str(prompt), str(batch)])
                    if done.returncode:
                        print(f"{engine} {kind} {prompt} x{batch}: failed", file=sys.stderr)
    table(args)


def half_spread(values):
    if len(values) < 2:
        return 0
    quarters = statistics.quantiles(values, n=4, method="inclusive")
    return (quarters[2] - quarters[0]) / 2


def summary(args):
    rows = []
    for key, entry in read_samples(args).items():
        kind, prompt, batch, engine = key.split()
        row = {"format": kind, "prompt_tokens": int(prompt), "batch": int(batch), "engine": engine, "samples": len(entry["prefill"])}
        for what in ("prefill", "decode"):
            row[f"{what}_tok_s"] = round(statistics.median(entry[what]), 1)
            row[f"{what}_spread_tok_s"] = round(half_spread(entry[what]), 1)
        rows.append(row | {"command": entry["command"]})
    for row in rows:
        beside = [r for r in rows if r["engine"] != "kvilt" and all(r[k] == row[k] for k in ("format", "prompt_tokens", "batch"))]
        if row["engine"] == "kvilt" and beside:
            for what in ("prefill", "decode"):
                best = max(beside, key=lambda r: r[f"{what}_tok_s"])
                row[f"{what}_ratio"] = round(row[f"{what}_tok_s"] / best[f"{what}_tok_s"], 2)
                row[f"{what}_best_peer"] = best["engine"]
    order = lambda r: (r["batch"], FORMATS.index(r["format"]), r["prompt_tokens"], ENGINES.index(r["engine"]))
    return sorted(rows, key=order)


def table(args):
    rows = summary(args)
    machine = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), platform.machine())
    result = {"version": 1, "command": "bench/peers/dense.py", "machine": f"{machine}, {os.cpu_count()} cores", "model": args.model.name, "threads": args.threads,
              "peers": {"llamacpp": f"llama-cpp-python {LLAMACPP} (source package)", "openvino": f"openvino-genai {OPENVINO}"}, "rows": rows}
    lines = ["| format | prompt | sequences | engine | prefill tok/s | decode tok/s | prefill / best peer | decode / best peer |", "|---|---|---|---|---|---|---|---|"]
    for r in rows:
        cells = [r["format"].upper(), f"{r['prompt_tokens']:,}", r["batch"], r["engine"]]
        cells += [f"{r[f'{w}_tok_s']:.0f} ± {r[f'{w}_spread_tok_s']:.0f}" for w in ("prefill", "decode")]
        cells += [f"**{r[f'{w}_ratio']:.2f}**" if f"{w}_ratio" in r else "" for w in ("prefill", "decode")]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    print("\n".join(lines))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text("\n".join(lines) + "\n")


def main():
    if sys.argv[1:2] == ["openvino-inner"]:
        return openvino_inner(*sys.argv[2:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    path = lambda text: pathlib.Path(text).expanduser().absolute()
    parser.add_argument("--work", type=path, default=ROOT / "build/peers/dense")
    parser.add_argument("--model", type=path, default=os.environ.get("KVILT_MODEL", "~/.cache/kvilt/qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"))
    parser.add_argument("--kvilt", type=path, default=ROOT / "build/release/kvilt")
    parser.add_argument("--kvilt-flags", type=shlex.split, default=[], help="more options of kvilt bench dense")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=2, help="measurements of one cell (8,192 tokens: one)")
    actions = parser.add_subparsers(dest="action", required=True)
    actions.add_parser("setup")
    actions.add_parser("weights")
    one = actions.add_parser("cell")
    one.add_argument("engine", choices=ENGINES)
    one.add_argument("format", choices=FORMATS)
    one.add_argument("prompt_size", type=int)
    one.add_argument("batch_size", type=int)
    many = actions.add_parser("run")
    many.add_argument("--rounds", type=int, default=3)
    many.add_argument("--formats", default=",".join(FORMATS))
    many.add_argument("--engines", default=",".join(ENGINES))
    many.add_argument("--prompts", default="512,2048,8192")
    many.add_argument("--batches", default="16")
    many.add_argument("--wrap", default="")
    many.add_argument("--fresh", action="store_true")
    shown = actions.add_parser("table")
    for action in (many, shown):
        action.add_argument("--json", type=path)
        action.add_argument("--markdown", type=path)
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    {"setup": setup, "weights": weights, "cell": cell, "run": run, "table": table}[args.action](args)


main()
