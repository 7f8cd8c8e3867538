#include "grammar/schema_number.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/error.h"

namespace kvilt {
namespace {

constexpr int kMostPlaces = 6;
constexpr int64_t kMostUnits = 1'000'000'000'000'000;  // of bounds
constexpr int64_t kMostEndings = 400;

// units * 10^-places, as it is written in JSON.
struct Decimal {
  int64_t units = 0;
  int places = 0;
};

bool is_too_large(int64_t units) { return units > kMostUnits || units < -kMostUnits; }  // the least one has no abs()

std::optional<Decimal> decimal_of(const SchemaJson& value) {
  if (!value.is_number()) return std::nullopt;
  std::string text = value.dump();
  int exponent = 0;
  if (const size_t e = text.find('e'); e != std::string::npos) {
    exponent = std::atoi(text.c_str() + e + 1);
    text.resize(e);
  }
  if (const size_t point = text.find('.'); point != std::string::npos) {
    while (text.back() == '0') text.pop_back();
    exponent -= static_cast<int>(text.size() - point - 1);
    text.erase(point, 1);
  }
  Decimal out;
  const auto read = std::from_chars(text.data(), text.data() + text.size(), out.units);
  if (read.ec != std::errc() || read.ptr != text.data() + text.size()) return std::nullopt;
  for (; exponent > 0; --exponent) {
    if (is_too_large(out.units)) return std::nullopt;
    out.units *= 10;
  }
  if (is_too_large(out.units) || exponent < -15) return std::nullopt;
  out.places = -exponent;
  return out;
}

int64_t power_of_ten(int n) {
  int64_t out = 1;
  for (; n > 0; --n) out *= 10;
  return out;
}

// The least (or most) whole number of units of 10^-places that is not below (above) a bound. strict: nor equal to it.
std::optional<int64_t> bound_in_units(const SchemaJson& bound, int places, bool lower, bool strict) {
  const auto decimal = decimal_of(bound);
  if (!decimal) return std::nullopt;
  const int shift = places - decimal->places;
  if (shift >= 0) {
    if (std::abs(decimal->units) > kMostUnits / power_of_ten(shift)) return std::nullopt;
    return decimal->units * power_of_ten(shift) + (strict ? (lower ? 1 : -1) : 0);
  }
  const int64_t step = power_of_ten(-shift);
  int64_t floor = decimal->units / step;
  if (decimal->units % step < 0) --floor;
  const bool whole = decimal->units % step == 0;
  if (lower) return whole && !strict ? floor : floor + 1;
  return whole && strict ? floor - 1 : floor;
}

constexpr std::tuple<const char*, bool, bool> kBounds[] = {{"minimum", true, false},  // lower, strict
                                                           {"exclusiveMinimum", true, true},
                                                           {"maximum", false, false},
                                                           {"exclusiveMaximum", false, true}};

// The same of any bound, in what xgrammar rounds it to. Those beyond 1e30 are all the same.
using Wide = __int128;
Wide wide_bound(const SchemaJson& bound, int places, bool lower, bool strict) {
  const Wide step = strict ? (lower ? 1 : -1) : 0;
  if (bound.is_number_integer()) {
    const Wide whole = bound.is_number_unsigned() ? Wide{bound.get<uint64_t>()} : Wide{bound.get<int64_t>()};
    return whole * power_of_ten(places) + step;
  }
  const auto said = bound.get<double>(), kept = std::min(std::max(said, -1e30), 1e30);
  const std::string text = fmt::format("{:.{}f}", kept, places);
  Wide units = 0;
  for (const char c : text) {
    if (c >= '0' && c <= '9') units = units * 10 + (c - '0');
  }
  if (text[0] == '-') units = -units;
  if (kept != said) return units;
  const double nearest = SchemaJson::parse(text).get<double>();
  if (nearest == said) return units + step;
  if (lower) return nearest < said ? units + 1 : units;
  return nearest > said ? units - 1 : units;
}

struct Range {
  std::optional<int64_t> least, most;
};

std::optional<Range> range_of(const SchemaJson& schema, int places) {
  Range out;
  for (const auto& [word, lower, strict] : kBounds) {
    const auto said = schema.find(word);
    if (said == schema.end()) continue;
    const auto bound = bound_in_units(*said, places, lower, strict);
    if (!bound) return std::nullopt;
    if (lower) out.least = std::max(out.least.value_or(*bound), *bound);
    if (!lower) out.most = std::min(out.most.value_or(*bound), *bound);
  }
  return out;
}

std::string digit_class(char first, char last) {
  if (first == last) return std::string(1, first);
  return first == '0' && last == '9' ? "[0-9]" : fmt::format("[{}-{}]", first, last);
}
std::string any_digits(size_t n) { return n == 0 ? "" : fmt::format("[0-9]{{{}}}", n); }

// Numbers of equally many digits between two.
std::string same_length(const std::string& first, const std::string& last) {
  if (first.empty()) return "";
  if (first[0] == last[0]) return first[0] + same_length(first.substr(1), last.substr(1));
  const size_t rest = first.size() - 1;
  char from = first[0], to = last[0];
  std::string out;
  const auto add = [&](const std::string& one) { out += (out.empty() ? "" : "|") + one; };
  if (first.substr(1) != std::string(rest, '0')) {
    add(from + same_length(first.substr(1), std::string(rest, '9')));
    ++from;
  }
  const bool cut_above = last.substr(1) != std::string(rest, '9');
  if (cut_above) --to;
  if (from <= to) add(digit_class(from, to) + any_digits(rest));
  if (cut_above) add(last[0] + same_length(std::string(rest, '0'), last.substr(1)));
  return "(" + out + ")";
}

// Whole numbers, not negative; most: none for no end.
std::string whole_numbers(int64_t least, std::optional<int64_t> most) {
  const std::string first = std::to_string(least);
  if (!most) {
    if (least == 0) return "(0|[1-9][0-9]*)";
    return fmt::format("({}|[1-9][0-9]{{{},}})", same_length(first, std::string(first.size(), '9')), first.size());
  }
  const std::string last = std::to_string(*most);
  std::string out;
  for (size_t n = first.size(); n <= last.size(); ++n) {
    const std::string from = n == first.size() ? first : "1" + std::string(n - 1, '0');
    out += (out.empty() ? "" : "|") + same_length(from, n == last.size() ? last : std::string(n, '9'));
  }
  return "(" + out + ")";
}

// Multiples of `step` among numbers of so many units, written with the last `digits` digits behind a point or not.
struct Endings {
  int64_t step;
  int digits;
  bool point;

