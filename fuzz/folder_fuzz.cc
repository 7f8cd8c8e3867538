// A Hugging Face folder: config.json, safetensors and their index, generation_config.json, tokenizer and template.
// The input is the files one after another, each after a line "=== NAME"; only names that a model has are written.
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "model/model_file.h"
#include "use_model.h"

using namespace kvilt;

namespace {

constexpr std::string_view kNames[] = {
    "config.json",   "generation_config.json", "model.safetensors",     "model.safetensors.index.json", "a.safetensors",
    "b.safetensors", "tokenizer.json",         "tokenizer_config.json", "chat_template.jinja"};

// One folder for the whole run; it goes when the program ends.
class Folder {
 public:
  Folder() {
    const char* base = std::getenv("TMPDIR");
    std::string path = std::filesystem::exists("/dev/shm") ? "/dev/shm" : base ? base : "/tmp";
    path += "/kvilt_fuzz_XXXXXX";
    CHECK(::mkdtemp(path.data()) != nullptr);
    path_ = path;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  void fill(std::string_view input) const {
    for (const std::string_view name : kNames) ::unlink((path_ + "/").append(name).c_str());
    constexpr std::string_view kMark = "=== ";
    for (size_t at = 0; at < input.size();) {
      const size_t line = input.find('\n', at);
      if (!input.substr(at).starts_with(kMark) || line == std::string_view::npos) return;
      const std::string_view name = input.substr(at + kMark.size(), line - at - kMark.size());
      size_t end = input.find("\n=== ", line);
      if (end == std::string_view::npos) end = input.size();
      if (std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames) && end > line) {
        const std::string_view text = input.substr(line + 1, end - line - 1);
        std::ofstream((path_ + "/").append(name), std::ios::binary) << text;
      }
      at = end + 1;
    }
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder folder;
  folder.fill({reinterpret_cast<const char*>(data), size});
  const auto model = open_model(folder.path());
  if (!model.ok()) {
    CHECK(model.error().code != Code::kInternal && model.error().message.size() < 2000);
    CHECK(model.error().message.find(folder.path()) != std::string::npos);
    return 0;
  }
  use_weights((*model)->config, (*model)->weights);
  for (const int32_t id : (*model)->config.eos_ids) CHECK(id >= 0 && id < (*model)->config.V);
  if ((*model)->tokenizer) use_tokenizer(*(*model)->tokenizer, "Once upon a time, needle 17\n");
  return 0;
}
