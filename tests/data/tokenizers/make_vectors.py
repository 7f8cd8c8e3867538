"""Makes small vocabularies and what Hugging Face's tokenizers makes of texts with them (see README.md).

usage: python make_vectors.py TEXT_FILE [more ...]       trains on the files' first megabyte, writes beside itself
       python make_vectors.py --large NAME=FOLDER ...    vectors of vocabularies that are too large to be here
needs: tokenizers 0.23 from PyPI
"""

import json
import pathlib
import random
import sys

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
WORDS = (
    "the of and to in a is that for it was on I'll we've DON'T you'RE hello World na\u00efve caf\u00e9 e\u0301 A\u030a "
    "\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4 \u0440\u0443\u0441\u0441\u043a\u0438\u0439 \u0627\u0644\u0639\u0631\u0628\u064a\u0629 "
    "\u0939\u093f\u0928\u094d\u0926\u0940 \u4e2d\u6587 \U0001f999 \ufb01 \u00b2 \u00bd \u2460 \u2167 \u0663 12345 3.14 1,000 0x1F "
    "foo_bar fooBar HTML http://a.b/c?d=e&f=g \u00a0 \u200b \u3000 \u2028 \u0085 \u001c \u0130 \u017f \u212a \u00df "
    "<|im_start|> <|im_end|> <s> </s> <unk> <mark> <0x41> \u2581 \u2581\u2581a \u0120 \u010a"
).split(" ")
GAPS = [" ", " ", " ", "  ", "   ", "\n", "\n\n", " \n ", "\t", "\r\n", "", "", ",", ". ", "'", '"', "-", "    "]


def texts(count, seed):
    rng = random.Random(seed)
    out = ["", " ", "  ", "\n", " \n\n ", "Hello, y'all! How are you \U0001f601 ?", "3 33 333 3333 33333", "\t\t a\t\tb"]
    while len(out) < count:
        out.append("".join(rng.choice(WORDS) + rng.choice(GAPS) * rng.randint(1, 3) for _ in range(rng.randint(1, 9))))
    return out


def added(first, *names, **flags):
    base = dict(single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
    return [dict(base, id=first + i, content=name, **flags) for i, name in enumerate(names)]


def byte_level_base(corpus):
    tk = Tokenizer(models.BPE())
    tk.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tk.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=900, initial_alphabet=alphabet, show_progress=False))
    base = json.loads(tk.to_str())
    n = len(base["model"]["vocab"])
    base["added_tokens"] = added(n, "<|im_start|>", "<|im_end|>") + added(n + 2, "<mark>", special=False, rstrip=True)
    base["added_tokens"] += added(n + 3, "foo_bar", special=False, normalized=True)
    base["added_tokens"] += added(n + 4, "hello", special=False, single_word=True, lstrip=True)
    return base


