// text/tokenizer.cc: see tokenizer.h. encode() = repair UTF-8, cut at special tokens, then for each text between:
// normalise, pre-split, segment each piece (remembering the pieces of this call); decode() = join the tokens' bytes.
#include "text/tokenizer.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/regex.h"
#include "text/safe_cuts.h"
#include "text/segmenter.h"
#include "text/unicode.h"
#include "text/vocabulary.h"

namespace kvilt {
namespace {

constexpr size_t kMaxText = 512u << 20;
constexpr const char* kMetaspace = "\xE2\x96\x81";  // SentencePiece's spelling of a space

// Names under which chat models end a turn or a text, whatever their files call EOS.
constexpr std::string_view kEndNames[] = {"<|im_end|>",
                                          "<|endoftext|>",
                                          "<|eot_id|>",
                                          "<|end_of_text|>",
                                          "<|eom_id|>",
                                          "<end_of_turn>",
                                          "<turn|>",
                                          "<|end|>",
                                          "<|return|>",
                                          "<|call|>",
                                          "<EOT>",
                                          "<|eot|>",
                                          "<|END_OF_TURN_TOKEN|>",
                                          "<｜end▁of▁sentence｜>",
                                          "<|endofturn|>",
                                          "<|eos|>"};

void complete_spm(TokenizerSpec& spec) {
  using Kind = NormalizeStep::Kind;
  if (!spec.normalize.empty() || !spec.split.empty()) return;
  if (spec.remove_extra_spaces) {
    spec.normalize.push_back({.kind = Kind::kReplace, .pattern = R"(\A +| +\z)", .content = "", .literal = false});
    spec.normalize.push_back({.kind = Kind::kReplace, .pattern = " {2,}", .content = " ", .literal = false});
  }
  if (spec.add_space_prefix) spec.normalize.push_back({.kind = Kind::kPrepend, .content = kMetaspace});
  spec.normalize.push_back({.kind = Kind::kReplace, .pattern = " ", .content = kMetaspace});
  if (spec.decode_replace.empty()) spec.decode_replace.push_back({kMetaspace, " "});
  spec.strip_start = spec.add_space_prefix ? 1 : 0;
  const auto is_byte = [](TokenKind kind) { return kind == TokenKind::kByte; };
  spec.byte_fallback = spec.byte_fallback || std::ranges::any_of(spec.kinds, is_byte) ||
                       std::ranges::any_of(spec.tokens, [](const auto& t) { return byte_of_spelling(t) >= 0; });
  spec.fuse_unknown = true;
}

Status complete(TokenizerSpec& spec) {
  if (spec.model == "gpt2") spec.model = "bpe";
  if (spec.model == "llama") spec.model = "spm";
  if (spec.model == "spm") {
    complete_spm(spec);
  } else if (spec.model == "bpe" && !spec.pre.empty()) {
    KVILT_ASSIGN(NamedPre pre, named_pre_tokenizer(spec.pre));
    spec.normalize = std::move(pre.normalize);
    spec.split = std::move(pre.split);
    spec.ignore_merges = pre.ignore_merges;
    if (spec.add_space_prefix) spec.split.insert(spec.split.begin(), {.kind = SplitStep::Kind::kPrefixSpace});
  }
  spec.byte_level = spec.byte_level && spec.model == "bpe";
  return {};
}

Status check_ids(const TokenizerSpec& spec) {
  const auto check = [&](int32_t id, const char* what) -> Status {
    if (id >= 0 && static_cast<size_t>(id) < spec.tokens.size()) return {};
    return error(Code::kCorrupt, "tokenizer: the {} token {} is not one of {} tokens", what, id, spec.tokens.size());
  };
  if (spec.bos) KVILT_TRY(check(*spec.bos, "BOS"));
  if (spec.eos) KVILT_TRY(check(*spec.eos, "EOS"));
  if (spec.eot) KVILT_TRY(check(*spec.eot, "end-of-turn"));
  if (spec.unknown) KVILT_TRY(check(*spec.unknown, "unknown"));
  for (const int32_t id : spec.prefix) KVILT_TRY(check(id, "prefix"));
  for (const int32_t id : spec.suffix) KVILT_TRY(check(id, "suffix"));
  for (const int32_t id : spec.more_ends) KVILT_TRY(check(id, "end"));
  if (spec.strip_start < 0)
    return error(Code::kInvalidArgument, "tokenizer: strip_start {} is negative", spec.strip_start);
  return {};
}

// In harmony's vocabularies, which have all of these, <|end|> ends a message, and the answer goes on.
int32_t end_of_message(const Vocabulary& vocabulary) {
  for (const char* name : {"<|return|>", "<|call|>", "<|channel|>"}) {
    if (vocabulary.find_any(name) < 0) return -1;
  }
  return vocabulary.find_any("<|end|>");
}

std::vector<int32_t> find_ends(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  std::vector<int32_t> ends = spec.more_ends;
  if (spec.eos) ends.push_back(*spec.eos);
  if (spec.eot) ends.push_back(*spec.eot);
  for (const std::string_view name : kEndNames) {
    const int32_t id = vocabulary.find_any(name);
    if (id < 0) continue;
    const TokenKind kind = vocabulary.kind(id);
    if (kind == TokenKind::kControl || kind == TokenKind::kUserDefined) ends.push_back(id);
  }
  if (const int32_t id = end_of_message(vocabulary); spec.eos != id) std::erase(ends, id);
  std::ranges::sort(ends);
  ends.erase(std::unique(ends.begin(), ends.end()), ends.end());
  return ends;
}

// Repairs a text that is not UTF-8 and moves the trusted ranges along. A border inside a repaired part moves inwards.
struct Repaired {
  std::string text;
  std::vector<ByteRange> trusted;
};
Repaired repair(std::string_view text, std::span<const ByteRange> trusted) {
  struct Edit {
    ByteRange from, to;
  };
  Repaired out;
  std::vector<Edit> edits;
  for (size_t i = 0; i < text.size();) {
    const CodePoint c = first_code_point(text.substr(i));
    if (c.value < 0) {
      edits.push_back({{i, i + c.size}, {out.text.size(), out.text.size() + kReplacementCharacter.size()}});
      out.text.append(kReplacementCharacter);
    } else {
      out.text.append(text.substr(i, c.size));
    }
    i += c.size;
  }
  const auto move = [&](size_t at, bool is_begin) {
    auto edit =
        std::lower_bound(edits.begin(), edits.end(), at, [](const Edit& e, size_t x) { return e.from.begin < x; });
    if (edit == edits.begin()) return at;
    --edit;
    if (at < edit->from.end) return is_begin ? edit->to.end : edit->to.begin;
    return edit->to.end + (at - edit->from.end);
  };
  for (const ByteRange& r : trusted) out.trusted.push_back({move(r.begin, true), move(r.end, false)});
  return out;
}

// Makes ranges sorted, inside the text and disjoint; what two of them share belongs to the earlier, larger one.
std::vector<ByteRange> in_order(std::span<const ByteRange> ranges, size_t size) {
  std::vector<ByteRange> sorted(ranges.begin(), ranges.end());
  std::ranges::sort(sorted, [](const ByteRange& a, const ByteRange& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
  });
  std::vector<ByteRange> out;
  size_t done = 0;
  for (ByteRange r : sorted) {
    r.begin = std::max(r.begin, done);
    r.end = std::min(r.end, size);
    if (r.begin >= r.end) continue;
    out.push_back(r);
    done = r.end;
  }
  return out;
}

// Whether every byte of a text gets into a token, and NFC is all that may make fewer bytes of it.
bool takes_every_byte(const TokenizerSpec& spec) {
  const auto nfc = [](const NormalizeStep& step) { return step.kind == NormalizeStep::Kind::kNfc; };
  const auto removes = [](const SplitStep& step) { return step.behavior == SplitStep::Behavior::kRemoved; };
  const auto strips = [](const AddedToken& token) { return token.lstrip || token.rstrip; };
  return spec.byte_level && std::ranges::all_of(spec.normalize, nfc) && std::ranges::none_of(spec.split, removes) &&
         std::ranges::none_of(spec.added, strips);
}

// The pieces that one call has seen; their ids are in the call's own result. Direct-mapped: a collision replaces the
// older piece, so no text can make it slow.
class PieceCache {
 public:
  static constexpr size_t kLongest = 48;
  explicit PieceCache(size_t text_size) {
    size_t slots = 64;
    while (slots < kMaxSlots && slots * 32 < text_size) slots *= 2;
    slots_.resize(slots);
  }
  struct Slot {
    const char* data = nullptr;
    uint32_t size = 0, count = 0;
    size_t at = 0;  // the ids: result[at, at + count)
  };
  Slot& slot(std::string_view piece) { return slots_[text_hash(piece) & (slots_.size() - 1)]; }
  static bool holds(const Slot& slot, std::string_view piece) {
    return slot.size == piece.size() && slot.data != nullptr && std::memcmp(slot.data, piece.data(), piece.size()) == 0;
  }