  int64_t tens() const { return power_of_ten(digits); }
  bool too_many() const { return point && step == 1 ? digits > kMostPlaces : tens() / step > kMostEndings; }

  // Those between two, behind a whole number (first: that is 0, so nothing stands before them). REQUIRES: has_any
  std::string between(int64_t least, int64_t most, bool first) const {
    if (point && step == 1 && least == 0 && most == tens() - 1) return fmt::format("(\\.[0-9]{{1,{}}})?", digits);
    if (point && step == 1 && least == 1 && most == tens() - 1) return not_all_zeros();
    if (digits == 0) return first ? "0" : "";
    std::string out;
    bool may_be_none = false;
    for (int64_t one = (least + step - 1) / step * step; one <= most; one += step) {
      std::string text = fmt::format("{:0{}}", one, digits);
      if (!point) {
        if (first) text = std::to_string(one);
        out += (out.empty() ? "" : "|") + text;
        continue;
      }
      may_be_none = may_be_none || one == 0;
      const size_t all = text.size();
      while (text.size() > 1 && text.back() == '0') text.pop_back();
      if (text.size() < all) text += fmt::format("0{{0,{}}}", all - text.size());
      out += (out.empty() ? "" : "|") + text;
    }
    if (!point) return "(" + out + ")";
    return "(\\.(" + out + "))" + (may_be_none ? "?" : "");
  }

  // Digits behind a point, one of which is none: by the place of the first.
  std::string not_all_zeros() const {
    std::string out;
    for (int zeros = 0; zeros < digits; ++zeros) {
      out += (out.empty() ? "" : "|") + std::string(static_cast<size_t>(zeros), '0') + "[1-9]";
      if (const int rest = digits - zeros - 1; rest > 0) out += fmt::format("[0-9]{{0,{}}}", rest);
    }
    return "\\.(" + out + ")";
  }

