// eval/suite_records.cc: look-alikes: staff lists, invoices, logs and price lists whose rows differ in a name and a
// number, cut into pieces that are known one by one. What a row says is nearly what its neighbours say, so a small error
// in the KV points to the wrong one.
// Questions: a look-up (what number stands at this name?), or one hop (at the name that this row refers to), to a row of
//            any piece. The answer is one number that stands once in the rows.
// Passages:  with `passages`, so many pieces of another text (`path`) stand between them, in random order: a table among
//            prose, of which the share of all text that looks alike says little.
// Source:    this project's own; docs/eval.md#suites.
#include <array>
#include <set>

#include "base/error.h"
#include "base/mapped_file.h"
#include "eval/suite.h"

namespace kvilt {
namespace {

struct Record {
  std::string name, other;  // other: the name that its row refers to
  int number = 0, place = 0;
};

struct Kind {
  const char *name, *system, *title;  // title: {} is the piece's number
  std::string (*make_name)(std::mt19937_64& rng);
  std::string (*row)(const Record& record);
  const char *lookup, *hop;  // {} is the name
};

std::string person(std::mt19937_64& rng) {
  static const char* const kFirst[] = {"Anna",   "Boris", "Clara", "David", "Elena", "Felix", "Greta",
                                       "Henrik", "Irene", "Jonas", "Karin", "Lukas", "Maria", "Nils",
                                       "Olga",   "Pavel", "Rosa",  "Simon", "Tilda", "Viktor"};
  static const char* const kLast[] = {"Abel",   "Berger", "Conrad", "Dorn",   "Ebert",  "Falk",  "Graf",
                                      "Hansen", "Ivers",  "Jansen", "Keller", "Lorenz", "Meier", "Nolte",
                                      "Oster",  "Peters", "Reuter", "Sander", "Thoma",  "Winter"};
  return fmt::format("{} {}", kFirst[rng() % 20], kLast[rng() % 20]);
}
std::string invoice(std::mt19937_64& rng) { return fmt::format("R-{}", 20000 + rng() % 9999); }
std::string job(std::mt19937_64& rng) {
  static const char* const kWhat[] = {"backup", "index", "report", "mail", "sync", "import", "export", "cleanup"};
  return fmt::format("{}-{}", kWhat[rng() % 8], 100 + rng() % 900);
}
std::string part(std::mt19937_64& rng) {
  static const char* const kWhat[] = {"screw", "washer", "bolt", "bracket", "hinge", "spring", "valve", "gasket"};
  static const char* const kOf[] = {"steel", "brass", "zinc", "copper", "nylon", "rubber"};
  return fmt::format("{} {} M{}", kOf[rng() % 6], kWhat[rng() % 8], 2 + rng() % 29);
}

const std::array<Kind, 4> kKinds = {{
    {"staff", "Answer from the staff lists.", "Staff list of department {}\n", person,
     [](const Record& r) {
       return fmt::format("{}, room {}, extension {}, deputy: {}\n", r.name, r.place, r.number, r.other);
     },
     "What is the extension of {}? Reply with the number.",
     "What is the extension of the deputy of {}? Reply with the number."},
    {"invoices", "Answer from the invoices.", "Invoices, page {}\n", invoice,
     [](const Record& r) {
       return fmt::format("Invoice {}: due in {} days, total {} EUR, follows invoice {}\n", r.name, 10 + r.place % 50,
                          r.number, r.other);
     },
     "What is the total of invoice {}? Reply with the number.",
     "What is the total of the invoice that invoice {} follows? Reply with the number."},
    {"logs", "Answer from the logs.", "Log of server {}\n", job,
     [](const Record& r) {
       return fmt::format("12:{:02}:{:02} job {} finished after {} ms, started by job {}\n", r.place / 60 % 60,
                          r.place % 60, r.name, r.number, r.other);
     },
     "After how many ms did job {} finish? Reply with the number.",
     "After how many ms did the job finish that started job {}? Reply with the number."},
    {"prices", "Answer from the price lists.",
     "Warehouse {}\n| item | shelf | stock | goes with |\n|---|---|---|---|\n", part,
     [](const Record& r) { return fmt::format("| {} | {} | {} | {} |\n", r.name, r.place, r.number, r.other); },
     "How many of {} are in stock? Reply with the number.",
     "How many are in stock of the item that {} goes with? Reply with the number."},
}};

constexpr size_t kPassageBytes = 1000, kMostPassageBytes = size_t{256} << 20;

// Passages of `text`, from one space to another, at random places among `pieces`.
void add_passages(const std::string& text, int count, std::mt19937_64& rng, std::vector<std::string>& pieces) {
  const auto space = [&](size_t at) { return std::min(text.find_first_of(" \n", at), text.size()); };
  for (int i = 0; i < count; ++i) {
    const size_t at = space(rng() % (text.size() - kPassageBytes));
    pieces.insert(pieces.begin() + static_cast<long>(rng() % (pieces.size() + 1)),
                  text.substr(at, space(std::min(at + kPassageBytes, text.size())) - at) + "\n");
  }
}

}  // namespace

Result<std::vector<CaseSource>> make_records(Engine& engine, SuiteParams& params) {
  const int n = params.number("n", 20, 1, 100000), length = params.number("length", 1000, 64, 1 << 16);
  const int pieces = params.number("segments", 8, 1, 1000), seed = params.number("seed", 1, 0, 1 << 30);
  const std::string kind = params.text("kind", "mixed"), as = params.text("as", "records");
  const int hops = params.number("hops", -1, 0, 1);  // -1: both in turn
  const int passages = params.number("passages", 0, 0, 1000);
  const std::string path = passages > 0 ? params.needed_text("path") : "";
  KVILT_TRY(params.finish());
  int only = -1;
  for (size_t k = 0; k < kKinds.size(); ++k) only = kind == kKinds[k].name ? static_cast<int>(k) : only;
  if (only < 0 && kind != "mixed")
    return error(Code::kInvalidArgument, "suite 'records': kind is '{}', not mixed, staff, invoices, logs or prices",
                 kind);
  std::string prose;
  if (passages > 0) {
    KVILT_ASSIGN(prose, read_file(path, kMostPassageBytes));
    if (prose.size() < 2 * kPassageBytes)
      return error(Code::kInvalidArgument, "{}: needs at least {} bytes of text", path, 2 * kPassageBytes);
  }
  return numbered(as, n, seed, [=, &engine](int index, std::mt19937_64& rng) -> Result<EvalCase> {
    const Kind& of = kKinds[only >= 0 ? only : index % 4];
    std::set<std::string> names;
    std::set<int> numbers;
    const auto fresh_name = [&] {
      std::string name = of.make_name(rng);
      while (!names.insert(name).second) name = of.make_name(rng);
      return name;
    };
    std::vector<Record> records;
    // The first pass only counts: rows refer to names of any piece, which must all be there before one is written.
    KVILT_ASSIGN(const int row_tokens, token_count(engine, of.row({of.make_name(rng), of.make_name(rng), 4711, 314})));
    const int rows = std::min(300, std::max(2 * pieces, length / std::max(1, row_tokens)));
    for (int i = 0; i < rows; ++i) {
      int number = 0;
      while (!numbers.insert(number = 1000 + static_cast<int>(rng() % 9000)).second) continue;
      records.push_back({fresh_name(), "", number, 100 + static_cast<int>(rng() % 800)});
    }
    for (int i = 0; i < rows; ++i)
      records[i].other = records[(i + 1 + static_cast<int>(rng() % static_cast<uint64_t>(rows - 1))) % rows].name;
    std::vector<std::string> texts;
    for (int p = 0; p < pieces; ++p) {
      texts.push_back(fmt::format(fmt::runtime(of.title), p + 1));
      for (int i = rows * p / pieces; i < rows * (p + 1) / pieces; ++i) texts.back() += of.row(records[i]);
    }
    if (passages > 0) add_passages(prose, passages, rng, texts);
    const Record& asked = records[rng() % records.size()];
    const bool hop = hops >= 0 ? hops == 1 : index / 4 % 2 == 1;
    EvalCase out = rag_case(of.system, texts, fmt::format(fmt::runtime(hop ? of.hop : of.lookup), asked.name));
    for (const Record& record : records) {
      if (record.name == (hop ? asked.other : asked.name)) out.answers = {std::to_string(record.number)};
    }
    out.metric = Metric::kContains;
    return out;
  });
}

}  // namespace kvilt
