#!/usr/bin/env python3
"""Writes a GGUF model again with all its matrices in one format, so that every engine can read the same weights.

usage: rewrite_gguf.py MODEL.gguf OUT.gguf --type Q8_0|Q4_0|F16

Vectors (norms, biases), metadata and tokenizer stay as they are. A matrix that already has the format is copied bit for
bit; the others are dequantised to fp32 and rounded again by the format's plain rule (no importance weighting), which
costs quality: these files are for measuring speed, not answers. The vocabulary matrix: where the file holds it twice
(token_embd and output of a tied model, in two types) the finer one is kept as token_embd and `output` is left out,
which every reader takes as "tied"; --untied keeps both.
Needs the packages numpy and gguf.
"""
import argparse
import pathlib

import gguf
import numpy

SKIP = ("GGUF.version", "GGUF.tensor_count", "GGUF.kv_count", "general.architecture", "general.file_type")
FILE_TYPES = {"Q8_0": gguf.LlamaFileType.MOSTLY_Q8_0, "Q4_0": gguf.LlamaFileType.MOSTLY_Q4_0, "F16": gguf.LlamaFileType.MOSTLY_F16}


def copy_fields(reader, writer, target):
    for field in reader.fields.values():
        if field.name in SKIP:
            continue
        kind = field.types[0]
        sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(field.name, field.contents(), kind, sub_type=sub)
    writer.add_file_type(FILE_TYPES[target.name])


def rounded(tensor, target):
    """The tensor's rows in the target format, in slices: the vocabulary's fp32 by itself would be half a gigabyte."""
    rows, step = tensor.data, 8192
    parts = [gguf.quants.quantize(gguf.quants.dequantize(rows[i:i + step], tensor.tensor_type), target) for i in range(0, len(rows), step)]
    return numpy.concatenate(parts)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--type", choices=FILE_TYPES, required=True)
    parser.add_argument("--untied", action="store_true", help="keep both vocabulary matrices where the file has two")
    args = parser.parse_args()
    target = gguf.GGMLQuantizationType[args.type]
    reader = gguf.GGUFReader(args.model)
    tensors = {t.name: t for t in reader.tensors}
    if not args.untied and "output.weight" in tensors:
        output = tensors.pop("output.weight")
        if output.n_bytes >= tensors["token_embd.weight"].n_bytes:
            tensors["token_embd.weight"] = output
    temporary = args.out.with_suffix(".part")
    writer = gguf.GGUFWriter(temporary, reader.fields["general.architecture"].contents())
    copy_fields(reader, writer, target)
    for name, tensor in tensors.items():
        if len(tensor.shape) == 1 or tensor.tensor_type == target:
            data, kind = tensor.data, tensor.tensor_type
        else:
            data, kind = rounded(tensor, target), target
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    temporary.rename(args.out)  # a reader never sees half a file


main()
