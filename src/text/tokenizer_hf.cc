// text/tokenizer_hf.cc: see tokenizer_hf.h.
#include "text/tokenizer_hf.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "text/json_reader.h"
#include "text/tokenizer.h"
#include "text/tokenizer_hf_steps.h"

namespace kvilt {
namespace {

constexpr size_t kMaxSpare = 100'000;  // ids that a file may leave unused

using Ids = std::unordered_map<std::string, int32_t>;

class HfReader {
 public:
  explicit HfReader(TokenizerSpec& spec) : spec_(spec) {}

  Status read(const Json& file) {
    const Json* model = json_member(file, "model");
    if (model == nullptr || !model->is_object()) return error(Code::kCorrupt, "tokenizer.json: no 'model'");
    KVILT_TRY(read_vocabulary(*model, json_member(file, "added_tokens")));
    KVILT_TRY(read_model(*model));
    bool byte_level = false;
    if (const Json* step = json_member(file, "normalizer")) KVILT_TRY(read_hf_normalizer(*step, spec_));
    if (const Json* step = json_member(file, "pre_tokenizer"))
      KVILT_TRY(read_hf_pre_tokenizer(*step, spec_, byte_level));
    if (const Json* step = json_member(file, "post_processor")) {
      KVILT_TRY(read_hf_post_processor(*step, spec_));
      has_post_processor_ = !spec_.prefix.empty() || !spec_.suffix.empty();
    }
    if (const Json* step = json_member(file, "decoder")) {
      KVILT_TRY(read_hf_decoder(*step, spec_));
    } else {
      spec_.join_with_space = true;
      spec_.strip_start = 1;
    }
    if (byte_level && spec_.model != "bpe") {
      return error(Code::kUnsupported, "tokenizer.json: a ByteLevel pre_tokenizer with the model '{}'", spec_.model);
    }
    spec_.byte_level = byte_level;
    return {};
  }

  Status read_config(const Json& config) {
    KVILT_TRY(named(config, "bos_token", spec_.bos));
    KVILT_TRY(named(config, "eos_token", spec_.eos));
    KVILT_ASSIGN(const bool bos, json_bool(config, "add_bos_token", false));
    KVILT_ASSIGN(const bool eos, json_bool(config, "add_eos_token", false));
    spec_.add_bos = bos && !has_post_processor_;
    spec_.add_eos = eos && !has_post_processor_;
    return {};
  }

 private:
  Status place(const std::string& text, const Json& id, bool is_added, size_t limit) {
    if (!id.is_number_integer() || id < 0 || id >= limit) {
      return error(Code::kCorrupt, "tokenizer.json: the id of token '{}' is not an integer from 0 to {}", text,
                   limit - 1);
    }
    const auto at = id.get<size_t>();
    if (at >= spec_.tokens.size()) {
      spec_.tokens.resize(at + 1);
      spec_.kinds.resize(at + 1, TokenKind::kUnused);
    }
    const bool taken = spec_.kinds[at] != TokenKind::kUnused;
    // An added token may rename an entry of the vocabulary (reserved tokens), but no two of a kind share an id.
    const bool clash =
        is_added ? spec_.kinds[at] == TokenKind::kControl || spec_.kinds[at] == TokenKind::kUserDefined : taken;
    if (clash && spec_.tokens[at] != text) {
      return error(Code::kCorrupt, "tokenizer.json: '{}' and '{}' both have the id {}", spec_.tokens[at], text, at);
    }
    spec_.tokens[at] = text;
    ids_[text] = static_cast<int32_t>(at);
    return {};
  }

  Status read_vocabulary(const Json& model, const Json* added) {
    const Json* vocab = json_member(model, "vocab");
    if (vocab == nullptr || !vocab->is_object())
      return error(Code::kUnsupported, "tokenizer.json: model.vocab is not an object of tokens and ids");
    if (added != nullptr && !added->is_array())
      return error(Code::kCorrupt, "tokenizer.json: 'added_tokens' is not a list");
    const size_t limit = 2 * (vocab->size() + (added == nullptr ? 0 : added->size())) + kMaxSpare;
    ids_.reserve(vocab->size());
    for (const auto& [text, id] : vocab->items()) {
      KVILT_TRY(place(text, id, false, limit));
      spec_.kinds[ids_[text]] = TokenKind::kNormal;
    }
    if (added == nullptr) return {};
    for (const Json& token : *added) KVILT_TRY(read_added(token, limit));
    return {};
  }

  Status read_added(const Json& token, size_t limit) {
    KVILT_ASSIGN(const std::string text, json_string(token, "content"));
    if (text.empty()) return error(Code::kCorrupt, "tokenizer.json: an added token without content");
    const Json* id = json_member(token, "id");
    if (id == nullptr) return error(Code::kCorrupt, "tokenizer.json: the added token '{}' has no id", text);
    const auto before = ids_.find(text);
    if (before != ids_.end() && *id != before->second) {
      return error(Code::kCorrupt, "tokenizer.json: '{}' has the ids {} and {}", text, before->second, id->dump());
    }
    KVILT_TRY(place(text, *id, true, limit));
    AddedToken out{.id = ids_[text]};
    KVILT_ASSIGN(const bool special, json_bool(token, "special", false));
    KVILT_ASSIGN(out.lstrip, json_bool(token, "lstrip", false));
    KVILT_ASSIGN(out.rstrip, json_bool(token, "rstrip", false));
    KVILT_ASSIGN(out.single_word, json_bool(token, "single_word", false));
    KVILT_ASSIGN(out.normalized, json_bool(token, "normalized", false));
    spec_.kinds[out.id] = special ? TokenKind::kControl : TokenKind::kUserDefined;
    spec_.added.push_back(out);
    return {};
  }

