// server/answer_job.h: how routes in files of their own have their requests answered (by routes_generate.cc): parsed,
// submitted, waited for, and sent whole or as a stream, with the client looked after.
#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "server/answer_writer.h"
#include "server/openai_request.h"
#include "server/service.h"

namespace kvilt::server {

// A chat whose body was made of another API's.
struct ChatJob {
  Json body;                                              // as /v1/chat/completions takes it
  const char* field = "messages";                         // of the client's: holds the prompt
  std::function<void(ApiError&)> in_own_paths;            // what is wrong with `body`, in the client's words
  std::function<std::unique_ptr<AnswerWriter>()> writer;  // called when the body was read
};
void answer_chat(const Service& service, const Call& call, ChatJob chat, httplib::Response& response);

// Prompts that the route made itself; their answers are text, and nothing else is read in them.
struct TextJob {
  Generation generation;
  std::vector<Prompt> prompts;
  const char* field = "prompt";
  std::unique_ptr<AnswerWriter> writer;
};
void answer_text(const Service& service, const Call& call, TextJob text, httplib::Response& response);

}  // namespace kvilt::server
