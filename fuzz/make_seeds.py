#!/usr/bin/env python3
"""Writes the seeds of the fuzzers: tiny but whole models, and the texts that the tests have.

usage: fuzz/make_seeds.py OUT     (from the source root; scripts/fuzz calls it; writes OUT/TARGET/...)

A seed should open: damage of a good file goes deeper than noise. Models are a few KiB, so that a mutation hits
something that matters. Inputs that once failed are committed in fuzz/found/TARGET and run first, always.
"""
import json
import pathlib
import struct
import sys

OUT = pathlib.Path(sys.argv[1])
DATA = pathlib.Path("tests/data")
SIZES = {"D": 8, "H": 2, "G": 1, "E": 4, "F": 8, "L": 1, "V": 24}


def put(target, name, content):
    path = OUT / target / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


# GGUF ------------------------------------------------------------------------------------------------------------------

def text(s):
    b = s.encode()
    return struct.pack("<Q", len(b)) + b


def value(v):
    if isinstance(v, bool):
        return struct.pack("<IB", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, float):
        return struct.pack("<If", 6, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + text(v)
    kind, body = (8, b"".join(map(text, v))) if isinstance(v[0], str) else \
                 (6, struct.pack(f"<{len(v)}f", *v)) if isinstance(v[0], float) else (5, struct.pack(f"<{len(v)}i", *v))
    return struct.pack("<IIQ", 9, kind, len(v)) + body


def gguf(arch, tokenizer, more, types=(0,)):
    s = dict(SIZES)
    block, size = {0: (1, 4), 8: (32, 34), 12: (256, 144)}[types[0]]
    for k in "DFE" if block > 1 else "":
        s[k] = block
    keys = {"general.architecture": arch, f"{arch}.embedding_length": s["D"], f"{arch}.attention.head_count": s["H"],
            f"{arch}.attention.head_count_kv": s["G"], f"{arch}.attention.key_length": s["E"],
            f"{arch}.feed_forward_length": s["F"], f"{arch}.block_count": s["L"], f"{arch}.context_length": 64,
            **tokenizer, **{k.replace("ARCH", arch): v for k, v in more.items()}}
    d, f, q, k = s["D"], s["F"], s["H"] * s["E"], s["G"] * s["E"]
    tensors = {"token_embd.weight": (d, s["V"]), "output_norm.weight": (d,), "blk.0.attn_norm.weight": (d,),
               "blk.0.ffn_norm.weight": (d,), "blk.0.attn_q.weight": (d, q), "blk.0.attn_k.weight": (d, k),
               "blk.0.attn_v.weight": (d, k), "blk.0.attn_output.weight": (q, d), "blk.0.ffn_gate.weight": (d, f),
               "blk.0.ffn_up.weight": (d, f), "blk.0.ffn_down.weight": (f, d)}
    if arch == "qwen2":
        tensors |= {"blk.0.attn_q.bias": (q,), "blk.0.attn_k.bias": (k,), "blk.0.attn_v.bias": (k,)}
    if arch == "qwen3":
        tensors |= {"blk.0.attn_q_norm.weight": (s["E"],), "blk.0.attn_k_norm.weight": (s["E"],)}
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(text(k) + value(v) for k, v in keys.items())
    data = b""
    for name, dims in tensors.items():
        kind = types[0] if len(dims) > 1 else 0
        count = 1
        for x in dims:
            count *= x
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += b"\1" * (count // block * size if kind else count * 4)
        data += b"\0" * (-len(data) % 32)
    return head + b"\0" * (-len(head) % 32) + data


SPM = {"tokenizer.ggml.model": "llama",
       "tokenizer.ggml.tokens": ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "a", "b", "aa", "\u2581a", "on", "o", "n"],
       "tokenizer.ggml.token_type": [2, 3, 3, 6, 1, 1, 1, 1, 1, 1, 1, 4],
       "tokenizer.ggml.scores": [0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, -4.0, -5.0, -6.0, -7.0, -8.0],
       "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0}
BPE = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "qwen2",
       "tokenizer.ggml.tokens": ["a", "b", "o", "n", "\u0120", "on", "\u0120a", "<|im_end|>"],
       "tokenizer.ggml.token_type": [1, 1, 1, 1, 1, 1, 1, 3], "tokenizer.ggml.merges": ["o n", "\u0120 a"],
       "tokenizer.ggml.eos_token_id": 7, "tokenizer.ggml.add_bos_token": False}
PRES = ["default", "llama-bpe", "gpt-2", "falcon", "mpt", "smollm", "deepseek-llm", "starcoder", "gpt-4o"]


def ggufs():
    put("gguf", "llama", gguf("llama", SPM, {"general.name": "tiny", "general.sampling.temp": 0.7, "general.sampling.top_k": 20}))
    put("gguf", "qwen2", gguf("qwen2", BPE, {"ARCH.rope.freq_base": 1e6}))
    put("gguf", "qwen3", gguf("qwen3", BPE, {"ARCH.rope.scaling.type": "yarn", "ARCH.rope.scaling.factor": 4.0,
                                             "ARCH.rope.scaling.original_context_length": 16}))
    put("gguf", "linear", gguf("llama", SPM, {"ARCH.rope.scaling.type": "linear", "ARCH.rope.scaling.factor": 2.0,
                                              "tokenizer.chat_template": "{{ messages }}"}))
    put("gguf", "q8_0", gguf("llama", SPM, {}, (8,)))
    for pre in PRES:
        whole = gguf("llama", BPE | {"tokenizer.ggml.pre": pre}, {})
        put("gguf", f"pre-{pre}", whole)


# Hugging Face folders --------------------------------------------------------------------------------------------------

CONFIG = {"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4,
          "intermediate_size": 8, "num_hidden_layers": 1, "vocab_size": 24, "max_position_embeddings": 64,
          "rms_norm_eps": 1e-5, "tie_word_embeddings": True, "eos_token_id": [2]}
LAYER = {"input_layernorm": [8], "post_attention_layernorm": [8], "self_attn.q_proj": [8, 8], "self_attn.k_proj": [4, 8],
         "self_attn.v_proj": [4, 8], "self_attn.o_proj": [8, 8], "mlp.gate_proj": [8, 8], "mlp.up_proj": [8, 8],
         "mlp.down_proj": [8, 8]}
TENSORS = {"model.embed_tokens.weight": [24, 8], "model.norm.weight": [8],
           **{f"model.layers.0.{k}.weight": v for k, v in LAYER.items()}}
HF = {"added_tokens": [{"id": 5, "content": "<s>", "special": True, "lstrip": True, "normalized": False}],
      "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Prepend", "prepend": "\u2581"},
                     {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
      "pre_tokenizer": None,
      "post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                         {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"<s>": {"id": "<s>", "ids": [5], "tokens": ["<s>"]}}},
      "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                  {"type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
      "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True,
                "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab": 3, "\u2581": 4, "<0x0A>": 6, "\u2581a": 7},
                "merges": [["a", "b"], "\u2581 a"]}}
