// apps/pull.cc: kvilt pull: a model from the hub into the hub's cache, with progress (src/hub/pull.h).
// Standard output has what a script wants: the model's path, or the files of --dry-run. Progress, on standard error, is
// one line that is rewritten on a terminal, and a line for each tenth elsewhere.
#include "hub/pull.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <map>

#include "apps/command.h"
#include "apps/flags.h"
#include "model/tensor_table.h"

namespace kvilt {
namespace {

using Clock = std::chrono::steady_clock;

std::atomic<int> caught_signal{0};
static_assert(std::atomic<int>::is_always_lock_free);

// The first one ends the transfer in good order, a second one the program.
void catch_signals() {
  struct sigaction action = {};
  action.sa_handler = [](int number) { caught_signal = number; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
    struct sigaction before = {};
    sigaction(number, nullptr, &before);
    if (before.sa_handler != SIG_IGN) sigaction(number, &action, nullptr);  // nohup ignores some
  }
  std::signal(SIGPIPE, SIG_IGN);  // of a connection that the other side has closed
}

std::string bytes_in_words(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1000) return fmt::format("{} B", bytes);
  if (bytes < 1'000'000) return fmt::format("{:.1f} kB", value / 1e3);
  if (bytes < 1'000'000'000) return fmt::format("{:.1f} MB", value / 1e6);
  return fmt::format("{:.2f} GB", value / 1e9);
}

std::string time_in_words(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", std::ceil(seconds));
  if (seconds < 6000) return fmt::format("{:.0f} min", std::ceil(seconds / 60));
  return fmt::format("{:.1f} h", seconds / 3600);
}

// Bytes per second of the last seconds.
class Rate {
 public:
  void add(int64_t bytes, Clock::time_point now) {
    since_ += bytes;
    const double passed = std::chrono::duration<double>(now - last_).count();
    if (passed < 0.2) return;
    constexpr double kMemory = 4;  // seconds
    const double weight = known_ ? 1 - std::exp(-passed / kMemory) : 1;
    rate_ += weight * (static_cast<double>(since_) / passed - rate_);
    known_ = true, since_ = 0, last_ = now;
  }
  double per_second() const { return rate_; }

 private:
  Clock::time_point last_ = Clock::now();
  int64_t since_ = 0;
  double rate_ = 0;
  bool known_ = false;
};

class Shown : public PullWatcher {
 public:
  explicit Shown(bool quiet) : quiet_(quiet), terminal_(::isatty(STDERR_FILENO) == 1) {}
  ~Shown() override { clear(); }

  bool stopped() override { return caught_signal != 0; }
  void note(const std::string& text) override { line("[" + text + "]"); }
  void at(const RepoFile& file, int64_t bytes) override;

  void line(const std::string& text) {
    if (quiet_) return;
    clear();
    std::fprintf(stderr, "%s\n", text.c_str());
  }
  void begin(const PullPlan& plan) {
    total_ = done_ = plan.bytes;
    for (const RepoFile& file : plan.absent) done_ -= file.size;
    tenths_ = tenths();
  }
  void clear() {
    if (drawn_) std::fprintf(stderr, "\r\033[K");
    drawn_ = false;
  }
  int64_t done() const { return done_; }

