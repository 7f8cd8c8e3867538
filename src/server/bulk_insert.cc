#include "server/bulk_insert.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "server/answer_queue.h"
#include "server/body_parts.h"
#include "server/chat_body.h"
#include "server/knowledge_writer.h"
#include "server/openai_request.h"
#include "server/openai_response.h"
#include "server/sse.h"
#include "server/told_work.h"
#include "server/warming.h"
#include "server/warming_request.h"

namespace kvilt::server {
namespace {

constexpr size_t kPutAtOnce = 64, kPutBytes = size_t{1} << 20;  // documents of one write to disk, and of their texts
constexpr size_t kMostSettings = size_t{64} << 10;              // bytes: they are read again with each document
constexpr size_t kMostNamed = 1000;                             // of parts that are wrong; the rest is counted

Json text_of(const KnowledgeDocument& document) {
  Json out = {{"text", document.text}};
  if (!document.title.empty()) out["title"] = document.title;
  return out;
}

class Bulk : public ToldWork {
 public:
  Bulk(Service& service, const Call& call, RawBody body)
      : service_(service),
        http_(call.http),
        attached_(call.attached),
        caller_(call.caller),
        body_(std::move(body)),
        writer_(service.knowledge(), call.attached.engine, call.caller.tenant->name(), call.http.matches[1]) {}

  // What can be said before the first document; with the settings that come before them.
  std::optional<ApiError> open();

  End run(const Tell& tell) override;
  const ApiError& error() const override { return error_; }
  Json summary() override;

 private:
  struct Pending {
    BodyParts::Part part;
    KnowledgeDocumentPtr document;
  };
  std::optional<ApiError> read_settings(std::string_view text);
  // The route's words with this service's engine. REQUIRES: the result does not outlive `none` and `pass`.
  Call call(MemoryGate::Pass& pass) { return {http_, none_, pass, attached_, caller_}; }
  End take_parts(const Tell& tell);
  std::optional<Error> read_part(const BodyParts::Part& part);
  ApiResult<Json> entry_of(const BodyParts::Part& part) const;
  End put_pending(const Tell& tell);
  End compute(const Tell& tell);
  bool begin(size_t next, AnswerQueue& answer);
  Result<Request> request_of(const KnowledgeDocument& document);
  void ended(const KnowledgeDocumentPtr& document, const Completion& end);
  void bad(const BodyParts::Part& part, std::string message, int status);
  void not_computed(const KnowledgeDocument& document, const std::string& message);
  End fail(ApiError error);
  Json progress();
  Json named(const BodyParts::Part& part) const;
  bool gone() const { return Connection::current()->peer_gone(); }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  Service& service_;
  const httplib::Request& http_;
  const Attached attached_;
  const Caller caller_;
  RawBody body_;
  KnowledgeWriter writer_;
  std::optional<BodyParts> parts_;
  std::optional<BodyParts::Part> first_;  // taken by open(), if it is a document
  Json none_, settings_ = Json::object();
  DocumentsRequest wanted_;
  const Clock::time_point start_ = Clock::now();