BYTES = {"added_tokens": [{"id": 4, "content": "<|im_end|>", "special": True}], "normalizer": None,
         "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
             {"type": "Split", "pattern": {"Regex": "\\p{N}{1,3}| ?\\p{L}+|\\s+(?!\\S)|\\s+"}, "behavior": "Isolated", "invert": False},
             {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]},
         "post_processor": {"type": "ByteLevel"}, "decoder": {"type": "ByteLevel"},
         "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3}, "merges": ["a b"], "ignore_merges": True}}
WORDS = {"added_tokens": [], "normalizer": {"type": "Lowercase"}, "pre_tokenizer": {"type": "Whitespace"}, "decoder": None,
         "model": {"type": "WordLevel", "unk_token": "u", "vocab": {"u": 0, "hello": 1, "world": 2}}}
META = {**HF, "normalizer": {"type": "NFKC"}, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
    {"type": "Digits", "individual_digits": True}, {"type": "Punctuation", "behavior": "MergedWithPrevious"},
    {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": True}]},
    "decoder": {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always"}}


def safetensors(tensors, kind="F32", size=4):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, shape in tensors.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1) * size
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(data), len(data) + count]}
        data += b"\1" * count
    head = json.dumps(header, separators=(",", ":")).encode()
    return struct.pack("<Q", len(head)) + head + data


def folder(name, files):
    out = b""
    for file, content in files.items():
        body = content if isinstance(content, bytes) else content.encode() if isinstance(content, str) else json.dumps(content).encode()
        out += f"=== {file}\n".encode() + body + b"\n"
    put("folder", name, out)


ADVICE = {"eos_token_id": 2, "do_sample": True, "temperature": 0.7, "top_p": 0.8, "min_p": 0.1, "top_k": 20, "repetition_penalty": 1.05}


