// kvilt/session.h: a request's KV as bytes: out of one process, into another (docs/formats/session.md).
//   prefill here:  {.prompt, .sampling.max_tokens = 1, .export_session = true}  ->  Completion::session, save_session()
//   decode there:  load_session(); session_info()  ->  {.prompt = its tokens, .session}
// Role:    transport and description; exporting and importing are the engine's (Request::export_session,
//          Request::session).
// Cost:    a copy of the session in memory on both sides, so that a slow peer never holds up the engine.
// Threads: any.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvilt/request.h"
#include "kvilt/result.h"

namespace kvilt {

struct SessionInfo {
  std::vector<int32_t> tokens;  // the first `positions` have their KV; what follows are tokens that have none yet
  int positions = 0;
  int heads = 0, local_heads = 0;  // KV heads of all layers; those of them that keep less than all
};

// Errors: kCorrupt, kUnsupported (another version), naming what is wrong. The engine checks the session's model.
Result<SessionInfo> session_info(const ExportedSession& session);

// A file; an old one of that name is replaced when the new one is whole. Errors: kIo, kNotFound, kCorrupt.
Status save_session(const ExportedSession& session, const std::string& path);
Result<ExportedSession> load_session(const std::string& path);

// A pipe or socket: exactly one session, so that others may follow. Blocks until all of it has passed, or the other
// side closes.
Status write_session(const ExportedSession& session, int fd);
Result<ExportedSession> read_session(int fd);

}  // namespace kvilt
