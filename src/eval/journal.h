// eval/journal.h: writes every result to a file of JSON lines as soon as it is there, so that a run which was stopped
// goes on where it was.
// Format:     line 1 is the setup (what must be the same for results to be comparable); every other line is a
//             CaseResult, or a Quilt under the key "quilt".
// Invariants: a line is written whole or, after a crash, dropped when the file is opened again.
// Threads:    one.
#pragma once

#include <cstdio>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "eval/runner.h"

namespace kvilt {

nlohmann::ordered_json to_json(const CaseResult& result);
nlohmann::ordered_json to_json(const Quilt& quilt);
// Errors: kCorrupt naming the field.
Result<CaseResult> result_from_json(const nlohmann::ordered_json& line);

class Journal {
 public:
  // An empty path: results stay in memory only. An existing file is continued. Errors: kInvalidArgument if its setup
  // differs (the message names what), kCorrupt naming the line, kIo.
  static Result<Journal> open(const std::string& path, const nlohmann::ordered_json& setup);

  bool has(const std::string& suite, const std::string& id, const std::string& policy) const {
    return done_.count({suite, id, policy}) > 0;
  }
  Status add(const CaseResult& result);
  Status add(const Quilt& quilt);
  const std::vector<CaseResult>& results() const { return results_; }
  const std::vector<Quilt>& quilts() const { return quilts_; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  Status write_line(const nlohmann::ordered_json& line);
  void keep(const CaseResult& result);

  std::string path_;
  std::unique_ptr<std::FILE, Close> file_;
  std::vector<CaseResult> results_;
  std::vector<Quilt> quilts_;
  std::set<std::tuple<std::string, std::string, std::string>> done_;
};

}  // namespace kvilt
