#include "model/json_text.h"

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <vector>

#include "base/error.h"
#include "model/tensor_table.h"

namespace kvilt {

namespace {

// A pass of its own over the grammar: nlohmann's parser callbacks visit all members of an object after each of them,
// which took 18 minutes for 4 MiB of "{},".
class Watcher : public nlohmann::json_sax<nlohmann::json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override {
    keys_.emplace_back();
    return deeper();
  }
  bool key(string_t& key) override {
    if (keys_.back().insert(key).second) return true;
    why_ = "key '" + key + "' is there twice";
    return false;
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool start_array(size_t) override { return deeper(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool parse_error(size_t, const std::string&, const nlohmann::json::exception& e) override {
    why_ = e.what();
    return false;
  }
  const std::string& why() const { return why_; }

 private:
  bool deeper() {
    if (++depth_ <= kMaxJsonDepth) return true;
    why_ = "nested too deep";
    return false;
  }
  std::vector<std::set<std::string>> keys_;  // of the objects that are open
  int depth_ = 0;
  std::string why_;
};

}  // namespace

Result<nlohmann::json> parse_json(std::string_view text, const std::string& where) {
  Watcher watcher;
  if (!nlohmann::json::sax_parse(text.begin(), text.end(), &watcher)) {
    return error(Code::kCorrupt, "{}: not valid JSON: {}", where, printable(watcher.why()));
  }
  try {
    return nlohmann::json::parse(text.begin(), text.end());
  } catch (const std::exception& e) {  // a number out of range
    return error(Code::kCorrupt, "{}: not valid JSON: {}", where, printable(e.what()));
  }
}

}  // namespace kvilt