 private:
  static constexpr size_t kMaxSlots = 16384;
  std::vector<Slot> slots_;
};

}  // namespace

struct Tokenizer::Parts {
  TokenizerSpec spec;  // without what the other parts hold
  Vocabulary vocabulary;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  std::unique_ptr<Segmenter> segmenter;
  std::unique_ptr<SafeCuts> cuts;  // null: pieces are words already
  std::vector<int32_t> ends;
  size_t longest_token = 0;  // bytes of text that one token stands for at most; 0: unknown

  struct Call {  // the state of one encode()
    std::vector<int32_t> ids;
    SegmentScratch scratch;
    PieceCache cache;
    std::vector<std::unique_ptr<std::string>> texts;  // that the cache points into
  };
  Status encode_part(std::string_view text, Lead lead, Call& call) const;
  void append_piece(std::string_view piece, Call& call) const;
};

void Tokenizer::Parts::append_piece(std::string_view piece, Call& call) const {
  if (piece.size() > PieceCache::kLongest) return segmenter->append(piece, call.scratch, call.ids);
  PieceCache::Slot& slot = call.cache.slot(piece);
  if (PieceCache::holds(slot, piece)) {
    for (size_t i = 0; i < slot.count; ++i) call.ids.push_back(int32_t{call.ids[slot.at + i]});
    return;
  }
  const size_t at = call.ids.size();
  segmenter->append(piece, call.scratch, call.ids);
  slot = {piece.data(), static_cast<uint32_t>(piece.size()), static_cast<uint32_t>(call.ids.size() - at), at};
}

Status Tokenizer::Parts::encode_part(std::string_view text, Lead lead, Call& call) const {
  auto normalized = std::make_unique<std::string>();
  KVILT_ASSIGN(const bool changed, normalizer.run(text, lead != Lead::kContinues, *normalized));
  if (changed) {
    call.texts.push_back(std::move(normalized));
    text = *call.texts.back();
  }
  PieceList list;
  KVILT_TRY(pre_tokenizer.run(text, lead, list));
  std::string bytes;
  for (const ByteRange& range : list.pieces) {
    const std::string_view piece = list.text.substr(range.begin, range.end - range.begin);
    if (pre_tokenizer.spells_bytes() && spec.byte_level) {
      unspell_bytes(piece, bytes);
      segmenter->append(bytes, call.scratch, call.ids);
    } else if (cuts) {
      cuts->for_each(piece, [&](std::string_view part) { append_piece(part, call); });
    } else {
      append_piece(piece, call);
    }
  }
  if (list.own) call.texts.push_back(std::move(list.own));
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::create(TokenizerSpec spec) {
  KVILT_TRY(complete(spec));
  KVILT_TRY(check_ids(spec));
  auto parts = std::make_unique<Parts>();
  const bool bounded = takes_every_byte(spec);
  KVILT_ASSIGN(parts->vocabulary, Vocabulary::create(spec, spec.byte_level));
  KVILT_ASSIGN(parts->normalizer, Normalizer::create(std::move(spec.normalize)));
  KVILT_ASSIGN(parts->pre_tokenizer, PreTokenizer::create(std::move(spec.split)));
  KVILT_ASSIGN(parts->added, AddedTokens::create(spec, parts->vocabulary));
  KVILT_ASSIGN(parts->segmenter, Segmenter::create(spec, parts->vocabulary));
  if (!spec.byte_level && spec.model != "wordlevel")
    parts->cuts = std::make_unique<SafeCuts>(parts->vocabulary, kMetaspace);
  parts->ends = find_ends(spec, parts->vocabulary);
  for (int32_t id = 0; bounded && id < parts->vocabulary.size(); ++id)
    parts->longest_token = std::max(parts->longest_token, parts->vocabulary.piece(id).size());
  if (spec.prefix.empty() && spec.add_bos && spec.bos) spec.prefix = {*spec.bos};
  if (spec.suffix.empty() && spec.add_eos && spec.eos) spec.suffix = {*spec.eos};
  spec.tokens = {};
  spec.merges = {};
  spec.merge_ids = {};
  spec.scores = {};
  parts->spec = std::move(spec);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(parts)));
}