  bool has_any(int64_t least, int64_t most) const { return (least + step - 1) / step * step <= most; }

  // Alternatives: units from `least` (not negative) on.
  std::vector<std::string> alternatives(int64_t least, std::optional<int64_t> most) const {
    std::vector<std::string> out;
    if (most && *most < least) return out;
    int64_t whole = least / tens();
    const auto add = [&](int64_t from, std::optional<int64_t> to, int64_t least_end, int64_t most_end) {
      if (!has_any(least_end, most_end)) return;
      const bool zero = !point && from == 0;
      if (zero) out.push_back(between(least_end, most_end, true));
      if (zero && to == 0) return;
      out.push_back(whole_numbers(zero ? 1 : from, to) + between(least_end, most_end, false));
    };
    if (most && *most / tens() == whole) {
      add(whole, whole, least % tens(), *most % tens());
      return out;
    }
    if (least % tens() != 0) {
      add(whole, whole, least % tens(), tens() - 1);
      ++whole;
    }
    if (!most) {
      add(whole, std::nullopt, 0, tens() - 1);
      return out;
    }
    const bool cut_off = *most % tens() != tens() - 1;
    const int64_t last = *most / tens() - (cut_off ? 1 : 0);
    if (whole <= last) add(whole, last, 0, tens() - 1);
    if (cut_off) add(*most / tens(), *most / tens(), 0, *most % tens());
    return out;
  }
};

constexpr char kLarge = 1;  // the control character that marks a large integer

Status mark_value(SchemaJson& value, bool in_one_of) {
  const auto is_marked = [](const std::string& text) {
    return text.size() > 1 && text[0] == kLarge && text[1] >= '0' && text[1] <= '9';
  };
  const Error taken{Code::kInvalidArgument,
                    "schema: a text of const or enum begins with U+0001 and a digit, which is "
                    "not supported"};
  if (value.is_string() && is_marked(value.get_ref<const std::string&>())) return taken;
  if (value.is_object()) {
    for (const auto& [key, unused] : value.items()) {
      if (is_marked(key)) return taken;
    }
  }
  if (value.is_structured()) {
    for (SchemaJson& inner : value) KVILT_TRY(mark_value(inner, in_one_of));
  }
  if (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX) return {};
  if (in_one_of)
    return error(Code::kInvalidArgument, "schema: the integer {} in a 'oneOf' is not supported: use 'anyOf'",
                 value.dump());
  value = kLarge + value.dump();
  return {};
}

std::optional<Endings> endings_of(const SchemaJson& schema) {
  const auto multiple = decimal_of(schema.value("multipleOf", SchemaJson()));
  if (!multiple || multiple->units <= 0) return std::nullopt;
  const bool whole = schema.value("type", SchemaJson()) == "integer";
  if (whole && multiple->places > 0) return std::nullopt;
  Endings out{multiple->units, multiple->places, !whole && multiple->places > 0};
  if (!out.point) {
    while (out.digits < 4 && power_of_ten(out.digits) % out.step != 0) ++out.digits;
  }
  if (out.digits > kMostPlaces || power_of_ten(out.digits) % out.step != 0 || out.too_many()) return std::nullopt;
  return out;
}

}  // namespace

std::optional<std::string> multiples_expression(const SchemaJson& schema) {
  const auto endings = endings_of(schema);
  if (!endings) return std::nullopt;
  const auto range = range_of(schema, endings->point ? endings->digits : 0);
  if (!range) return std::nullopt;
  const bool all = !range->least && !range->most;
  const int64_t cut = endings->tens();
  const auto ends_at = [&](const std::optional<int64_t>& bound) {
    return bound && endings->point && endings->step == 1 && (*bound % cut) != 0 && cut > kMostEndings;
  };
  if (ends_at(range->least) || ends_at(range->most)) return std::nullopt;
  std::string out;
  const auto add = [&](const std::string& sign, const std::vector<std::string>& ones) {
    for (const std::string& one : ones) out += (out.empty() ? "" : "|") + sign + one;
  };
  if (all || !range->most || *range->most >= 0)
    add("", endings->alternatives(std::max<int64_t>(0, range->least.value_or(0)), range->most));
  if (all || !range->least || *range->least < 0) {
    const int64_t nearest = range->most ? std::max<int64_t>(1, -*range->most) : 1;
    add("-", endings->alternatives(nearest, range->least ? std::optional(-*range->least) : std::nullopt));
  }
  if (out.empty()) return std::nullopt;
  return "^(" + out + ")$";
}

bool divides_all_integers(const SchemaJson& multiple) {
  const auto decimal = decimal_of(multiple);
  return decimal && decimal->units > 0 && decimal->places >= 0 && power_of_ten(decimal->places) % decimal->units == 0;
}

bool leaves_a_number(const SchemaJson& schema, bool whole) {
  std::optional<Wide> least, most;
  for (const auto& [word, lower, strict] : kBounds) {
    const auto said = schema.find(word);
    if (said == schema.end() || !said->is_number()) continue;
    const Wide bound = wide_bound(*said, whole ? 0 : kMostPlaces, lower, strict);
    if (lower) least = std::max(least.value_or(bound), bound);
    if (!lower) most = std::min(most.value_or(bound), bound);
  }
  return !least || !most || *least <= *most;
}

void round_whole_bounds(SchemaJson& schema) {
  for (const auto& [word, lower, strict] : kBounds) {
    const auto said = schema.find(word);
    if (said == schema.end() || is_of(*said, "integer") || !said->is_number()) continue;
    const double bound = said->get<double>();  // below 2^53, since it is not whole
    *said = static_cast<int64_t>(lower != strict ? std::ceil(bound) : std::floor(bound));
  }
}

Status mark_large_integers(SchemaJson& schema, bool in_one_of) {
  if (schema.is_array()) {
    for (SchemaJson& one : schema) KVILT_TRY(mark_large_integers(one, in_one_of));
  }
  if (!schema.is_object()) return {};
  const auto is_in = [](const auto& words, const std::string& word) { return std::ranges::count(words, word) > 0; };
  for (auto member = schema.begin(); member != schema.end(); ++member) {
    const std::string& word = member.key();
    if (word == "const" || word == "enum") {
      KVILT_TRY(mark_value(*member, in_one_of));
    } else if (is_in(kNamed, word) && member->is_object()) {
      for (SchemaJson& one : *member) KVILT_TRY(mark_large_integers(one));
    } else if (!is_in(kValues, word)) {
      KVILT_TRY(mark_large_integers(*member, word == "oneOf"));
    }
  }
  return {};
}

bool lists_multiples(const SchemaJson& schema) {
  const SchemaJson multiple = schema.value("multipleOf", SchemaJson());
  if (schema.value("type", SchemaJson()) != "integer" || !is_of(multiple, "integer")) return false;
  if (multiple.get<double>() < 1 || multiple.get<double>() > 1024) return false;
  const bool below = schema.contains("minimum") || schema.contains("exclusiveMinimum");
  const bool above = schema.contains("maximum") || schema.contains("exclusiveMaximum");
  if (!below && !above) return true;
  const auto range = range_of(schema, 0);
  return below && above && range && *range->most - *range->least < 10'000;
}

}  // namespace kvilt

const char* kvilt_multiples_expression(const char* schema) {
  thread_local std::string text;
  const auto read = kvilt::SchemaJson::parse(schema, nullptr, false);
  if (read.is_discarded() || !read.is_object()) return nullptr;
  auto out = kvilt::multiples_expression(read);
  if (!out) return nullptr;
  text = std::move(*out);
  return text.c_str();
}

std::string kvilt_large_integers(const std::string& json) {
  constexpr std::string_view kBegin = "\"\\u0001";
  std::string out;
  size_t at = 0;
  for (size_t found = json.find(kBegin); found != std::string::npos; found = json.find(kBegin, found + 1)) {
    const size_t digits = found + kBegin.size(), end = json.find_first_not_of("0123456789", digits);
    const bool begins = found == 0 || json[found - 1] != '\\';  // or it is a quote within a text
    if (!begins || end == std::string::npos || end == digits || json[end] != '"') continue;
    out += json.substr(at, found - at) + json.substr(digits, end - digits);
    at = end + 1;
  }
  return out + json.substr(at);
}
