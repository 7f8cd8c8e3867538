// text/segmenter.cc: see segmenter.h.
#include "text/segmenter.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "base/error.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

constexpr size_t kMaxMerges = 8 << 20;

// Maps pairs of ids to their merge. Open addressing: each byte of new text costs a look-up here.
class MergeTable {
 public:
  explicit MergeTable(size_t count) {
    size_t slots = 16;
    while (slots < count * 2) slots *= 2;
    slots_.resize(slots);
    mask_ = slots - 1;
  }
  void add(int32_t left, int32_t right, Merge merge) {
    size_t at = place(key(left, right));
    while (slots_[at].merge.rank != Merge::kNone) {
      if (slots_[at].key == key(left, right)) return;  // the first of two equal merges is the better one
      at = (at + 1) & mask_;
    }
    slots_[at] = {key(left, right), merge};
  }
  Merge find(int32_t left, int32_t right) const {
    const uint64_t wanted = key(left, right);
    for (size_t at = place(wanted); slots_[at].merge.rank != Merge::kNone; at = (at + 1) & mask_) {
      if (slots_[at].key == wanted) return slots_[at].merge;
    }
    return {};
  }

 private:
  struct Slot {
    uint64_t key = 0;
    Merge merge;
  };
  static uint64_t key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  size_t place(uint64_t k) const {
    k *= 0x9E3779B97F4A7C15ull;
    return (k ^ k >> 32) & mask_;
  }
  std::vector<Slot> slots_;
  size_t mask_ = 0;
};

// Characters outside the vocabulary: byte tokens if all are there, else the unknown token, else nothing.
class Fallback {
 public:
  Fallback(const TokenizerSpec& spec, const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), unknown_(spec.unknown), bytes_(spec.byte_fallback), fuse_(spec.fuse_unknown) {}

  template <class Put>
  void cover(std::string_view character, bool after_unknown, Put&& put) const {
    const bool by_bytes = bytes_ && std::ranges::all_of(character, [&](char b) {
                            return vocabulary_.of_byte(static_cast<uint8_t>(b)) >= 0;
                          });
    if (by_bytes) {
      for (const char b : character) put(vocabulary_.of_byte(static_cast<uint8_t>(b)));
    } else if (unknown_ && !(fuse_ && after_unknown)) {
      put(*unknown_);
    }
  }
  std::optional<int32_t> unknown() const { return unknown_; }

 private:
  const Vocabulary& vocabulary_;
  std::optional<int32_t> unknown_;
  bool bytes_, fuse_;
};

class BpeSegmenter : public Segmenter {
 public:
  static Result<std::unique_ptr<Segmenter>> create(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
    const size_t count = spec.merges.empty() ? spec.merge_ids.size() : spec.merges.size();
    if (count > kMaxMerges)
      return error(Code::kUnsupported, "tokenizer: {} merges are more than {}", count, kMaxMerges);
    auto bpe = std::unique_ptr<BpeSegmenter>(new BpeSegmenter(spec, vocabulary, count));
    std::string bytes;
    for (size_t rank = 0; rank < count; ++rank) {
      KVILT_TRY(bpe->add_merge(spec, rank, bytes));
    }
    return std::unique_ptr<Segmenter>(std::move(bpe));
  }

  void append(std::string_view piece, SegmentScratch& scratch, std::vector<int32_t>& ids) const override {
    if (ignore_merges_) {
      const int32_t whole = vocabulary_.find_piece(piece);
      if (whole >= 0) return ids.push_back(whole);
    }
    std::vector<Symbol>& symbols = scratch.symbols;
    symbols.clear();
    byte_level_ ? split_bytes(piece, symbols) : split_characters(piece, symbols);
    merge_symbols(symbols, [&](const Symbol& a, const Symbol& b) { return table_.find(a.id, b.id); });
    for (const Symbol& s : symbols) ids.push_back(s.id);
  }

 private:
  BpeSegmenter(const TokenizerSpec& spec, const Vocabulary& vocabulary, size_t merges)
      : vocabulary_(vocabulary),
        fallback_(spec, vocabulary),
        table_(merges),
        byte_level_(spec.byte_level),
        ignore_merges_(spec.ignore_merges) {}

  // The id of a part of a merge, which is spelled as in the file. -1: none.
  int32_t part(std::string_view spelling, std::string& bytes) const {
    if (byte_level_ && unspell_bytes(spelling, bytes)) return vocabulary_.find_piece(bytes);
    const int32_t id = vocabulary_.find_piece(spelling);
    const int byte = byte_of_spelling(spelling);
    return id < 0 && byte >= 0 && !byte_level_ ? vocabulary_.of_byte(static_cast<uint8_t>(byte)) : id;
  }

  Status add_merge(const TokenizerSpec& spec, size_t rank, std::string& bytes) {
    int32_t left = -1, right = -1;
    std::string_view text;
    if (!spec.merges.empty()) {
      text = spec.merges[rank];
      const size_t space = text.find(' ', 1);
      if (space != std::string_view::npos) {
        left = part(text.substr(0, space), bytes);
        right = part(text.substr(space + 1), bytes);
      }
    } else {
      std::tie(left, right) = spec.merge_ids[rank];
    }
    int32_t merged = -1;
    bytes.clear();
    if (vocabulary_.contains(left) && vocabulary_.contains(right)) {
      bytes.assign(vocabulary_.piece(left)).append(vocabulary_.piece(right));
      merged = vocabulary_.find_piece(bytes);
    }
    if (merged >= 0) {
      table_.add(left, right, {static_cast<uint32_t>(rank), merged});
    } else if (spec.strict_merges && (left < 0 || right < 0 || vocabulary_.find_any(bytes) < 0)) {
      // A merge into a special token is dropped silently: text must not become one.
      return error(Code::kCorrupt, "tokenizer: merge {} ('{}') is not of tokens into a token", rank, text);
    }
    return {};
  }

