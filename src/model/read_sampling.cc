#include "model/read_sampling.h"

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/fields.h"

namespace kvilt {
namespace {

// Each setting by itself: Fields keep the first mistake, and would read nothing after it.
class Reader {
 public:
  explicit Reader(std::function<Fields()> open) : open_(std::move(open)) {}

  void number(const char* key, double low, double high, std::optional<float>& out) {
    read<double>(key, out, [&](Fields& fields) { return fields.number_or(key, low, low, high); });
  }
  void integer(const char* key, int64_t low, int64_t high, std::optional<int>& out) {
    read<int64_t>(key, out, [&](Fields& fields) { return fields.integer_or(key, low, low, high); });
  }
  void flag(const char* key, std::optional<bool>& out) {
    read<bool>(key, out, [&](Fields& fields) { return fields.flag_or(key, false); });
  }
  std::vector<std::string> warnings() { return std::move(warnings_); }

 private:
  template <class From, class To>
  void read(const char* key, std::optional<To>& out, const std::function<From(Fields&)>& get) {
    Fields fields = open_();
    if (!fields.has(key)) return;
    const From value = get(fields);
    if (fields.status().ok())
      out = static_cast<To>(value);
    else
      warnings_.push_back(fields.status().error().message + "; it is left out");
  }

  const std::function<Fields()> open_;
  std::vector<std::string> warnings_;
};

ReadSampling read_all(Reader reader, const char* temperature, const char* repetition_penalty) {
  ReadSampling out;
  SamplingDefaults& d = out.defaults;
  reader.number(temperature, 0, kMaxTemperature, d.temperature);
  reader.number("top_p", 0, 1, d.top_p);
  reader.number("min_p", 0, 1, d.min_p);
  reader.integer("top_k", -1, INT32_MAX, d.top_k);
  reader.number(repetition_penalty, kMinRepetitionPenalty, kMaxRepetitionPenalty, d.repetition_penalty);
  std::optional<bool> sampled;
  reader.flag("do_sample", sampled);  // no GGUF has it
  if (sampled == false && !d.temperature) d.temperature = 0;
  out.warnings = reader.warnings();
  return out;
}

}  // namespace

ReadSampling read_hf_sampling(const nlohmann::json& config, const std::string& where) {
  return read_all(Reader([&] { return Fields(config, where); }), "temperature", "repetition_penalty");
}

ReadSampling read_gguf_sampling(const GgufFile& gguf, const std::string& where) {
  return read_all(Reader([&] { return Fields(gguf, "general.sampling.", where); }), "temp", "penalty_repeat");
}

}  // namespace kvilt
