// apps/info.cc: kvilt info and kvilt tokenize: what a model file holds, and how it cuts text.
#include <cstdio>
#include <iostream>
#include <iterator>

#include "base/error.h"
#include "command.h"
#include "model/model_file.h"
#include "tensor/kv_row.h"

namespace kvilt {
namespace {

using Json = nlohmann::ordered_json;

void info(const std::string& path, bool json) {
  const auto file = value_or_fail(open_model(path));
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
  if (!c.tied_embeddings) add(file->weights.lm_head.w);
  const Json out{{"name", c.name},
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
                 {"kv_bytes_per_token_f32", 2 * kv_row_bytes(DType::kF32, c.E) * c.L * c.G},
                 {"kv_bytes_per_token_int8", 2 * kv_row_bytes(DType::kI8, c.E) * c.L * c.G},
                 {"tokenizer", file->tokenizer ? "yes" : "none"},
                 {"chat_template", file->chat_template.empty() ? "none (ChatML)" : "yes"},
                 {"reuse", c.rope.length_dependent ? "refused: RoPE depends on the prompt's length" : "yes"},
                 {"fingerprint", file->fingerprint}};
  if (json) {
    std::printf("%s\n", out.dump(1).c_str());
    return;
  }
  for (const auto& [key, value] : out.items()) {
    fmt::print("{:<24} {}\n", key, value.is_string() ? value.get<std::string>() : value.dump());
  }
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
  auto* app = program.app.add_subcommand("info", "what a model file holds");
  auto path = std::make_shared<std::string>();
  auto json = std::make_shared<bool>(false);
  app->add_option("MODEL", *path, "a .gguf file or a Hugging Face folder")->required();
  app->add_flag("--json", *json, "as JSON");
  app->callback([path, json] { info(*path, *json); });
}

void add_tokenize(Program& program) {
  auto* app = program.app.add_subcommand("tokenize", "how a model cuts text");
  struct Options {
    std::string path, text;
    bool special = false, ids = false;
  };
  auto o = std::make_shared<Options>();
  app->add_option("MODEL", o->path, "a .gguf file or a Hugging Face folder")->required();
  app->add_option("TEXT", o->text, "the text; - or nothing: standard input");
  app->add_flag("--special", o->special, "texts of special tokens become those tokens");
  app->add_flag("--ids", o->ids, "ids alone, on one line");
  app->callback([o] { tokenize(o->path, o->text, o->special, o->ids); });
}

}  // namespace kvilt