  void split_bytes(std::string_view piece, std::vector<Symbol>& symbols) const {
    for (size_t i = 0; i < piece.size(); ++i) {
      int32_t id = vocabulary_.of_byte(static_cast<uint8_t>(piece[i]));
      if (id < 0) {
        if (!fallback_.unknown()) continue;
        id = *fallback_.unknown();
      }
      symbols.push_back({id, static_cast<uint32_t>(i), static_cast<uint32_t>(i + 1)});
    }
  }

  void split_characters(std::string_view piece, std::vector<Symbol>& symbols) const {
    bool after_unknown = false;
    for (size_t i = 0; i < piece.size();) {
      const size_t size = first_code_point(piece.substr(i)).size;
      const std::string_view character = piece.substr(i, size);
      const auto put =
          [&](int32_t id) {  // begin and end only tell symbols apart, so the bytes of a character may share them
            const auto at = static_cast<uint32_t>(symbols.size());
            symbols.push_back({id, at, at + 1});
          };
      const int32_t id = vocabulary_.find_piece(character);
      if (id >= 0) {
        put(id);
      } else {
        fallback_.cover(character, after_unknown, put);
      }
      after_unknown = id < 0 && (!symbols.empty() && symbols.back().id == fallback_.unknown());
      i += size;
    }
  }

  const Vocabulary& vocabulary_;
  Fallback fallback_;
  MergeTable table_;
  bool byte_level_, ignore_merges_;
};

// Merges any two neighbours that make a token, the highest score first.
class SpmSegmenter : public Segmenter {
 public:
  static Result<std::unique_ptr<Segmenter>> create(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
    if (spec.scores.size() != spec.tokens.size()) {
      return error(Code::kCorrupt, "tokenizer: {} tokens but {} scores", spec.tokens.size(), spec.scores.size());
    }
    for (size_t id = 0; id < spec.scores.size(); ++id) {
      if (std::isnan(spec.scores[id]))
        return error(Code::kCorrupt, "tokenizer: the score of token {} is not a number", id);
    }
    return std::unique_ptr<Segmenter>(new SpmSegmenter(spec, vocabulary));
  }

  void append(std::string_view piece, SegmentScratch& scratch, std::vector<int32_t>& ids) const override {
    std::vector<Symbol>& symbols = scratch.symbols;
    symbols.clear();
    for (size_t i = 0; i < piece.size();) {
      const size_t size = first_code_point(piece.substr(i)).size;
      symbols.push_back(
          {vocabulary_.find_piece(piece.substr(i, size)), static_cast<uint32_t>(i), static_cast<uint32_t>(i + size)});
      i += size;
    }
    merge_symbols(symbols, [&](const Symbol& a, const Symbol& b) -> Merge {
      if (b.end - a.begin > vocabulary_.longest_piece()) return {};
      const int32_t id = vocabulary_.find_piece(piece.substr(a.begin, b.end - a.begin));
      return id < 0 ? Merge() : Merge{rank_[id], id};
    });
    bool after_unknown = false;
    for (const Symbol& s : symbols) {
      if (s.id >= 0) {
        ids.push_back(s.id);
        after_unknown = false;
        continue;
      }
      fallback_.cover(piece.substr(s.begin, s.end - s.begin), after_unknown, [&](int32_t id) { ids.push_back(id); });
      after_unknown = !ids.empty() && ids.back() == fallback_.unknown();
    }
  }

 private:
  SpmSegmenter(const TokenizerSpec& spec, const Vocabulary& vocabulary)
      : vocabulary_(vocabulary), fallback_(spec, vocabulary) {
    std::vector<float> sorted = spec.scores;
    std::ranges::sort(sorted, std::greater<>());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    for (const float score : spec.scores) {
      const auto at = std::lower_bound(sorted.begin(), sorted.end(), score, std::greater<>());
      rank_.push_back(static_cast<uint32_t>(at - sorted.begin()));
    }
  }

  const Vocabulary& vocabulary_;
  Fallback fallback_;
  std::vector<uint32_t> rank_;  // by id: 0 for the highest score
};

class WordSegmenter : public Segmenter {
 public:
  static Result<std::unique_ptr<Segmenter>> create(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
    if (!spec.unknown)
      return error(Code::kUnsupported, "tokenizer: a vocabulary of whole words needs an unknown token");
    return std::unique_ptr<Segmenter>(new WordSegmenter(*spec.unknown, vocabulary));
  }
  void append(std::string_view piece, SegmentScratch&, std::vector<int32_t>& ids) const override {
    const int32_t id = vocabulary_.find_piece(piece);
    ids.push_back(id >= 0 ? id : unknown_);
  }

 private:
  WordSegmenter(int32_t unknown, const Vocabulary& vocabulary) : vocabulary_(vocabulary), unknown_(unknown) {}
  const Vocabulary& vocabulary_;
  int32_t unknown_;
};

}  // namespace

Result<std::unique_ptr<Segmenter>> Segmenter::create(const TokenizerSpec& spec, const Vocabulary& vocabulary) {
  if (spec.model == "bpe") return BpeSegmenter::create(spec, vocabulary);
  if (spec.model == "spm") return SpmSegmenter::create(spec, vocabulary);
  if (spec.model == "wordlevel") return WordSegmenter::create(spec, vocabulary);
  return error(Code::kUnsupported, "tokenizer model '{}' is not supported; bpe (gpt2), spm (llama) and wordlevel are",
               spec.model);
}

}  // namespace kvilt