 private:
  int tenths() const {
    return total_ > 0 ? static_cast<int>(10 * static_cast<double>(done_) / static_cast<double>(total_)) : 10;
  }
  std::string state(const RepoFile& file) const;
  const bool quiet_, terminal_;
  int64_t total_ = 0, done_ = 0;
  std::map<std::string, int64_t> files_;  // bytes that are there, of those that were heard of
  int tenths_ = 0;
  Rate rate_;
  Clock::time_point drawn_at_{};
  bool drawn_ = false;
};

std::string Shown::state(const RepoFile& file) const {
  const double share = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1;
  std::string out =
      fmt::format("{:3.0f} %  {} of {}", std::floor(100 * share), bytes_in_words(done_), bytes_in_words(total_));
  if (rate_.per_second() >= 1) {
    out += fmt::format("  {}/s", bytes_in_words(static_cast<int64_t>(rate_.per_second())));
    out += fmt::format("  {} left", time_in_words(static_cast<double>(total_ - done_) / rate_.per_second()));
  }
  return out + "  " + printable(file.path);
}

void Shown::at(const RepoFile& file, int64_t bytes) {
  const auto [entry, first] = files_.try_emplace(file.path, 0);
  const int64_t more = bytes - entry->second;
  entry->second = bytes;
  done_ += more;
  if (quiet_) return;
  const Clock::time_point now = Clock::now();
  if (!first) rate_.add(std::max<int64_t>(more, 0), now);  // what an earlier pull left has no rate
  if (!terminal_) {
    if (tenths() > tenths_ || (first && bytes < file.size)) line(state(file));
    tenths_ = tenths();
    return;
  }
  if (drawn_ && now - drawn_at_ < std::chrono::milliseconds(200)) return;
  winsize size{};
  const bool known = ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 20;
  std::fprintf(stderr, "\r\033[K%s", state(file).substr(0, (known ? size.ws_col : 80) - 1).c_str());
  std::fflush(stderr);
  drawn_ = true, drawn_at_ = now;
}

struct PullOptions {
  std::string model, revision = "main", endpoint;
  bool dry_run = false, quiet = false;
};

void list_plan(const PullPlan& plan) {
  for (const RepoFile& file : plan.chosen.files) {
    const bool absent = std::ranges::any_of(plan.absent, [&](const RepoFile& f) { return f.path == file.path; });
    fmt::print("{:>10}  {:7}  {}\n", bytes_in_words(file.size), absent ? "to come" : "there", printable(file.path));
  }
}

void run_pull(const PullOptions& o) {
  const auto name = hub_name(o.model);
  if (!name) fail("'" + o.model + "': name the model as ORG/NAME or ORG/NAME:TAG, e.g. Qwen/Qwen3-4B-GGUF:Q4_K_M");
  catch_signals();
  HubSource source = value_or_fail(hub_source(o.endpoint));
  source.revision = o.revision;
  Shown shown(o.quiet);
  const auto or_end = [&](auto result) {
    if (result.ok()) return std::move(result).value();
    shown.clear();
    if (result.error().code != Code::kCancelled) fail(result.error());
    shown.line("stopped; " + bytes_in_words(shown.done()) + " are there, and the same command goes on from them");
    std::exit(128 + caught_signal);
  };
  const PullPlan plan = or_end(plan_pull(*name, source, shown));
  const std::string sum = fmt::format(
      "{} at {}: {} file{}, {}; {} to come", name->text(), plan.listing.commit.substr(0, 12), plan.chosen.files.size(),
      plan.chosen.files.size() == 1 ? "" : "s", bytes_in_words(plan.bytes), bytes_in_words(plan.absent_bytes));
  if (o.dry_run) {
    list_plan(plan);
    fmt::print("{}\n", sum);
    return;
  }
  shown.line(sum);
  shown.begin(plan);
  const std::string path = or_end(pull(plan, source, shown));
  shown.line("kvilt serve " + (o.revision == "main" ? name->text() : path));
  std::printf("%s\n", path.c_str());
}

}  // namespace

void add_pull(Program& program) {
  auto app = program.app.add_subcommand("pull", "downloads a model from Hugging Face's hub into the hub's cache");
  auto o = std::make_shared<PullOptions>();
  app.add_option(
         "MODEL", o->model,
         "ORG/NAME, or ORG/NAME:TAG for the GGUF file with TAG (Q4_K_M) in its name; then serve it by this name")
      .required();
  app.add_option("--revision", o->revision, "a branch, a tag or a commit").show_default();
  app.add_option("--endpoint", o->endpoint, "the hub; without it HF_ENDPOINT, or https://huggingface.co");
  app.add_flag("--dry-run", o->dry_run, "only list what would come, and how many bytes");
  app.add_flag("--quiet,-q", o->quiet, "no progress; the model's path and errors only");
  app.callback([o] { run_pull(*o); });
}

}  // namespace kvilt
