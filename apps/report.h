// apps/report.h: what a command found, as a JSON file (docs/formats/json.md#reports---json-file).
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "kvilt/engine.h"

namespace kvilt {

// {"version", "command", "machine", "model", "rows"}
class Report {
 public:
  Report(int argc, char** argv);
  void set_model(const ModelInfo& info);
  void add(nlohmann::ordered_json row) { rows_.push_back(std::move(row)); }
  void set(const std::string& name, nlohmann::ordered_json value) { head_[name] = std::move(value); }
  const nlohmann::ordered_json& rows() const { return rows_; }
  nlohmann::ordered_json whole() const;
  void write(const std::string& path) const;  // exits with 1 if that fails; does nothing for an empty path

 private:
  nlohmann::ordered_json head_;
  nlohmann::ordered_json rows_ = nlohmann::ordered_json::array();
};

}  // namespace kvilt
