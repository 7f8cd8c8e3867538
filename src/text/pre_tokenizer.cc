// text/pre_tokenizer.cc: see pre_tokenizer.h.
#include "text/pre_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace kvilt {
namespace {

using Behavior = SplitStep::Behavior;

constexpr size_t kMaxSplits = 64;       // each walks the whole text
constexpr size_t kMaxReplacement = 16;  // bytes of a Metaspace's mark
constexpr size_t kMaxSplitGrowth = 8;  // of all steps together; a space becomes three bytes, two with the byte spelling
constexpr size_t kSplitSlack = 1 << 16;

struct Part {
  ByteRange range;
  bool match;
};

// Decides which matches, and which texts between them, become pieces.
void arrange(std::vector<Part>& parts, Behavior behavior, std::vector<ByteRange>& out) {
  const auto extend = [&](bool backwards, auto&& joins) {
    const size_t first = out.size();
    bool last_match = false;
    for (size_t k = 0; k < parts.size(); ++k) {
      const Part& part = parts[backwards ? parts.size() - 1 - k : k];
      if (out.size() > first && joins(part.match, last_match)) {
        (backwards ? out.back().begin : out.back().end) = backwards ? part.range.begin : part.range.end;
      } else {
        out.push_back(part.range);
      }
      last_match = part.match;
    }
    if (backwards) std::reverse(out.begin() + static_cast<ptrdiff_t>(first), out.end());
  };
  switch (behavior) {
    case Behavior::kIsolated:
    case Behavior::kRemoved:
      for (const Part& part : parts) {
        if (behavior == Behavior::kIsolated || !part.match) out.push_back(part.range);
      }
      break;
    case Behavior::kContiguous:
      extend(false, [](bool match, bool last) { return match == last; });
      break;
    case Behavior::kMergedWithPrevious:
      extend(false, [](bool match, bool last) { return match && !last; });
      break;
    case Behavior::kMergedWithNext:
      extend(true, [](bool match, bool last) { return match && !last; });
      break;
  }
  std::erase_if(out, [](const ByteRange& r) { return r.begin == r.end; });
}

Status split_piece(const SplitStep& step, const Regex& regex, std::string_view text, size_t base,
                   std::vector<ByteRange>& out) {
  Regex::Search search(regex, text);
  const bool simple = step.behavior == Behavior::kIsolated;
  std::vector<Part> parts;
  size_t from = 0;
  const auto put = [&](size_t begin, size_t end, bool match) {
    if (simple) {
      if (begin < end) out.push_back({base + begin, base + end});
    } else {
      parts.push_back({{base + begin, base + end}, match != step.invert});
    }
  };
  for (ByteRange match;;) {
    KVILT_ASSIGN(const bool found, search.next(match));
    if (!found) break;
    if (from < match.begin) put(from, match.begin, false);
    put(match.begin, match.end, true);
    from = match.end;
  }
  if (from < text.size()) put(from, text.size(), false);
  if (!simple) {
    std::vector<ByteRange> arranged;
    arrange(parts, step.behavior, arranged);
    out.insert(out.end(), arranged.begin(), arranged.end());
  }
  return {};
}

// Rewrites every piece with `rewrite(piece, is_first, buffer)`, which appends to the buffer.
template <class Rewrite>
void rewrite_pieces(PieceList& list, Rewrite&& rewrite) {
  auto own = std::make_unique<std::string>();
  own->reserve(list.text.size() + list.text.size() / 4 + 16);
  bool first = true;
  for (ByteRange& piece : list.pieces) {
    const size_t begin = own->size();
    rewrite(list.text.substr(piece.begin, piece.end - piece.begin), first && piece.begin == 0, *own);
    piece = {begin, own->size()};
    first = false;
  }
  list.own = std::move(own);
  list.text = *list.own;
}

void metaspace(const SplitStep& step, Lead lead, PieceList& list) {
  rewrite_pieces(list, [&](std::string_view piece, bool first, std::string& out) {
    const bool continues = first && lead == Lead::kContinues;
    const bool wanted = (step.prepend == SplitStep::Prepend::kAlways && !continues) ||
                        (step.prepend == SplitStep::Prepend::kFirst && first && lead == Lead::kStart);
    if (wanted && !piece.starts_with(' ') && !piece.starts_with(step.replacement)) out.append(step.replacement);
    for (const char c : piece) {
      if (c == ' ') {
        out.append(step.replacement);
      } else {
        out.push_back(c);
      }
    }
  });
  if (!step.split) return;
  std::vector<ByteRange> cut;
  for (const ByteRange& piece : list.pieces) {
    const std::string_view upto = list.text.substr(0, piece.end);  // a search does not leave its piece
    size_t from = piece.begin;
    for (;;) {
      const size_t end = std::min(upto.find(step.replacement, from + 1), piece.end);
      if (from < end) cut.push_back({from, end});
      if (end == piece.end) break;
      from = end;
    }
  }
  list.pieces = std::move(cut);
}

}  // namespace

