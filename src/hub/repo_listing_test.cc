// What a hub lists: which files a name means, and listings that are refused.
#include "hub/repo_listing.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace kvilt {
namespace {

using Json = nlohmann::json;

const std::string kHash(64, 'a'), kGit(40, 'b'), kSha(40, 'c');

Json sibling(const std::string& path, Json size = 10) {
  return {{"rfilename", path}, {"size", size}, {"blobId", kGit}, {"lfs", {{"sha256", kHash}, {"size", size}}}};
}

std::string listing(const std::vector<Json>& siblings) {
  return Json{{"sha", kSha}, {"siblings", siblings}, {"gated", false}}.dump();
}

RepoListing repo(const std::vector<std::string>& paths) {
  std::vector<Json> siblings;
  for (const std::string& path : paths) siblings.push_back(sibling(path));
  auto out = parse_listing(listing(siblings), "org/name");
  EXPECT_TRUE(out.ok()) << out.error().message;
  return out.ok() ? *out : RepoListing{};
}

std::string chosen(const RepoListing& listing, const std::string& tag) {
  const auto out = choose_files({"org", "name", tag}, listing);
  if (!out.ok()) return "error: " + out.error().message;
  std::string text = "[" + out->model + "]";
  for (const RepoFile& file : out->files) text += " " + file.path;
  return text;
}

std::string refused(const std::string& text) {
  const auto out = parse_listing(text, "org/name");
  return out.ok() ? "taken" : out.error().message;
}

TEST(RepoListing, AGgufFileByItsTag) {
  const RepoListing many = repo({"README.md", "m-Q8_0.gguf", "m-Q4_K_M.gguf", "mmproj-m-Q8_0.gguf",
                                 "Q6_K/m-Q6_K-00002-of-00002.gguf", "Q6_K/m-Q6_K-00001-of-00002.gguf"});
  EXPECT_EQ(chosen(many, "q8_0"), "[m-Q8_0.gguf] m-Q8_0.gguf");
  EXPECT_EQ(chosen(many, ""), "[m-Q4_K_M.gguf] m-Q4_K_M.gguf") << "the usual one";
  EXPECT_EQ(chosen(many, "Q6_K"),
            "[Q6_K/m-Q6_K-00001-of-00002.gguf] Q6_K/m-Q6_K-00001-of-00002.gguf Q6_K/m-Q6_K-00002-of-00002.gguf");
  EXPECT_NE(chosen(many, "Q5_0").find("error: 'org/name:Q5_0' is no file there"), std::string::npos);
  EXPECT_NE(chosen(many, "Q5_0").find("m-Q8_0.gguf"), std::string::npos) << "it says what there is";
  EXPECT_NE(chosen(repo({"m-Q4_0-00001-of-00003.gguf", "m-Q4_0-00003-of-00003.gguf"}), "").find("2 of the 3 parts"),
            std::string::npos);
}

TEST(RepoListing, AFolderOfSafetensors) {
  EXPECT_EQ(chosen(repo({"pytorch_model.bin", "model.safetensors", "config.json", "tokenizer.json", "onnx/config.json",
                         "notes.txt", "consolidated.safetensors"}),
                   ""),
            "[] config.json tokenizer.json model.safetensors");
  EXPECT_EQ(chosen(repo({"additional_chat_templates/rag.jinja", "additional_chat_templates/tool_use.jinja",
                         "chat_template.jinja", "config.json", "model.safetensors"}),
                   ""),
            "[] additional_chat_templates/tool_use.jinja chat_template.jinja config.json model.safetensors");
  EXPECT_EQ(chosen(repo({"model-00001-of-00002.safetensors", "config.json", "model.safetensors.index.json",
                         "model-00002-of-00002.safetensors", "consolidated.safetensors"}),
                   ""),
            "[] config.json model.safetensors.index.json model-00001-of-00002.safetensors "
            "model-00002-of-00002.safetensors");
  EXPECT_NE(chosen(repo({"config.json", "pytorch_model.bin"}), "").find("neither as GGUF nor"), std::string::npos);
  EXPECT_NE(chosen(repo({"README.md"}), "").find("neither a GGUF file nor a config.json"), std::string::npos);
  EXPECT_NE(chosen(repo({"config.json", "model.safetensors"}), "Q4_0").find("GGUF files of org/name: none"),
            std::string::npos);
}

TEST(RepoListing, LargeFilesHaveSha256AndSmallOnesGitsHash) {
  Json small = sibling("config.json");
  small.erase("lfs");
  const auto out = parse_listing(listing({sibling("a.gguf"), small}), "x");
  ASSERT_TRUE(out.ok()) << out.error().message;
  EXPECT_EQ(out->commit, kSha);
  EXPECT_EQ(out->files[0].blob, kHash);
  EXPECT_EQ(out->files[1].blob, kGit);
}

TEST(RepoListing, NoHashNoDownload) {
  const auto out = parse_listing(listing({{{"rfilename", "a.gguf"}}, {{"rfilename", "README.md"}}}), "x");
  ASSERT_TRUE(out.ok()) << "files that are not wanted do no harm";
  EXPECT_NE(chosen(*out, "").find("does not say size and hash"), std::string::npos) << chosen(*out, "");
}

TEST(RepoListing, NamesThatLeaveTheFolderAreRefused) {
  const std::vector<std::string> bad = {"",
                                        "/etc/passwd",
                                        "../a",
                                        "a/../../b",
                                        "a/..",
                                        "a//b",
                                        "./a",
                                        "a/",
                                        "a\\b",
                                        "a\nb",
                                        "a\x1b[2Jb",
                                        std::string("a\0b", 3),
                                        "..",
                                        ".",
                                        "a/./b",
                                        std::string(300, 'a'),
                                        std::string(2000, '/')};
  for (const std::string& path : bad) {
    EXPECT_FALSE(is_safe_path(path)) << path;
    EXPECT_NE(refused(listing({sibling(path)})).find("which is refused"), std::string::npos) << path;
  }
  for (const char* good : {"a", "a/b.gguf", "a b", "..a", "a..b", ".gitattributes", "\xc3\xa4.gguf"})
    EXPECT_TRUE(is_safe_path(good)) << good;
}

TEST(RepoListing, ListingsThatMakeNoSenseAreRefused) {
  for (const Json& size : {Json(-1), Json(1e300), Json("10"), Json(nullptr), Json(uint64_t{1} << 60), Json(1.5)})
    EXPECT_NE(refused(listing({sibling("a.gguf", size)})).find("make no sense"), std::string::npos) << size;
  const Json half = int64_t{1} << 49;
  EXPECT_EQ(refused(listing({sibling("a", half), sibling("b", half)})), "taken") << "power";
  EXPECT_NE(refused(listing({sibling("a", half), sibling("b", half), sibling("c", half)})).find("sizes"),
            std::string::npos);
  Json odd = sibling("a");
  odd["lfs"]["sha256"] = "../../" + std::string(58, 'a');
  EXPECT_NE(refused(listing({odd})).find("hash of 'a'"), std::string::npos);
  EXPECT_NE(refused(listing({sibling("a"), sibling("a")})).find("lists 'a' twice"), std::string::npos);
  EXPECT_NE(refused(listing({Json(3)})).find("no JSON object"), std::string::npos);
  for (const char* text : {"", "<html>log in</html>", "[]", "3", "{}", R"({"sha": "../.."})", R"({"sha": 7})"})
    EXPECT_NE(refused(text), "taken") << text;
  EXPECT_NE(refused(R"({"sha": ")" + kSha + R"("})").find("lists no files"), std::string::npos);
  EXPECT_NE(refused("<html>").find("is this a hub"), std::string::npos);
  EXPECT_NE(refused(std::string(100000, '[')).find("nested"), std::string::npos);
  std::vector<Json> many;
  for (size_t i = 0; i <= kMaxListedFiles; ++i) many.push_back(Json{{"rfilename", std::to_string(i)}});
  EXPECT_NE(refused(listing(many)).find("are refused"), std::string::npos);
}

}  // namespace
}  // namespace kvilt
