// text/test_data.h: files for this module's tests. The tests run in the source root.
#pragma once

#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace kvilt {

inline std::optional<std::string> file_text(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// A pair of llama.cpp's vector files: texts between lines __ggml_vocab_test__, and a line of ids for each.
struct TokenVector {
  std::string text;
  std::vector<int32_t> ids;
};
inline std::vector<TokenVector> read_vectors(const std::string& inp, const std::string& out) {
  std::vector<TokenVector> vectors;
  const std::string mark = "\n__ggml_vocab_test__\n";
  std::istringstream lines(out);
  size_t from = 0;
  for (size_t at; (at = inp.find(mark, from)) != std::string::npos; from = at + mark.size()) {
    TokenVector v{inp.substr(from, at - from), {}};
    std::string line;
    std::getline(lines, line);
    std::istringstream ids(line);
    for (int32_t id; ids >> id;) v.ids.push_back(id);
    vectors.push_back(std::move(v));
  }
  return vectors;
}

}  // namespace kvilt