  Status read_model(const Json& model) {
    KVILT_ASSIGN(const std::string type, json_type(model, "model"));
    if (type == "WordLevel") {
      spec_.model = "wordlevel";
    } else if (type == "BPE") {
      spec_.model = "bpe";
      KVILT_TRY(read_merges(model));
    } else {
      return error(Code::kUnsupported, "tokenizer.json: the model '{}' is not supported; BPE and WordLevel are", type);
    }
    if (json_member(model, "unk_token") != nullptr) {
      KVILT_ASSIGN(const std::string unknown, json_string(model, "unk_token"));
      const auto at = ids_.find(unknown);
      if (at != ids_.end()) {
        spec_.unknown = at->second;
        if (spec_.kinds[at->second] == TokenKind::kNormal) {
          spec_.kinds[at->second] = TokenKind::kUnknown;
        }
      }
    }
    return {};
  }

  Status read_merges(const Json& model) {
    for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* value = json_member(model, affix);
      if (value != nullptr && *value != "")
        return error(Code::kUnsupported, "tokenizer.json: BPE with '{}' is not supported", affix);
    }
    const Json* dropout = json_member(model, "dropout");
    if (dropout != nullptr && (!dropout->is_number() || *dropout != 0)) {
      return error(Code::kUnsupported, "tokenizer.json: BPE with dropout gives no one tokenization");
    }
    KVILT_ASSIGN(spec_.byte_fallback, json_bool(model, "byte_fallback", false));
    KVILT_ASSIGN(spec_.fuse_unknown, json_bool(model, "fuse_unk", false));
    KVILT_ASSIGN(spec_.ignore_merges, json_bool(model, "ignore_merges", false));
    spec_.strict_merges = true;
    const Json* merges = json_member(model, "merges");
    if (merges == nullptr || !merges->is_array())
      return error(Code::kCorrupt, "tokenizer.json: BPE without a list of merges");
    spec_.merge_ids.reserve(merges->size());
    for (const Json& merge : *merges) KVILT_TRY(read_merge(merge));
    return {};
  }

  Status read_merge(const Json& merge) {
    std::string left, right;
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get<std::string>();
      right = merge[1].get<std::string>();
    } else if (merge.is_string()) {
      const std::string& both = merge.get_ref<const std::string&>();
      const size_t space = both.find(' ');
      if (space != std::string::npos) {
        left = both.substr(0, space);
        right = both.substr(space + 1);
      }
    }
    const auto a = ids_.find(left), b = ids_.find(right);
    if (a == ids_.end() || b == ids_.end()) {
      return error(Code::kCorrupt, "tokenizer.json: merge {} is not of two tokens: '{}'", spec_.merge_ids.size(),
                   merge.dump(-1, ' ', false, Json::error_handler_t::replace));
    }
    spec_.merge_ids.emplace_back(a->second, b->second);
    return {};
  }

  // A token of the config, which is a string or an object with its content.
  Status named(const Json& config, const char* key, std::optional<int32_t>& id) {
    const Json* value = json_member(config, key);
    if (value != nullptr && value->is_object()) value = json_member(*value, "content");
    if (value == nullptr) return {};
    if (!value->is_string()) return error(Code::kCorrupt, "tokenizer_config.json: '{}' is not a token", key);
    const auto at = ids_.find(value->get_ref<const std::string&>());
    if (at == ids_.end()) {
      return error(Code::kCorrupt, "tokenizer_config.json: the {} '{}' is not in the vocabulary", key,
                   value->get_ref<const std::string&>());
    }
    id = at->second;
    return {};
  }

  TokenizerSpec& spec_;
  Ids ids_;
  bool has_post_processor_ = false;
};

}  // namespace

Result<TokenizerSpec> spec_from_hf(std::string_view tokenizer_json, std::string_view config_json) {
  try {
    TokenizerSpec spec;
    HfReader reader(spec);
    KVILT_ASSIGN(const Json file, parse_json(tokenizer_json, "tokenizer.json"));
    KVILT_TRY(reader.read(file));
    if (!config_json.empty()) {
      KVILT_ASSIGN(const Json config, parse_json(config_json, "tokenizer_config.json"));
      KVILT_TRY(reader.read_config(config));
    }
    return spec;
  } catch (const nlohmann::json::exception& e) {
    return error(Code::kCorrupt, "tokenizer.json: {}", e.what());
  }
}

std::vector<std::string> leave_out_added(TokenizerSpec& spec, size_t rows) {
  const auto beyond = [&](int32_t id) { return static_cast<size_t>(id) >= rows; };
  for (size_t id = rows; id < spec.kinds.size(); ++id) {
    const TokenKind kind = spec.kinds[id];
    if (kind != TokenKind::kControl && kind != TokenKind::kUserDefined && kind != TokenKind::kUnused) return {};
  }
  if (std::ranges::any_of(spec.merge_ids,
                          [&](const auto& merge) { return beyond(merge.first) || beyond(merge.second); }))
    return {};
  std::vector<std::string> out;
  std::erase_if(spec.added, [&](const AddedToken& token) {
    if (beyond(token.id)) out.push_back(spec.tokens[static_cast<size_t>(token.id)]);
    return beyond(token.id);
  });
  spec.tokens.resize(std::min(spec.tokens.size(), rows));
  spec.kinds.resize(spec.tokens.size());
  return out;
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_hf(std::string_view tokenizer_json, std::string_view config_json) {
  KVILT_ASSIGN(TokenizerSpec spec, spec_from_hf(tokenizer_json, config_json));
  return create(std::move(spec));
}

}  // namespace kvilt