def folders():
    weights = safetensors(TENSORS)
    names = sorted(TENSORS)
    one, two = {n: TENSORS[n] for n in names[:5]}, {n: TENSORS[n] for n in names[5:]}
    index = {"metadata": {}, "weight_map": {**{n: "a.safetensors" for n in one}, **{n: "b.safetensors" for n in two}}}
    config = {"bos_token": "<s>", "eos_token": {"content": "<s>"}, "add_bos_token": True, "chat_template": "{{ messages[0].content }}"}
    folder("plain", {"config.json": CONFIG, "model.safetensors": weights})
    folder("whole", {"config.json": CONFIG, "generation_config.json": ADVICE, "tokenizer_config.json": config,
                     "tokenizer.json": HF, "model.safetensors": weights})
    folder("shards", {"config.json": CONFIG, "model.safetensors.index.json": index, "a.safetensors": safetensors(one),
                      "b.safetensors": safetensors(two, "BF16", 2)})
    gemma = {"model_type": "gemma3", "text_config": {**CONFIG, "model_type": "gemma3_text"}, "vision_config": {"hidden_size": 4}}
    norms = {"self_attn.q_norm": [4], "self_attn.k_norm": [4], "pre_feedforward_layernorm": [8], "post_feedforward_layernorm": [8]}
    whole = {**TENSORS, **{f"model.layers.0.{n}.weight": t for n, t in norms.items()}}
    part = {n.replace("model.", "model.language_model.", 1): t for n, t in whole.items()}
    folder("multimodal", {"config.json": gemma, "model.safetensors": safetensors({**part, "model.vision_tower.x.weight": [2, 2]})})
    for kind, scaling in {"llama3": {"factor": 8, "low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 16},
                          "yarn": {"factor": 4, "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 0.5},
                          "longrope": {"short_factor": [1, 1.5], "long_factor": [2, 3], "original_max_position_embeddings": 32},
                          "dynamic": {"factor": 2}}.items():
        folder(f"rope-{kind}", {"config.json": {**CONFIG, "rope_scaling": {"rope_type": kind, **scaling}}, "model.safetensors": weights})


def tokenizers():
    config = json.dumps({"bos_token": "<s>", "add_bos_token": True})
    for name, spec in {"spm": HF, "bytes": BYTES, "words": WORDS, "meta": META}.items():
        put("tokenizer", name, json.dumps(spec) + "\0" + "\0abab <s> ab\n")
    put("tokenizer", "config", json.dumps(HF) + "\0" + config + "\0ab")
    put("tokenizer", "fixture", (DATA / "fixtures/qwen2/tokenizer.json").read_bytes())


# Texts -----------------------------------------------------------------------------------------------------------------

CHAT = {"messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": [{"type": "text", "text": "part"}]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}}]}


def templates():
    for path in sorted(DATA.glob("templates/*/*.jinja")):
        if path.stat().st_size < 7000:
            put("template", path.stem, path.read_bytes())
    rows = [json.loads(line) for line in (DATA / "templates/snippets.jsonl").read_text().rstrip("\n").split("\n")]
    for n, row in enumerate(row for row in rows if "source" in row):
        put("template", f"snippet-{n}", row["source"])
    put("template", "own", "{% for m in messages %}{{ m.role + m.content|tojson }}{% endfor %}\0" + json.dumps(CHAT))


