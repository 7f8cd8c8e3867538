// index/clean_pieces.cc: see clean_pieces.h.
#include "index/clean_pieces.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvilt {

uint64_t CleanPieces::text_key(DomainId domain, std::span<const int32_t> ids) const {
  const Digest digest = KeyedHash(secret_, "kvilt.clean").add(domain).add(ids).finish();
  uint64_t word;
  std::memcpy(&word, digest.data(), sizeof word);
  return word;
}

std::vector<Digest> CleanPieces::beginnings(std::span<const int32_t> prompt, std::span<const int32_t> lengths) const {
  std::vector<Digest> out;
  KeyedHash running(secret_, "kvilt.beginning");
  int32_t done = 0;
  for (const int32_t length : lengths) {
    for (; done < length; ++done) running.add(prompt.subspan(done, 1));  // one by one: any length is a prefix of others
    out.push_back(KeyedHash(running).finish());
  }
  return out;
}

void CleanPieces::add(DomainId domain, std::span<const int32_t> prompt, Run mark, SegmentId id, int32_t offset) {
  const Digest before = beginnings(prompt, {&mark.begin, 1})[0];
  add(domain, prompt.subspan(mark.begin, mark.size()), {{offset, offset + mark.size()}, mark.begin, before}, id);
}

void CleanPieces::add(DomainId domain, std::span<const int32_t> ids, const CleanNote& note, SegmentId id) {
  const uint64_t text = text_key(domain, ids);
  const auto same = [&](const Copy& c) { return c.before == note.before && c.digest == note.digest; };
  const std::vector<Copy>& known = by_text_.at(text);
  if (const auto old = std::ranges::find_if(known, same); old != known.end()) {
    drop(text, old->segment);
  } else if (known.size() == kMaxCopies) {
    drop(text, known.front().segment);
  }
  by_text_.at(text).push_back({note.before, note.digest, id, note.tokens.begin, note.tokens.size()});
  texts_of_.at(id).push_back(text);
  ++copies_;
}

std::vector<CleanNote> CleanPieces::notes(SegmentId id) const {
  std::vector<CleanNote> out;
  const std::vector<uint64_t>* const texts = texts_of_.find(id);
  if (!texts) return out;
  for (const uint64_t text : *texts) {
    for (const Copy& copy : *by_text_.find(text)) {
      const CleanNote note{{copy.offset, copy.offset + copy.count}, copy.before, copy.digest};
      if (copy.segment == id && std::ranges::find(out, note) == out.end()) out.push_back(note);
    }
  }
  return out;
}

void CleanPieces::erase(SegmentId id) { truncate(id, -1); }

void CleanPieces::truncate(SegmentId id, int32_t tokens) {
  const std::vector<uint64_t>* const known = texts_of_.find(id);
  if (!known) return;
  for (const uint64_t text : std::vector<uint64_t>(*known)) drop(text, id, tokens);
}

// Forgets the segment's copies of this text that end behind its first `left` tokens.
void CleanPieces::drop(uint64_t text, SegmentId id, int32_t left) {
  if (std::vector<Copy>* const copies = by_text_.find(text)) {
    copies_ -= std::erase_if(*copies, [&](const Copy& c) { return c.segment == id && c.offset + c.count > left; });
    const bool stays = std::ranges::find(*copies, id, &Copy::segment) != copies->end();
    if (copies->empty()) by_text_.erase(text);
    if (stays) return;
  }
  if (std::vector<uint64_t>* const texts = texts_of_.find(id)) {
    std::erase(*texts, text);
    if (texts->empty()) texts_of_.erase(id);
  }
}

std::vector<Piece> CleanPieces::find(DomainId domain, std::span<const int32_t> prompt,
                                     std::span<const Run> marks) const {
  std::vector<Piece> out;
  if (by_text_.empty()) return out;
  std::vector<std::pair<Run, const std::vector<Copy>*>> known;
  std::vector<int32_t> lengths;
  for (const Run& mark : marks) {
    const auto* const copies = by_text_.find(text_key(domain, prompt.subspan(mark.begin, mark.size())));
    if (!copies) continue;
    known.emplace_back(mark, copies);
    for (const Copy& copy : *copies) {
      if (copy.before <= mark.begin) lengths.push_back(copy.before);
    }
  }
  std::ranges::sort(lengths);
  lengths.erase(std::unique(lengths.begin(), lengths.end()), lengths.end());
  const std::vector<Digest> digests = beginnings(prompt, lengths);
  for (const auto& [mark, copies] : known) {
    const Copy* best = nullptr;
    for (const Copy& copy : *copies) {
      if (copy.before > mark.begin || (best && best->before >= copy.before)) continue;
      const auto at = std::ranges::lower_bound(lengths, copy.before) - lengths.begin();
      if (digests[at] == copy.digest) best = &copy;
    }
    if (best) out.push_back({best->segment, best->offset, mark.size(), mark.begin});
  }
  return out;
}

size_t CleanPieces::bytes() const { return copies_ * (sizeof(Copy) + 8) + by_text_.bytes() + texts_of_.bytes(); }

}  // namespace kvilt