  std::map<std::string, size_t> ids_;  // with the number of the part that has each
  std::vector<Pending> pending_;       // not put yet
  size_t pending_bytes_ = 0;
  std::vector<KnowledgeDocumentPtr> stored_;
  std::optional<Request> next_;  // of the document that is to be computed next
  Clock::time_point refused_since_{};
  std::vector<size_t> of_choice_;  // places in stored_
  size_t over_ = 0, computed_ = 0, bad_count_ = 0;
  int64_t tokens_ = 0;
  Json bad_ = Json::array(), news_ = Json::array(), not_computed_ = Json::array();
  int bad_status_ = 0;  // of the first one
  UsageSum usage_;
  ApiError error_;
};

std::optional<ApiError> Bulk::open() {
  if (const auto base = service_.knowledge().info(caller_.tenant->name(), writer_.base()); !base.ok())
    return api_error(base.error(), "name");
  auto parts = BodyParts::open(body_.type, body_.text);
  if (!parts.ok()) return parts.error();
  parts_ = std::move(parts.value());
  first_ = parts_->next();
  if (!first_) return ApiError{400, "the body has no documents", "documents", ""};
  const bool form = parts_->kind() == BodyParts::Kind::kForm;
  const bool has = form ? first_->name == "settings" && !first_->is_file
                        : first_->content.substr(0, kMostNamed).find("\"settings\"") != std::string_view::npos;
  if (!has) return read_settings("{}");
  if (first_->content.size() > kMostSettings)
    return ApiError{400, fmt::format("settings: have more than {} bytes", kMostSettings), "settings", ""};
  if (form) {
    auto error = read_settings(first_->content);
    first_.reset();
    return error;
  }
  const auto line = parse_json(first_->content);
  if (!line.ok() || !line.value().is_object() || line.value().size() != 1 || !line.value().contains("settings"))
    return read_settings("{}");  // a document whose text has the word
  first_.reset();
  return read_settings(dump(line.value()["settings"]));
}

// As the list's other fields are; `documents` come by themselves.
std::optional<ApiError> Bulk::read_settings(std::string_view text) {
  auto parsed = parse_json(text);
  if (!parsed.ok()) return parsed.error();
  if (!parsed.value().is_object()) return ApiError{400, "settings: must be an object", "settings", ""};
  settings_ = std::move(parsed.value());
  if (settings_.contains("documents"))
    return ApiError{400, "settings: the documents come by themselves, one a line or file", "settings.documents", ""};
  settings_["documents"] = Json::array({{{"text", ""}}});
  auto wanted = parse_documents(settings_, limits_of(attached_));
  if (!wanted.ok()) return wanted.error();
  wanted_ = std::move(wanted.value());
  if (wanted_.season > 0) {
    return ApiError{400, "kvilt.season: not for documents in bulk; send those that are asked about together as a list",
                    "kvilt.season", ""};
  }
  auto pass = service_.room_for(0);
  return check_warming(call(*pass), wanted_);
}

Bulk::End Bulk::run(const Tell& tell) {
  if (const End end = take_parts(tell); end != End::kDone) return end;
  return compute(tell);
}

Bulk::End Bulk::take_parts(const Tell& tell) {
  for (auto part = first_ ? std::exchange(first_, std::nullopt) : parts_->next(); part; part = parts_->next()) {
    if (gone()) return End::kGone;
    if (auto why = read_part(*part)) {
      if (why->code == Code::kUnavailable) return fail(api_error(*why));
      bad(*part, why->message, 400);
    }
    if (pending_.size() < kPutAtOnce && pending_bytes_ < kPutBytes) continue;
    if (const End end = put_pending(tell); end != End::kDone) return end;
  }
  if (const End end = put_pending(tell); end != End::kDone) return end;
  parts_.reset();
  std::string().swap(body_.text);
  body_.counted.reset();
  if (!stored_.empty()) return End::kDone;
  if (bad_.empty()) return fail({400, "the body has no documents", "documents", ""});
  Json first = bad_[0];
  const char* what = first.contains("line") ? "line" : "part";
  return fail({bad_status_,
               fmt::format("no document was taken of {}: {} {}: {}", bad_count_, what, first[what].get<size_t>(),
                           first["message"].get<std::string>()),
               "documents", ""});
}

// A document of `documents` in a list.
ApiResult<Json> Bulk::entry_of(const BodyParts::Part& part) const {
  if (!part.wrong.empty()) return ApiError{400, part.wrong, "", ""};
  if (parts_->kind() == BodyParts::Kind::kLines) return parse_json(part.content);
  if (!part.is_file)
    return ApiError{400, fmt::format("the field '{}' is no file, and 'settings' come first", part.name), "", ""};
  if (!is_text(part.content)) return ApiError{400, "the file is no text in UTF-8", "", ""};
  Json entry = {{"title", part.file}, {"text", part.content}};
  // A file that is sent again takes its own place. Where its name is none for a document, the id follows from the text.
  if (KnowledgeBases::check_name("", part.file, KnowledgeBases::kMaxId).ok()) entry["id"] = part.file;
  return entry;
}

// Why it is no document; none: it waits to be put.
std::optional<Error> Bulk::read_part(const BodyParts::Part& part) {
  auto pass = service_.room_for(part.content.size());
  if (!pass) return Error{Code::kUnavailable, "other large requests are being read: try again soon"};
  const auto wrong = [](std::string message) {
    // It is the only one that was looked at.
    for (const std::string_view of : {"documents[0].", "documents[0]: ", "the body "}) {
      if (message.starts_with(of)) message.erase(0, of.size());
    }
    return Error{Code::kInvalidArgument, std::move(message)};
  };
  auto entry = entry_of(part);
  if (!entry.ok()) return wrong(entry.error().message);
  settings_["documents"] = Json::array({std::move(entry.value())});
  if (auto parsed = parse_documents(settings_, limits_of(attached_)); !parsed.ok())
    return wrong(parsed.error().message);
  const auto prompts = document_prompts(service_, call(*pass), settings_);
  if (!prompts.ok()) return wrong(prompts.error().message);
  const Prompt& prompt = prompts.value().at(0);
  if (const auto most = static_cast<size_t>(attached_.engine->info().context); prompt.ids.size() > most)
    return wrong(fmt::format("it makes a prompt of {} tokens; this model's context is {}", prompt.ids.size(), most));
  auto document = KnowledgeWriter::read(settings_["documents"][0], "id", prompt);
  if (!document.ok()) return document.error();
  if (const auto [at, fresh] = ids_.emplace(document.value()->id, part.number); !fresh)
    return wrong(fmt::format("id: '{}' is there already, in number {}", at->first, at->second));
  pending_bytes_ += document.value()->bytes();
  BodyParts::Part of = part;
  of.content = {};
  pending_.push_back({std::move(of), std::move(document.value())});
  return std::nullopt;
}

// Where not all have room, those that do.
Bulk::End Bulk::put_pending(const Tell& tell) {
  std::vector<Pending> pending = std::exchange(pending_, {});
  pending_bytes_ = 0;
  std::vector<KnowledgeDocumentPtr> documents;
  for (const Pending& one : pending) documents.push_back(one.document);
  const Status put = documents.empty() ? Status() : writer_.put(documents);
  if (put.ok()) {
    std::ranges::move(documents, std::back_inserter(stored_));
  } else if (put.error().code != Code::kOverLimit) {
    return fail(api_error(put.error(), "documents"));
  } else {
    for (const Pending& one : pending) {
      const Status alone = writer_.put({one.document});
      if (alone.ok()) {
        stored_.push_back(one.document);
      } else {
        bad(one.part, alone.error().message, api_error(alone.error()).status);
      }
    }
  }
  return tell(sse_event(progress())) ? End::kDone : End::kGone;
}

Result<Request> Bulk::request_of(const KnowledgeDocument& document) {
  auto pass = service_.room_for(document.bytes());
  if (!pass) return Error{Code::kUnavailable, "other large requests are being read"};
  settings_["documents"] = Json::array({text_of(document)});
  KVILT_ASSIGN(std::vector<Prompt> prompts, document_prompts(service_, call(*pass), settings_));
  Request request = warming_request(std::move(prompts.at(0)), wanted_);
  request.frozen_as = writer_.frozen_as(document);
  return request;
}

// Hands the next one to the engine, or says why it is not computed. False: others have all places, which is waited for
// as long as some of these are ours.
bool Bulk::begin(size_t next, AnswerQueue& answer) {
  const KnowledgeDocument& document = *stored_[next];
  const auto skip = [&](const std::string& why) {
    not_computed(document, why);
    ++over_;
    next_.reset();
    return true;
  };
  if (!writer_.has(document)) return skip("it was deleted or replaced meanwhile");
  if (!next_) {
    auto request = request_of(document);
    if (!request.ok() && request.error().code == Code::kUnavailable) return false;
    if (!request.ok()) return skip(request.error().message);
    next_ = std::move(request.value());
    refused_since_ = Clock::now();
  }
  const Status submitted = answer.submit(*next_);
  if (submitted.ok()) {
    of_choice_.push_back(next);
    next_.reset();
    return true;
  }
  const bool others_will_end = next > over_ || Clock::now() < refused_since_ + kPlacePatience;
  return waits_for_others(submitted.error()) && others_will_end ? false : skip(submitted.error().message);
}

Bulk::End Bulk::compute(const Tell& tell) {
  AnswerQueue answer({attached_.engine, attached_.metrics, caller_.tenant}, AnswerQueue::Reader::kWhole);
  const size_t at_once = batch_at_once(caller_.tenant->max_requests());
  for (size_t next = 0; over_ < stored_.size();) {
    while (next < stored_.size() && next < over_ + at_once && begin(next, answer)) ++next;
    auto event = answer.next(AnswerQueue::kLook);
    if (gone()) return End::kGone;
    if (service_.ending()) return fail({503, "the server is shutting down", "", "unavailable"});
    if (event && event->end) ended(stored_[of_choice_[static_cast<size_t>(event->choice)]], *event->end);
    if (!tell(event && event->end ? sse_event(progress()) : std::string())) return End::kGone;
  }
  return End::kDone;
}

void Bulk::ended(const KnowledgeDocumentPtr& document, const Completion& end) {
  ++over_;
  writer_.thaw_deleted({document});
  if (end.finish == Finish::kError || end.finish == Finish::kCancelled)
    return not_computed(*document, end.error ? end.error->message : "it was cancelled");
  ++computed_;
  tokens_ += document->tokens;
  usage_.add_prompt(end.usage);
}

Json Bulk::named(const BodyParts::Part& part) const {
  const bool form = parts_->kind() == BodyParts::Kind::kForm;
  Json out = {{form ? "part" : "line", part.number}};
  if (part.is_file) out["file"] = part.file;
  return out;
}

void Bulk::bad(const BodyParts::Part& part, std::string message, int status) {
  if (bad_count_++ == 0) bad_status_ = status;
  if (bad_.size() >= kMostNamed) return;
  Json one = named(part);
  one["message"] = std::move(message);
  news_.push_back(one);
  bad_.push_back(std::move(one));
}

void Bulk::not_computed(const KnowledgeDocument& document, const std::string& message) {
  if (not_computed_.size() < kMostNamed) not_computed_.push_back({{"id", document.id}, {"message", message}});
}

Bulk::End Bulk::fail(ApiError error) {
  error_ = std::move(error);
  return End::kFailed;
}

Json Bulk::progress() {
  return {{"object", "kvilt.documents.progress"},
          {"done", over_},
          {"of", stored_.size()},
          {"tokens", tokens_},
          {"seconds", seconds()},
          {"bad", std::exchange(news_, Json::array())}};
}

Json Bulk::summary() {
  return {{"object", "kvilt.documents.summary"},
          {"knowledge_base", writer_.base()},
          {"model", attached_.model},
          {"stored", stored_.size()},
          {"computed", computed_},
          {"tokens", tokens_},
          {"seconds", seconds()},
          {"bad_count", bad_count_},
          {"bad", bad_},
          {"not_computed", not_computed_},
          {"usage", usage_json(usage_)}};
}

}  // namespace

void insert_documents(Service& service, const Call& call, RawBody body, httplib::Response& response) {
  auto bulk = std::make_shared<Bulk>(service, call, std::move(body));
  if (auto error = bulk->open()) return reply_error(response, *error);
  answer_work(service, call.http, response, std::move(bulk));
}

}  // namespace kvilt::server