Result<std::vector<int32_t>> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  if (text.size() > kMaxText) return error(Code::kTooLong, "a text of {} bytes is too long to tokenize", text.size());
  std::vector<ByteRange> trusted = in_order(options.trusted, text.size());
  Repaired repaired;
  if (!is_utf8(text)) {
    repaired = repair(text, trusted);
    text = repaired.text;
    trusted = in_order(repaired.trusted, text.size());
  }
  // Well-behaved patterns take 0.02 us a byte.
  const Regex::TimeLimit time(10 + 2e-6 * static_cast<double>(text.size()));
  Parts::Call call{{}, {}, PieceCache(text.size()), {}};
  call.ids.reserve(text.size() / 4 + 8);
  if (options.add_special) call.ids = parts_->spec.prefix;
  const bool everywhere = options.parse_special && options.trusted.empty();
  for (const TextPart& cut : parts_->added.cut(text, everywhere, trusted)) {
    if (cut.id >= 0) {
      call.ids.push_back(cut.id);
    } else {
      const std::string_view part = text.substr(cut.range.begin, cut.range.end - cut.range.begin);
      const bool first = cut.range.begin == 0;
      KVILT_TRY(parts_->encode_part(part,
                                    !first || options.after_special ? Lead::kSpecial
                                    : options.continues             ? Lead::kContinues
                                                                    : Lead::kStart,
                                    call));
    }
  }
  if (options.add_special) call.ids.insert(call.ids.end(), parts_->spec.suffix.begin(), parts_->spec.suffix.end());
  return std::move(call.ids);
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  Detokenizer stream(*this, {.skip_special = skip_special, .shown = {}, .at_start = true});
  std::string text;
  for (const int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return parts_->vocabulary.contains(id) ? parts_->vocabulary.decoded(id) : std::string_view();
}

