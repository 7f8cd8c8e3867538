// server/warming.h: documents that are computed before anybody asks about them.
// Idea:    each is computed behind the fixed text in front of it alone, as a clean copy (docs/server.md#trust); with
//          `season` also in random orders of all, for its mean over contexts.
// Threads: the HTTP thread that answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "server/json_fields.h"
#include "server/openai_request.h"
#include "server/service.h"

namespace kvilt::server {

// An error if the request names another model, or a policy that it may not.
std::optional<ApiError> check_warming(const Call& call, const DocumentsRequest& wanted);

// prompts: of Engine::document_prompts(). frozen_as: a name for each (Request::frozen_as); empty: they are not frozen.
// {"documents": a row each, "usage"}, and "seasoning" if it was asked for; nullopt: the response says why it ended.
std::optional<Json> warm(const Call& call, const DocumentsRequest& wanted, std::vector<Prompt> prompts,
                         std::vector<std::string> frozen_as, httplib::Response& response);

}  // namespace kvilt::server
