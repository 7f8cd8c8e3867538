#include "server/written_list.h"

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvilt::server {
namespace {
constexpr size_t kPiece = size_t{64} << 10, kSmall = size_t{1} << 20;  // bytes

// How much of a text is its next piece: characters are whole, unless they are none anyway.
size_t piece_of(std::string_view text) {
  if (text.size() <= kPiece) return text.size();
  for (size_t end = kPiece; end > kPiece - 4; --end) {
    if ((text[end] & 0xC0) != 0x80) return end;
  }
  return kPiece;
}
}  // namespace

bool write_list(std::span<const int32_t> ids, FunctionRef<void(int32_t, std::string&)> add, WriteText write) {
  std::string text = "[";
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) text += ',';
    add(ids[i], text);
    if (text.size() < kPiece) continue;
    if (!write(text)) return false;
    text.clear();
  }
  text += ']';
  return write(text);
}

std::string quoted(std::string text) { return dump(Json(std::move(text))); }

bool write_string(std::string_view text, WriteText write) {
  if (!write("\"")) return false;
  while (!text.empty()) {
    const size_t size = piece_of(text);
    const std::string piece = quoted(std::string(text.substr(0, size)));
    if (!write(std::string_view(piece).substr(1, piece.size() - 2))) return false;
    text.remove_prefix(size);
  }
  return write("\"");
}

void reply_written(const httplib::Request& request, httplib::Response& response, size_t bytes,
                   std::function<bool(WriteText)> writes) {
  constexpr const char* kType = "application/json";
  if (bytes > kSmall) {
    auto shared = std::make_shared<std::function<bool(WriteText)>>(std::move(writes));  // which the library copies
    return reply_pieces(request, response, kType, [shared = std::move(shared)](httplib::DataSink& sink) {
      return (*shared)([&](std::string_view text) { return sink.write(text.data(), text.size()); });
    });
  }
  std::string whole;
  writes([&](std::string_view text) {
    whole += text;
    return true;
  });
  response.set_content(whole, kType);
}

}  // namespace kvilt::server