def requests():
    generation = {"model": "m", "temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1,
                  "presence_penalty": 0.5, "frequency_penalty": -0.5, "max_tokens": 5, "seed": -1, "stop": ["a", "b"], "n": 2,
                  "stop_token_ids": [1], "logit_bias": {"5": -100}, "ignore_eos": True, "stream": True, "cache_salt": "s",
                  "stream_options": {"include_usage": True}, "kvilt": {"policy": "sparsex", "budget": 0.1, "publish": False}}
    put("request", "chat", json.dumps({**CHAT, **generation, "logprobs": True, "top_logprobs": 3, "tool_choice": "auto"}))
    put("request", "completion", json.dumps({**generation, "prompt": ["a", [1, 2]], "logprobs": 2}))
    put("request", "ids", json.dumps({"prompt": [1, 2, 3.0], "echo": True, "max_completion_tokens": 0}))
    put("request", "tokenize", json.dumps({"prompt": "a", "add_special_tokens": False, "return_token_strs": True}))
    put("request", "detokenize", json.dumps({"tokens": [1, 2]}))
    put("request", "documents", json.dumps({"documents": [{"title": "t", "text": "d"}], "messages": CHAT["messages"]}))
    put("request", "messages", json.dumps({"max_tokens": 5, "system": "s", "stop_sequences": ["a"], "tools": [
        {"name": "f", "input_schema": {"type": "object"}}], "messages": [
            {"role": "user", "content": "q"}, {"role": "assistant", "content": [
                {"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}},
                {"type": "tool_use", "id": "1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "r"}]}]}))
    put("request", "responses", json.dumps({"instructions": "i", "store": True, "metadata": {"a": "b"}, "max_output_tokens": 5,
        "text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "tools": [{"type": "function", "name": "f"}],
        "tool_choice": "auto", "input": [{"role": "user", "content": [{"type": "input_text", "text": "t"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "r"}]},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "o"}]}))
    put("request", "embeddings", json.dumps({"input": ["a", [1, 2]], "dimensions": 4, "encoding_format": "base64"}))
    put("request", "rerank", json.dumps({"query": "q", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": True}))
    put("request", "llama", json.dumps({"prompt": [1, "a", 2], "n_predict": 5, "logit_bias": [[1, False]], "mirostat": 0,
        "response_fields": ["timings/prompt_n"], "repeat_penalty": 1.1, "content": "c", "with_pieces": True}))
    put("request", "infill", json.dumps({"input_prefix": "a", "input_suffix": "b", "input_extra": [{"filename": "f", "text": "t"}]}))
    calls = ["<think>\nhm\n</think>\n\nLet me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}\"}}\n"
             "</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
             '{"id": "1", "name": "f", "parameters": {"a": [1, {"b": null}]}}', "```json\n{\"name\": \"f\", \"parameters\": {}}\n```",
             '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a": 1}[TOOL_CALLS]g[CALL_ID]2[ARGS]{}',
             "<tool_call>\n<function=f>\n<parameter=a>\nx\n</parameter>\n<parameter=b>\nTrue\n</parameter>\n</function>\n"
             "</tool_call>"]
    for n, call in enumerate(calls):
        put("answer", f"call-{n}", bytes([(0, 1, 1, 2, 3)[n], 5]) + call.encode())
    harmony = ["<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant to=functions.f<|channel|>commentary json"
               "<|message|>{\"a\": \"<|call|>\"}<|call|>", "<|channel|>final<|message|>Yes.<|return|>",
               "<|channel|>commentary to=functions.none json<|message|>{}"]
    for n, answer in enumerate(harmony):
        put("answer", f"harmony-{n}", bytes([16, 5]) + answer.encode())
    put("peer", "hello", struct.pack("<II", 1, 512) + bytes(16))
    put("peer", "ask", struct.pack("<IiQ", 2, 1, 7) + bytes(16) + struct.pack("<3i", 5, 6, 7))
    put("peer", "rows", struct.pack("<IiQiI", 3, 0, 7, 1, 0) + bytes(64))
    put("peer", "end", struct.pack("<IIQ", 4, 2, 7))
    put("peer", "cancel", struct.pack("<IIQ", 5, 0, 7))
    put("lark", "sums", 'start: sum\n?sum: NUMBER (("+" | "-"i) NUMBER)*~1..3 -> s\n%import common.NUMBER\n%ignore / +/\n')
    put("lark", "words", 'start: [A] /[^a-c\\W]{2,3}(?:b|\\x41)*/is "a".."z" "\\u00e9"\nA.2: "x"~2 | B\nB: /[\\s\\]]/\n')
    put("piece", "first", record(5, 3))
    put("piece", "blocks", record(7, 300, blocks=3))
    put("piece", "owned", record(8, 3, owner=True))
    annexes = struct.pack("<IiiiQ", 2, 0, 0, 3, 5) + bytes([1, 2, 3, 4, 5, 0, 0, 0]) + struct.pack("<IiiiQ", 3, 0, 1, 2, 8) + bytes(8)
    put("piece", "annexes", annexes)
    put("piece", "child", record(6, 300, parent=5, behind=True, marks=[(0, 3), (2, 300)], clean=[(2, 300)]))
    framed = [(record(4, 3, blocks=3), bytes(72)), (record(5, 3, owner=True), bytes(72)), (record(6, 300, parent=5, behind=True, marks=[(0, 3)]), bytes(range(240)) * 30)]
    framed.insert(2, (b"", annexes))
    put("export", "frames", b"\1" + b"".join(struct.pack("<HH", len(r), len(v)) + r + v for r, v in framed))
    put("export", "raw", b"\0" + b"kvilt-ce" + struct.pack("<II", 3, 2) + bytes(64))
    put("head", "post", "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nAuthorization: Bearer x")
    put("head", "chunked", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nRange: bytes=0-1\r\nAccept-Encoding: gzip")
    disposition = 'Content-Disposition: form-data; name="file"; filename="a.txt"'
    put("parts", "form", f"multipart/form-data; boundary=xx\n--xx\r\n{disposition}\r\n\r\none\r\n--xx\r\n\r\ntwo\r\n--xx--\r\n")
    put("parts", "lines", 'application/x-ndjson\n{"text": "one"}\r\n\n{"text": "two"}')
    put("plan", "empty", b"\0")
    put("plan", "dense", bytes([3, 1, 16, 1, 1, 1, 4, 8, 0, 1, 4, 0, 1, 4, 16, 1, 0, 0, 0, 0, 0]) * 2)


# What is stored ---------------------------------------------------------------------------------------------------------

def record(id, tokens, parent=0, behind=False, marks=(), clean=(), blocks=0, owner=False):
    pos = 2 if parent else 0
    flags = 3 | 4 * behind | 8 * (blocks > 0) | 16 * owner
    out = struct.pack("<QQ32xiiIIIIII", id, parent, pos, pos, flags, 24, tokens, len(marks), len(clean), blocks)
    out += bytes(16 * (behind + owner)) + struct.pack(f"<{tokens}i", *range(tokens))
    out += b"".join(struct.pack("<ii", *mark) for mark in marks)
    out += b"".join(struct.pack("<iiii", *note, 1, 0) + bytes(16) for note in clean)
    return out + bytes(8 * ((tokens + 255) // 256) * max(1, blocks))


def reply(value):
    """As a Redis says it: numbers, bytes, lists, None; a text is a line of its own."""
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(reply, value))
    if isinstance(value, str):
        return value.encode() + b"\r\n"
    return b"$-1\r\n" if value is None else b"$%d\r\n" % len(value) + value + b"\r\n"


def redis():
    """All that it says, in the order in which fuzz/redis_fuzz.cc asks. Who begins with 16 zeros is signed there."""
    def ids(*numbers):
        return [b"%016x" % n for n in numbers]

    def stored(*args, **more):
        return bytes(16) + record(*args, **more)

    def line(word, id):
        return [b"1-%d" % id, [word, *ids(id)]]

    hello, log = ["+PONG"], [[[b"1-1", [b"put", *ids(5)]]]]
    listing = [*log, [b"0", ids(5, 6)], stored(5, 3), stored(6, 3, parent=5)]
    def put(name, *said):
        globals()["put"]("redis", name, b"".join(map(reply, said)))
    put("empty", *hello, [], [b"0", []], None, None, None, None)
    put("pages", *hello, [], [b"7", ids(6)], [b"0", ids(5)], stored(5, 3), stored(6, 3, parent=5))
    put("lines", *hello, *listing, [[b"log", [line(b"put", 7), line(b"del", 5), line(b"put", 7)]]], 1, 1, 1, 100, 100)
    put("news", *hello, *listing, [[b"log", [line(b"put", 8)]]], stored(8, 300), 1, 1, 100, 100, 100, -2, -2, None)
    put("values", *hello, *listing, *[x for _ in range(4) for x in (None, 100, 100, 100, 100)], bytes(72), 1, 1, 1)
    put("refusals", *hello, [], [b"0", ids(5, 6)], "-NOPERM no", "-WRONGTYPE no")
    put("damaged", *hello, [], [b"0", ids(5, 6)], b"x" * 40, None, 1, 1, b"1-1")


def sessions():
    """In the shape of src/kv/rows_for_test.h, without checksums."""
    def put(name, positions, follow=0, pieces=(), keeps=((0, -1),) * 6, runs=None):
        layers = [runs or [(0, positions, -1)]] * 3
        out = b"kvilt-kv" + struct.pack("<8IQ16x", 1, 0, 3, 2, 4, positions, len(pieces), follow, sum(map(len, layers)))
        out += struct.pack(f"<{positions + follow}i", *range(positions + follow))
        out += b"".join(struct.pack("<3i", *piece) for piece in pieces) + b"".join(struct.pack("<2i", *k) for k in keeps)
        out += struct.pack("<3I", *map(len, layers)) + b"".join(struct.pack("<3i", *run) for of in layers for run in of)
        globals()["put"]("session", name, out + bytes(range(256)))
    put("dense", 12)
    put("follow", 9, follow=2)
    put("windows", 20, keeps=((0, -1), (2, 5), (0, 0), (30, 1), (1, 3), (0, 9)))
    put("pieces", 20, pieces=((3, 6, 2), (12, 4, -9)), runs=[(0, 3, -1), (3, 4, 0), (7, 2, -1), (9, 3, -1), (12, 4, 1), (16, 4, -1)])
    put("both", 20, pieces=((3, 6, 2),), keeps=((1, 16), (0, -1), (0, 15), (4, 3), (20, 0), (0, -1)),
        runs=[(0, 3, -1), (3, 6, 0), (9, 11, -1)])


ggufs()
folders()
tokenizers()
templates()
requests()
redis()
sessions()
