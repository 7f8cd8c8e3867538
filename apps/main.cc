// apps/main.cc: the program kvilt. Each sub-command has a file of its own here; what they share is command.h.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <exception>
#include <iostream>
#include <new>
#include <string_view>
#include <system_error>

#include "apps/command.h"
#include "kvilt/version.h"

namespace {

// Tables of libraries are built before main, where nobody catches that memory ends.
[[noreturn]] void end_before_main() {
  constexpr std::string_view kMessage = "error: not enough memory to start\n";
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, kMessage.data(), kMessage.size());
  ::_exit(1);
}
std::terminate_handler usual_end = nullptr;
[[gnu::constructor(101)]] void watch_the_beginning() { usual_end = std::set_terminate(end_before_main); }

int run(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("kvilt"));  // answers and figures have standard output
  CLI::App app(
      "An LLM engine whose KV cache is keyed by content, not by position.\n\n"
      "  kvilt serve MODEL                      an OpenAI-compatible server on http://127.0.0.1:8000\n"
      "  kvilt generate MODEL \"a question\"      one answer, with what was reused and computed\n"
      "  kvilt bench reuse --model M --synthetic 8x256 --order shuffle\n"
      "                                         what each policy saves on known documents in a new order\n",
      "kvilt");
  app.set_version_flag("--version", kvilt::kVersion);
  app.require_subcommand(1);
  app.fallthrough();
  kvilt::Program program{kvilt::Command(&app), argc, argv};
  kvilt::add_serve(program);
  kvilt::add_generate(program);
  kvilt::add_info(program);
  kvilt::add_tokenize(program);
  kvilt::add_pull(program);
  kvilt::add_cache(program);
  kvilt::add_bench(program);
  kvilt::add_eval(program);
  kvilt::add_profile(program);
  kvilt::add_session(program);
  const auto named = [&](const CLI::App* command) { return command->check_name(argv[1]); };
  if (argc > 1 && argv[1][0] != '-' && app.get_subcommands(named).empty()) {
    std::cerr << "error: there is no command '" << argv[1] << "'; kvilt --help lists them\n";
    return 2;
  }
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow is an error of the write, which cleans up after itself
  CLI11_PARSE(app, argc, argv);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::set_terminate(usual_end);
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc&) {
    std::cerr << "error: not enough memory\n";
  } catch (const std::system_error& e) {
    std::cerr << "error: the system refused: " << e.what() << "\n";
  } catch (const std::exception& e) {  // of a library, which a command should have caught
    std::cerr << "error: " << e.what() << "\n";
  }
  return 1;
}
