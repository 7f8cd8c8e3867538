"""bench/sweep.py: which policies it asks for, and the table that it makes of reports."""
import json
import pathlib
import subprocess
import sys

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "bench" / "sweep.py"


def sweep(*words):
    return subprocess.run([sys.executable, PROGRAM, *map(str, words)], capture_output=True, text=True)


def row(label, kl, suite="niah"):
    return {"suite": suite, "label": label, "n": 20, "score": None, "kl_answer": kl, "kl_answer_ci": [kl / 2, kl * 2],
            "same_answer": .5, "same_answer_ci": [.4, .6], "flops_ratio": .25, "reused_ratio": .9, "recomputed_ratio": .15,
            "kept_ratio": 1.0, "ttft_ratio": .3}


def report(path, rows, pairs=()):
    path.write_text(json.dumps({"rows": rows, "pairs": list(pairs)}))
    return path


def test_a_table_has_a_part_a_suite_and_a_row_a_value(tmp_path):
    pair = {"suite": "niah", "a": "mend:r=0.3", "b": "mend", "kl_ratio": .6, "kl_ratio_ci": [.5, .7]}
    one = report(tmp_path / "one.json", [row("full", 0), row("mend", .02), row("mend:r=0.3", .01), row("mend", .5, "vt")], [pair])
    done = sweep("--table", one, "--policy", "mend")
    assert done.returncode == 0, done.stderr
    niah, vt = done.stdout.split("## vt")
    assert "| `mend:r=0.3` | 20 | - | 0.010 [0.005,0.020] | 0.500 [0.400,0.600] | 0.250 |" in niah
    assert niah.count("0.600 [0.500,0.700] |") == 1, "only the pair with the default"
    assert "0.500 [0.250,1.000]" in vt and "mend:r" not in vt
    heads = [line for line in done.stdout.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in heads}) == 1, "all lines have as many cells"


def test_reports_of_several_runs_are_one_table(tmp_path):
    one = report(tmp_path / "one.json", [row("full", 0), row("crossquery:l_cut=4", .02)])
    two = report(tmp_path / "two.json", [row("full", 0), row("crossquery:l_cut=8", .04)])
    done = sweep("--table", one, two, "--policy", "crossquery")
    assert done.stdout.count("| `full` |") == 1
    assert "l_cut=4" in done.stdout and "l_cut=8" in done.stdout
    assert "l_cut=8" not in sweep("--table", one, "--policy", "crossquery").stdout, "power"


def test_ratios_are_to_what_the_reports_say(tmp_path):
    older, turns = report(tmp_path / "older.json", [row("mend", .02)]), tmp_path / "turns.json"
    turns.write_text(json.dumps({"ratios_to": "prefix", "rows": [row("mend", .03)], "pairs": []}))
    head = sweep("--table", turns, "--policy", "mend").stdout
    assert "FLOPs / prefix" in head and "TTFT / prefix" in head and "/ full" not in head
    assert "FLOPs / full" in sweep("--table", older, "--policy", "mend").stdout
    both = sweep("--table", older, turns, "--policy", "mend")
    assert both.returncode == 2 and "to full, of others to prefix" in both.stderr and "mend" not in both.stdout


def test_a_run_asks_for_every_combination_side_by_side(tmp_path):
    kvilt = tmp_path / "kvilt"
    made = json.dumps({"rows": [row("samkv", .1)]})
    kvilt.write_text(f"#!{sys.executable}\nimport sys\nopen({str(tmp_path / 'words')!r}, 'a').write(' '.join(sys.argv[1:]) + '\\n')\n"
                     f"open(sys.argv[sys.argv.index('--json') + 1], 'w').write({made!r})\n")
    kvilt.chmod(0o755)
    common = ["--kvilt", kvilt, "--model", "m.gguf", "--suite", "niah:n=2", "--json", tmp_path / "out.json"]
    done = sweep(*common, "--policy", "samkv:block=16", "--values", "keep=.1,.3", "--values", "fate=overwrite,fuse", "--", "--seed", "3")
    assert done.returncode == 0, done.stderr
    words = (tmp_path / "words").read_text()
    assert "--policies full,naive,samkv:block=16,samkv:block=16:keep=.1:fate=overwrite,samkv:block=16:keep=.1:fate=fuse," in words
    assert "--pair samkv:block=16:keep=.3:fate=fuse/samkv:block=16" in words and words.endswith("--seed 3\n")
    (tmp_path / "words").unlink()
    done = sweep(*common, "--policy", "crossquery:regime=b", "--values", "l_cut=4,8", "--warm-as")
    assert done.returncode == 0, done.stderr
    runs = (tmp_path / "words").read_text().splitlines()
    assert [line.split("--policies ")[1].split()[0] for line in runs] == [f"full,naive,crossquery:regime=b:l_cut={l}" for l in (4, 8)]
    assert [line.split("--warm-as ")[1] for line in runs] == [f"crossquery:regime=b:l_cut={l}" for l in (4, 8)]


def test_what_is_missing_is_named(tmp_path):
    assert "--values is 'halo'" in sweep("--policy", "crossquery", "--values", "halo").stderr
    assert "--model" in sweep("--policy", "crossquery", "--values", "halo=4").stderr
