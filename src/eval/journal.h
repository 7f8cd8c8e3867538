// eval/journal.h: writes every result to a file of JSON lines as soon as it is there, so that a run which was stopped
// goes on where it was.
// Format:     line 1 is the setup (what must be the same for results to be comparable); every other line is a
//             CaseResult, or a Quilt under the key "quilt". A case is known by its digest too (case_digest.h): one of
//             the same name that asks something else is another. A line without a digest counts as the case it names.
// Invariants: a line is written whole or, after a crash, dropped when the file is opened again.
// Threads:    one.
#pragma once

#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "eval/runner.h"

namespace kvilt {

nlohmann::ordered_json to_json(const CaseResult& result);
nlohmann::ordered_json to_json(const Quilt& quilt);
// Errors: kCorrupt naming the field.
Result<CaseResult> result_from_json(const nlohmann::ordered_json& line);

// What results depend on, beside case and policy. All settings are written, defaults too.
struct JournalSetup {
  nlohmann::ordered_json values = nlohmann::ordered_json::object();
  // Of settings that older journals lack: what held in them. null: they do not say, and any value is taken for theirs.
  nlohmann::ordered_json absent = nlohmann::ordered_json::object();
};

class Journal {
 public:
  // An empty path: results stay in memory only. An existing file is continued. Errors: kInvalidArgument if a setting of
  // either setup differs (the message names it), kCorrupt naming the line, kIo.
  static Result<Journal> open(const std::string& path, const JournalSetup& setup);

  bool has(const CaseSource& source, const std::string& policy) const;
  Status add(const CaseResult& result);
  Status add(const Quilt& quilt);
  // In the order in which they were measured. A case whose digest has changed has several.
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
  std::map<std::tuple<std::string, std::string, std::string>, std::set<std::string>> done_;  // digests
};

// Whether a line's digest is this case's, as far as both are known.
inline bool same_case(const std::string& digest, const CaseSource& source) {
  return digest.empty() || source.digest.empty() || digest == source.digest;
}

}  // namespace kvilt
