#include "kvilt/session.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/error.h"
#include "base/open_file.h"
#include "engine/session.h"
#include "kv/session_reader.h"

namespace kvilt {
namespace {

class SessionPolicy : public ReusePolicy {
 public:
  explicit SessionPolicy(std::vector<HeadKeep> keeps) : keeps_(std::move(keeps)) {}
  bool wants_prefix() const override { return false; }
  bool wants_pieces() const override { return false; }

  Plan plan(const PromptLayout& layout, const ModelConfig& config) const override {
    Plan plan;
    plan.prompt_len = layout.prompt_len;
    plan.stages = {uniform_stage({{layout.prefix, layout.prompt_len}}, config.L)};
    for (int i = 0; i < config.L * config.G; ++i) {  // a layer that reads another's KV sees what that one keeps
      const HeadKeep& keep = keeps_[config.kv_layer(i / config.G) * config.G + i % config.G];
      const View view{keep.all() ? HeadWindow{} : keep};
      auto known = std::ranges::find(plan.views, view);
      if (known == plan.views.end()) known = plan.views.insert(known, view);
      plan.head_view.push_back(static_cast<uint16_t>(known - plan.views.begin()));
      plan.head_class.push_back(keep.all() ? HeadClass::kGlobal : HeadClass::kLocal);
    }
    return plan;
  }

 private:
  const std::vector<HeadKeep> keeps_;
};

}  // namespace

std::unique_ptr<ReusePolicy> session_policy(std::vector<HeadKeep> keeps) {
  return std::make_unique<SessionPolicy>(std::move(keeps));
}

std::shared_ptr<const ExportedSession> export_kv(const PageTable& table, std::span<const int32_t> tokens,
                                                 const std::string& model) {
  const int32_t computed = table.known(0).back().end;
  auto out = std::make_shared<ExportedSession>();
  const auto append = [&](std::span<const std::byte> part) -> Status {
    out->bytes.insert(out->bytes.end(), part.begin(), part.end());
    return {};
  };
  const auto done = export_session(table, tokens, model, append, static_cast<int32_t>(tokens.size()) - computed);
  CHECK(done.ok());
  out->kv = done.value().kv;
  out->dense = done.value().dense;
  return out;
}

Result<SessionInfo> session_info(const ExportedSession& session) {
  FromMemory source{session.bytes};
  SessionReader in(source);
  KVILT_TRY(in.read_head(nullptr));
  SessionInfo out{in.tokens(), in.positions(), in.L() * in.G(), 0};
  for (const HeadKeep& keep : in.keeps()) out.local_heads += keep.all() ? 0 : 1;
  return out;
}

Status write_session(const ExportedSession& session, int fd) { return write_all(fd, session.bytes); }

Result<ExportedSession> read_session(int fd) {
  KVILT_ASSIGN(ReceivedSession in, receive_session([fd](std::span<std::byte> part) { return read_all(fd, part); }));
  return ExportedSession{std::move(in.bytes), in.sizes.kv, in.sizes.dense};
}

Status save_session(const ExportedSession& session, const std::string& path) {
  const std::string part = path + ".part";
  const OpenFile file(::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (file.fd() < 0) return system_error(part);
  if (const Status written = write_all(file.fd(), session.bytes); !written.ok()) {
    ::unlink(part.c_str());
    return error(written.error().code, "{}: {}", path, written.error().message);
  }
  if (::rename(part.c_str(), path.c_str()) != 0) return system_error(path);
  return {};
}

Result<ExportedSession> load_session(const std::string& path) {
  const OpenFile file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.fd() < 0) return error(Code::kNotFound, "{}: {}", path, std::strerror(errno));
  auto session = read_session(file.fd());
  if (!session.ok()) return error(session.error().code, "{}: {}", path, session.error().message);
  std::byte more;
  if (::read(file.fd(), &more, 1) != 0) return error(Code::kCorrupt, "{}: session: longer than it says", path);
  return session;
}

}  // namespace kvilt