std::optional<int64_t> Tokenizer::most_bytes(int64_t tokens) const {
  if (parts_->longest_token == 0) return std::nullopt;
  constexpr int64_t kNfc = 3;  // canonical composition makes a third at best: two bytes of six, three of nine
  return tokens * static_cast<int64_t>(parts_->longest_token) * kNfc;
}

int Tokenizer::vocab_size() const { return parts_->vocabulary.size(); }
bool Tokenizer::is_special(int32_t id) const {
  if (!parts_->vocabulary.contains(id)) return false;
  const TokenKind kind = parts_->vocabulary.kind(id);
  return kind == TokenKind::kControl || kind == TokenKind::kUnknown;
}
std::optional<int32_t> Tokenizer::bos() const { return parts_->spec.bos; }
std::optional<int32_t> Tokenizer::eos() const { return parts_->spec.eos; }
std::span<const int32_t> Tokenizer::end_ids() const { return parts_->ends; }
int Tokenizer::strip_start() const { return parts_->spec.strip_start; }

std::optional<int32_t> Tokenizer::id_of(std::string_view token) const {
  int32_t id = parts_->vocabulary.find_any(token);
  std::string bytes;
  if (id < 0 && parts_->spec.byte_level && unspell_bytes(token, bytes)) id = parts_->vocabulary.find_any(bytes);
  if (id < 0) return std::nullopt;
  return id;
}

}  // namespace kvilt
