// apps/info.cc: kvilt info and kvilt tokenize: what a model file holds, and how it cuts text.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "apps/bench/rates.h"
#include "apps/command.h"
#include "apps/flags.h"
#include "base/error.h"
#include "engine/options.h"
#include "kernels/dispatch.h"
#include "model/model_file.h"
#include "policy/policy.h"
#include "tensor/kv_row.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

// Each weight type and shape of a model once, with what serves it here; rates: measured, of one row and of 512.
Json kernel_table(const ModelFile& file, const Backend& backend, bool measured) {
  std::map<std::tuple<DType, int64_t, int64_t>, int> shapes;  // and how many there are
  const auto add = [&](const LinearWeights& l) {
    if (l.w) ++shapes[{l.w.dtype, l.w.rows, l.w.cols}];
  };
  for (const LayerWeights& l : file.weights.layers) {
    for (const LinearWeights* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.router}) add(*w);
    for (const ExpertWeights& e : l.experts) add(e.gate), add(e.up), add(e.down);
    add(l.input.gate), add(l.input.out);
  }
  add(file.weights.lm_head);
  Json rows = Json::array();
  for (const auto& [shape, count] : shapes) {
    const auto [dtype, N, K] = shape;
    Json row = {{"type", dtype_info(dtype).name},
                {"outputs", N},
                {"inputs", K},
                {"matrices", count},
                {"kernel", kernel_of(backend, dtype)}};
    if (measured) {
      row["one_row_gb_s"] = matmul_rate(backend, {dtype, N, K}, 1).gb_s;
      row["rows_512_gop_s"] = matmul_rate(backend, {dtype, N, K}, N > 32768 ? 64 : 512).gop_s;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

void print_kernels(const Json& rows) {
  fmt::print("\n{:<6} {:>16} {:>9}  {:<38}", "type", "shape", "matrices", "kernel");
  const bool measured = !rows.empty() && rows[0].contains("one_row_gb_s");
  fmt::print("{}\n", measured ? " 1 row GB/s  512 rows GOP/s" : "");
  for (const Json& row : rows) {
    fmt::print("{:<6} {:>16} {:>9}  {:<38}", row["type"].get<std::string>(),
               fmt::format("{}x{}", row["outputs"].get<int64_t>(), row["inputs"].get<int64_t>()),
               row["matrices"].get<int>(), row["kernel"].get<std::string>());
    if (measured)
      fmt::print(" {:>10.1f} {:>15.0f}", row["one_row_gb_s"].get<double>(), row["rows_512_gop_s"].get<double>());
    fmt::print("\n");
  }
}

void info(const std::string& path, bool json, bool measured) {
  const Backend& backend = *value_or_fail(find_backend("auto"));
  const auto file = value_or_fail(open_model(path));
  for (const std::string& warning : file->warnings) fmt::print(stderr, "warning: {}\n", for_terminal(warning));
  const ModelConfig& c = file->config;
  int64_t parameters = 0;
  const auto add = [&](const Tensor& t) { parameters += t ? t.rows * t.cols : 0; };
  add(file->weights.embedding);
  for (const LayerWeights& l : file->weights.layers) {
    for (const LinearWeights* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down, &l.router}) add(w->w);
    for (const ExpertWeights& e : l.experts) {
      for (const LinearWeights* w : {&e.gate, &e.up, &e.down}) add(w->w);
    }
  }
  for (const LayerWeights& l : file->weights.layers) add(l.input.gate.w), add(l.input.out.w);
  add(file->weights.layer_embedding);
  add(file->weights.layer_projection.w);
  if (!c.tied_embeddings) add(file->weights.lm_head.w);
  const DType kv = value_or_fail(resolve({}, c, backend)).kv_dtype;
  Json out{{"name", c.name},
           {"architecture", c.arch},
           {"file", file->description},
           {"parameters", parameters},
           {"layers", c.L},
           {"width", c.D},
           {"heads", c.H},
           {"kv_heads", c.G},
           {"head_size", c.E},
           {"ffn", c.F},
           {"vocabulary", c.V},
           {"context", c.context},
           {"rope_theta", c.rope.theta},
           {"qk_norm", c.qk_norm},
           {"tied_embeddings", c.tied_embeddings},
           {"kv_bytes_per_token_f32", 2 * kv_row_bytes(DType::kF32, c.E) * c.kv_layers() * c.G},
           {"kv_bytes_per_token_bf16", 2 * kv_row_bytes(DType::kBF16, c.E) * c.kv_layers() * c.G},
           {"kv_bytes_per_token_int8", 2 * kv_row_bytes(DType::kI8, c.E) * c.kv_layers() * c.G},
           {"tokenizer", file->tokenizer ? "yes" : "none"},
           {"chat_template", file->chat_template.empty() ? "none (ChatML)" : "yes"},
           {"sampling", sampling_words(file->sampling, "nothing advised")},
           {"policies", policy_names()},
           {"reuse", c.rope.length_dependent ? "refused: RoPE depends on the prompt's length" : "yes"},
           {"fingerprint", file->fingerprint},
           {"backend", backend.name()},
           {"kv_type_auto", kv_type_name(kv)},
           {"attention", attention_of(backend, kv, c.E)}};
  const Json kernels = kernel_table(*file, backend, measured);
  if (json) {
    out["kernels"] = kernels;
    std::printf("%s\n", out.dump(1, ' ', false, Json::error_handler_t::replace).c_str());
    return;
  }
  out["policies"] = fmt::format("{}", fmt::join(policy_names(), ", "));
  for (const auto& [key, value] : out.items()) {
    fmt::print("{:<24} {}\n", key, value.is_string() ? for_terminal(value.get<std::string>()) : value.dump());
  }
  print_kernels(kernels);
}

void tokenize(const std::string& path, std::string text, bool special, bool ids_only) {
  const auto file = value_or_fail(open_model(path));
  if (!file->tokenizer) fail(path + ": has no tokenizer");
  if (text.empty() || text == "-") text.assign(std::istreambuf_iterator<char>(std::cin), {});
  EncodeOptions options;
  options.parse_special = special;
  const auto ids = value_or_fail(file->tokenizer->encode(text, options));
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids_only) {
      fmt::print("{}{}", i ? " " : "", ids[i]);
    } else {
      fmt::print(
          "{:>7}  {}\n", ids[i],
          Json(std::string(file->tokenizer->token_bytes(ids[i]))).dump(-1, ' ', false, Json::error_handler_t::replace));
    }
  }
  if (ids_only) fmt::print("\n");
}

}  // namespace

void add_info(Program& program) {
  auto app = program.app.add_subcommand("info", "what a model file holds, and which kernels serve it on this machine");
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false), measure = std::make_shared<bool>(false);
  app.add_option("MODEL", *path, "a .gguf file or a Hugging Face folder").required();
  app.add_flag("--json", *json, "as JSON");
  app.add_flag("--measure", *measure, "time each kernel on its shape: GB/s of weights for one row, GOP/s for 512");
  app.callback([path, json, measure] { info(*path, *json, *measure); });
}

void add_tokenize(Program& program) {
  auto app = program.app.add_subcommand("tokenize", "how a model cuts text");
  struct Options {
    std::string path, text;
    bool special = false, ids = false;
  };
  auto o = std::make_shared<Options>();
  app.add_option("MODEL", o->path, "a .gguf file or a Hugging Face folder").required();
  app.add_option("TEXT", o->text, "the text; - or nothing: standard input");
  app.add_flag("--special", o->special, "texts of special tokens become those tokens");
  app.add_flag("--ids", o->ids, "only the ids, on one line");
  app.callback([o] { tokenize(o->path, o->text, o->special, o->ids); });
}

}  // namespace kvilt
