// engine/load.h: what an engine is made of, from its options: files, weights, pool, stores, templates.
// Threads: the caller's, and the pool's while weights are packed.
// Not here: requests (engine.cc); what options mean (options.h).
#pragma once

#include <functional>
#include <optional>

#include "engine/chat.h"
#include "engine/engine_parts.h"
#include "kvilt/engine.h"
#include "peer/peer_server.h"

namespace kvilt {

struct LoadedEngine {
  EngineParts parts;
  std::optional<ChatPrompts> chat;  // nothing: the model has no tokenizer
  ModelInfo info;
  PolicyFiles files;
  std::optional<PeerServer::Options> peers;  // a prefill server's
};

// progress: of the weights, 0 to 1. Errors name the option, or the file. Throws std::bad_alloc and, where no thread is to
// be had, std::system_error.
Result<LoadedEngine> load_engine(EngineOptions options, std::function<void(double)> progress);

// Its threads begin here. Tests give it stores of their own before. Throws as load_engine().
Result<std::unique_ptr<Engine>> start_engine(LoadedEngine made);

}  // namespace kvilt
