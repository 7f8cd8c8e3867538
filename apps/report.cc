#include "apps/report.h"

#include <fstream>
#include <thread>

#include "apps/command.h"
#include "kvilt/version.h"

namespace kvilt {

Report::Report(int argc, char** argv) {
  std::string command;
  for (int i = 0; i < argc; ++i) command += (i ? " " : "") + std::string(i ? argv[i] : "kvilt");
  std::string cpu = "unknown";
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.rfind("model name", 0) == 0) {
      cpu = line.substr(line.find(':') + 2);
      break;
    }
  }
  head_ = {{"version", kVersion},
           {"command", command},
           {"machine", {{"cpu", cpu}, {"cores", std::thread::hardware_concurrency()}}}};
}

void Report::set_model(const ModelInfo& info) {
  head_["machine"]["backend"] = info.backend;
  head_["machine"]["threads"] = info.threads;
  head_["machine"]["kv_type"] = info.kv_type;
  head_["model"] = {
      {"name", info.name}, {"arch", info.arch}, {"description", info.description}, {"fingerprint", info.fingerprint}};
}

nlohmann::ordered_json Report::whole() const {
  nlohmann::ordered_json out = head_;
  out["rows"] = rows_;
  return out;
}

// Of the command and of names in files, what is no UTF-8 is replaced: nothing that was measured is lost for it.
void Report::write(const std::string& path) const {
  write_text(path, whole().dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
}

}  // namespace kvilt
