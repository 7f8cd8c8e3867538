#include "apps/flags.h"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdlib>
#include <optional>

namespace kvilt {

Option& Option::show_default() { return option_->capture_default_str(), *this; }
Option& Option::required() { return option_->required(), *this; }
Option& Option::range(int low, int high) { return option_->check(CLI::Range(low, high)), *this; }
Option& Option::range(double low, double high) { return option_->check(CLI::Range(low, high)), *this; }
Option& Option::one_of(const std::vector<std::string>& words) { return option_->check(CLI::IsMember(words)), *this; }
Option& Option::bytes() { return option_->transform(CLI::AsSizeValue(false)), *this; }
Option& Option::not_empty(const std::string& why) {
  return option_->check([why](const std::string& given) { return given.empty() ? why : std::string(); }), *this;
}
Option& Option::excludes(const Option& other) { return option_->excludes(other.option_), *this; }
Option& Option::needs(const Option& other, const char* instead) {
  if (!instead || !std::getenv(instead)) option_->needs(other.option_);
  return *this;
}

Command Command::add_subcommand(const std::string& name, const std::string& what) {
  return Command(app_->add_subcommand(name, what));
}
void Command::require_subcommand() { app_->require_subcommand(1); }
void Command::callback(std::function<void()> run) { app_->callback(std::move(run)); }
void Command::remove_option(const std::string& name) { app_->remove_option(app_->get_option(name)); }

template <class T>
Option Command::add_option(const std::string& names, T& value, const std::string& what) {
  return Option(app_->add_option(names, value, what));
}
template Option Command::add_option(const std::string&, std::string&, const std::string&);
template Option Command::add_option(const std::string&, int&, const std::string&);
template Option Command::add_option(const std::string&, int64_t&, const std::string&);
template Option Command::add_option(const std::string&, uint64_t&, const std::string&);
template Option Command::add_option(const std::string&, float&, const std::string&);
template Option Command::add_option(const std::string&, double&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<int>&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<uint64_t>&, const std::string&);
template Option Command::add_option(const std::string&, std::optional<float>&, const std::string&);
template Option Command::add_option(const std::string&, std::vector<std::string>&, const std::string&);

Option Command::add_flag(const std::string& names, bool& value, const std::string& what) {
  return Option(app_->add_flag(names, value, what));
}

Option Command::add_word(const std::string& names, std::function<std::string(const std::string&)> take,
                         const std::string& shown, const std::string& what) {
  const auto set = [take, names](const std::string& word) {
    if (const std::string wrong = take(word); !wrong.empty()) throw CLI::ValidationError(names, wrong);
  };
  return Option(app_->add_option_function<std::string>(names, set, what)->default_str(shown));
}

}  // namespace kvilt