Result<PreTokenizer> PreTokenizer::create(std::vector<SplitStep> steps) {
  if (steps.size() > kMaxSplits) {
    return error(Code::kUnsupported, "tokenizer: a pre-tokenizer of {} steps; {} are allowed", steps.size(),
                 kMaxSplits);
  }
  PreTokenizer p;
  // The bytes need no spelling if no later step reads them.
  while (!steps.empty() && steps.back().kind == SplitStep::Kind::kByteSpell) steps.pop_back();
  for (const SplitStep& step : steps) {
    p.regexes_.emplace_back();
    if (step.kind == SplitStep::Kind::kByteSpell) {
      if (p.spells_bytes_) return error(Code::kUnsupported, "pre-tokenizer: two ByteLevel steps");
      p.spells_bytes_ = true;
    } else if (step.kind == SplitStep::Kind::kMetaspace) {
      if (step.replacement.empty())
        return error(Code::kInvalidArgument, "pre-tokenizer Metaspace: the replacement is empty");
      if (step.replacement.size() > kMaxReplacement) {
        return error(Code::kUnsupported, "pre-tokenizer Metaspace: a replacement of {} bytes; {} are allowed",
                     step.replacement.size(), kMaxReplacement);
      }
    } else if (step.kind == SplitStep::Kind::kSplit) {
      KVILT_ASSIGN(p.regexes_.back(), Regex::compile(step.pattern));
    }
  }
  p.steps_ = std::move(steps);
  return p;
}

Status PreTokenizer::run(std::string_view text, Lead lead, PieceList& list) const {
  list.text = text;
  list.own.reset();
  list.pieces.clear();
  if (text.empty()) return {};
  list.pieces.push_back({0, text.size()});
  for (size_t i = 0; i < steps_.size(); ++i) {
    const SplitStep& step = steps_[i];
    switch (step.kind) {
      case SplitStep::Kind::kSplit: {
        std::vector<ByteRange> cut;
        cut.reserve(list.pieces.size() > 1 ? list.pieces.size() * 2 : text.size() / 5 + 4);
        for (const ByteRange& p : list.pieces) {
          KVILT_TRY(split_piece(step, *regexes_[i], list.text.substr(p.begin, p.end - p.begin), p.begin, cut));
        }
        list.pieces = std::move(cut);
        break;
      }
      case SplitStep::Kind::kMetaspace:
        metaspace(step, lead, list);
        break;
      case SplitStep::Kind::kPrefixSpace:
        rewrite_pieces(list, [lead](std::string_view piece, bool first, std::string& out) {
          if (!piece.starts_with(' ') && !(first && lead == Lead::kContinues)) out.push_back(' ');
          out.append(piece);
        });
        break;
      case SplitStep::Kind::kByteSpell:
        rewrite_pieces(list, [](std::string_view piece, bool, std::string& out) { out.append(spell_bytes(piece)); });
        break;
    }
    if (list.text.size() > kSplitSlack + kMaxSplitGrowth * text.size()) {
      return error(Code::kExhausted, "the tokenizer's pre-tokenizer makes {} bytes of {}", list.text.size(),
                   text.size());
    }
  }
  return {};
}

}  // namespace kvilt