def character_base(corpus):
    tk = Tokenizer(models.BPE())
    tk.normalizer = normalizers.Replace(" ", "\u2581")
    tk.pre_tokenizer = pre_tokenizers.Metaspace()
    tk.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=700, limit_alphabet=90, show_progress=False))
    base = json.loads(tk.to_str())
    names = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    names += [t for t, _ in sorted(base["model"]["vocab"].items(), key=lambda item: item[1])]
    base["model"].update(vocab={t: i for i, t in enumerate(names)}, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    base["added_tokens"] = added(0, "<unk>", "<s>", "</s>")
    return base


def split(regex, behavior="Isolated", invert=False):
    return dict(type="Split", pattern={"Regex": regex}, behavior=behavior, invert=invert)


def sequence(*steps, kind="pretokenizers"):
    return {"type": "Sequence", kind: list(steps)}


def byte_level(regex, prefix=False):
    return dict(type="ByteLevel", add_prefix_space=prefix, trim_offsets=True, use_regex=regex)


def metaspace(scheme, cut):
    return dict(type="Metaspace", replacement="\u2581", prepend_scheme=scheme, split=cut)


def replace(pattern, content):
    return dict(type="Replace", pattern={"String": pattern}, content=content)


BYTES = dict(type="ByteLevel", add_prefix_space=True, trim_offsets=True, use_regex=True)
LLAMA = sequence(
    replace("\u2581", " "), dict(type="ByteFallback"), dict(type="Fuse"), dict(type="Strip", content=" ", start=1, stop=0),
    kind="decoders",
)
BYTE_CASES = {
    "gpt2": dict(pre_tokenizer=byte_level(True)),
    "prefix-space": dict(pre_tokenizer=byte_level(True, prefix=True)),
    "no-split": dict(pre_tokenizer=byte_level(False)),
    "qwen2": dict(normalizer=dict(type="NFC"), pre_tokenizer=sequence(split(QWEN2), byte_level(False))),
    "llama3": dict(pre_tokenizer=sequence(split(LLAMA3), byte_level(False)), ignore_merges=True),
    "smollm": dict(pre_tokenizer=sequence(dict(type="Digits", individual_digits=True), byte_level(True))),
    "falcon": dict(
        pre_tokenizer=sequence(
            dict(type="Punctuation", behavior="Contiguous"), byte_level(True), dict(type="Digits", individual_digits=False),
            split("[0-9][0-9][0-9]"),
        )
    ),
    "nfkc-lower": dict(
        normalizer=sequence(dict(type="NFKC"), dict(type="Lowercase"), kind="normalizers"), pre_tokenizer=byte_level(True)
    ),
    "nfd": dict(normalizer=dict(type="NFD"), pre_tokenizer=byte_level(True)),
    "nfkd": dict(normalizer=dict(type="NFKD"), pre_tokenizer=byte_level(True)),
    "replace-regex": dict(
        normalizer=dict(type="Replace", pattern={"Regex": r"\s{2,}|\d"}, content="_"), pre_tokenizer=byte_level(True)
    ),
    "merged-with-previous": dict(pre_tokenizer=sequence(split(r"\s", "MergedWithPrevious"), byte_level(False))),
    "merged-with-next": dict(pre_tokenizer=sequence(split(r"\s", "MergedWithNext"), byte_level(False))),
    "contiguous": dict(pre_tokenizer=sequence(split(r"\s|\p{N}", "Contiguous"), byte_level(False))),
    "removed-invert": dict(pre_tokenizer=sequence(split(r"[\p{L}\p{N}]+", "Removed", invert=True), byte_level(False))),
    "empty-matches": dict(pre_tokenizer=sequence(split(r"(?=\p{Lu})|\s*"), byte_level(False))),
}
CHARACTER_CASES = {
    "llama2": dict(
        normalizer=sequence(dict(type="Prepend", prepend="\u2581"), replace(" ", "\u2581"), kind="normalizers")
    ),
    "metaspace-first": dict(pre_tokenizer=metaspace("first", False)),
    "metaspace-always": dict(pre_tokenizer=metaspace("always", True)),
    "metaspace-never": dict(pre_tokenizer=metaspace("never", True)),
    "no-byte-fallback": dict(normalizer=replace(" ", "\u2581"), byte_fallback=False),
    "unknown-not-fused": dict(normalizer=replace(" ", "\u2581"), byte_fallback=False, fuse_unk=False),
    "whitespace": dict(pre_tokenizer=dict(type="Whitespace")),
    "bert-split": dict(pre_tokenizer=dict(type="BertPreTokenizer")),
}


def assemble(base, case, decoder):
    file = json.loads(json.dumps(base))
    file.update(normalizer=case.get("normalizer"), pre_tokenizer=case.get("pre_tokenizer"), decoder=decoder)
    file["model"].update({k: v for k, v in case.items() if k not in ("normalizer", "pre_tokenizer")})
    return file


def run(name, base, cases, decoder, seed):
    out = []
    for number, (case_name, case) in enumerate(cases.items()):
        tk = Tokenizer.from_str(json.dumps(assemble(base, case, decoder)))
        rows = []
        for text in texts(30, seed + number):
            try:
                ids = tk.encode(text, add_special_tokens=False).ids
            except BaseException as panic:  # the library's own, where an added token strips into the next
                print(f"{name}/{case_name}: no vector for {text!r}: {panic}")
                continue
            rows.append([text, ids, tk.decode(ids, skip_special_tokens=False), tk.decode(ids, skip_special_tokens=True)])
        out.append(dict(name=case_name, case=case, rows=rows))
    (HERE / f"{name}.base.json").write_text(json.dumps(base, ensure_ascii=False, separators=(",", ":")) + "\n")
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in out)
    (HERE / f"{name}.vectors.json").write_text(f'{{"decoder":{json.dumps(decoder)},"cases":[\n{lines}\n]}}\n')


def large(folders):
    out = {}
    for number, (name, folder) in enumerate(f.split("=", 1) for f in folders):
        tk = Tokenizer.from_file(str(pathlib.Path(folder) / "tokenizer.json"))
        tk.no_truncation()
        rows = []
        for text in texts(40, 3000 + number):
            ids = tk.encode(text, add_special_tokens=False).ids
            rows.append([text, ids, tk.decode(ids, skip_special_tokens=False), tk.decode(ids, skip_special_tokens=True)])
        out[name] = rows
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(rows, separators=(',', ':'))}" for name, rows in out.items())
    (HERE / "large.vectors.json").write_text("{" + lines + "}\n")


def main():
    if sys.argv[1] == "--large":
        return large(sys.argv[2:])
    corpus = [pathlib.Path(f).read_text(errors="replace")[:1_000_000] for f in sys.argv[1:]]
    corpus = [line for text in corpus for line in text.splitlines(keepends=True)] + texts(300, 99) * 3
    run("byte-level", byte_level_base(corpus), BYTE_CASES, BYTES, 1000)
    run("character", character_base(corpus), CHARACTER_CASES, LLAMA, 2000)


if __name__ == "__main__":
    main()
