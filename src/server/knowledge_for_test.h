// server/knowledge_for_test.h: folders of knowledge bases, and documents for them.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "server/knowledge_bases.h"

namespace kvilt::server {

class KnowledgeFolder {
 public:
  KnowledgeFolder() : path_(std::filesystem::temp_directory_path() / ("kvilt-kb-" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
  }
  ~KnowledgeFolder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }
  std::string only_file() const {
    const auto files = KnowledgeJournal::files(path());
    return files.size() == 1 ? files[0] : "";
  }
  std::string bytes() const { return bytes_of(only_file()); }
  // Names and bytes of all files.
  std::string all_bytes() const {
    std::string out;
    for (const auto& entry : std::filesystem::directory_iterator(path_))
      out += entry.path().filename().string() + "\n" + bytes_of(entry.path().string());
    return out;
  }

 private:
  static std::string bytes_of(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  const std::filesystem::path path_;
};

inline KnowledgeDocumentPtr text_document(const std::string& id, const std::string& text,
                                          const std::string& title = "") {
  const auto out = std::make_shared<KnowledgeDocument>();
  out->id = id;
  out->text = text;
  out->title = title;
  out->tokens = 3;
  return out;
}

inline std::unique_ptr<KnowledgeBases> opened_bases(const std::string& folder, KnowledgeLimits limits = {}) {
  auto out = KnowledgeBases::open(folder, limits);
  EXPECT_TRUE(out.ok()) << out.error().message;
  return out.ok() ? std::move(out.value()) : nullptr;
}

}  // namespace kvilt::server
