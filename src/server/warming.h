// server/warming.h: documents that are computed before anybody asks about them.
// Idea:    each is computed behind the fixed text in front of it alone, as a clean copy (docs/server.md#trust); with
//          `season` also in other orders of all, for its mean over contexts.
// Threads: the HTTP thread that answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/answer_writer.h"
#include "server/json_fields.h"
#include "server/openai_request.h"
#include "server/request_batch.h"
#include "server/service.h"
#include "server/told_work.h"

namespace kvilt::server {

// An error if the request names another model, or a policy that it may not.
std::optional<ApiError> check_warming(const Call& call, const DocumentsRequest& wanted);

class Warming : public ToldWork {
 public:
  // prompts: of Engine::document_prompts(). frozen_as: a name for each (Request::frozen_as); empty: they are not frozen.
  Warming(const Call& call, DocumentsRequest wanted, std::vector<Prompt> prompts, std::vector<std::string> frozen_as);

  End run(const Tell& tell) override;
  const ApiError& error() const override { return batch_.error(); }
  // {"object", "model", "documents": a row each, "usage"}, and "seasoning" if it was asked for and there were contexts.
  Json summary() override;

 private:
  // Of the contexts that are made, together.
  struct Contexts {
    std::vector<int> added;         // of each document, that its mean has
    int over = 0;                   // at least, of each that got any
    std::vector<size_t> without{};  // those that got none
    int64_t passes = 0, tokens = 0;
    double seconds = 0;
    void end_round();
  };
  bool seasons() const { return wanted_.season > 0 && prompts_.size() > 1; }
  End compute(const Tell& tell);
  End season(const Tell& tell);
  Json progress() const;
  Json contexts() const;

  const Attached attached_;
  const DocumentsRequest wanted_;
  std::vector<Prompt> prompts_;
  std::vector<std::string> frozen_as_;
  RequestBatch batch_;
  const Clock::time_point start_ = Clock::now();

  std::vector<Json> rows_;  // of the documents; null: not computed yet
  size_t computed_ = 0;
  int64_t tokens_ = 0;  // of these
  UsageSum usage_;
  Contexts contexts_;
};

}  // namespace kvilt::server
