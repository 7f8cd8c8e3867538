// apps/flags.h: the program's flags, as its commands see them. Only flags.cc and main.cc see CLI11, which takes longer
// to compile than any command.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "kvilt/result.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace kvilt {

// One option. Every function returns the option itself, so that calls can be chained.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  Option& show_default();  // the value that the variable has now, in the help
  Option& required();
  Option& range(int low, int high);
  Option& range(double low, double high);
  Option& one_of(const std::vector<std::string>& words);
  Option& bytes();                            // takes 2GiB, 100kb, ...
  Option& not_empty(const std::string& why);  // "" is an error that says why
  Option& excludes(const Option& other);
  // An error without the other one. instead: a variable of the environment that stands for it.
  Option& needs(const Option& other, const char* instead = nullptr);

 private:
  CLI::Option* option_;
};

// One (sub-)command. Names are as CLI11 spells them: "--threads,-t"; "MODEL" is positional; "!--no-cache" sets false.
class Command {
 public:
  explicit Command(CLI::App* app) : app_(app) {}
  Command add_subcommand(const std::string& name, const std::string& what);
  void require_subcommand();
  void callback(std::function<void()> run);

  // T: std::string, int, int64_t, uint64_t, float, double, std::optional<int, uint64_t or float>, which is empty unless
  // the option is given, or std::vector<std::string>, which is given more than once.
  template <class T>
  Option add_option(const std::string& names, T& value, const std::string& what = "");
  Option add_flag(const std::string& names, bool& value, const std::string& what);
  void remove_option(const std::string& name);

  // A word of an enum (kvilt/options.h). A wrong one is an error that lists the words there are.
  template <class T>
  Option add_choice(const std::string& names, T& value, Result<T> (*parse)(std::string_view),
                    std::string_view (*name)(T), const std::string& what) {
    const auto take = [&value, parse](const std::string& word) {
      const Result<T> parsed = parse(word);
      if (parsed.ok()) value = *parsed;
      return parsed.ok() ? std::string() : parsed.error().message;
    };
    return add_word(names, take, std::string(name(value)), what);
  }

 private:
  // take: sets the variable, or returns why not.
  Option add_word(const std::string& names, std::function<std::string(const std::string&)> take,
                  const std::string& shown, const std::string& what);
  CLI::App* app_;
};

}  // namespace kvilt
