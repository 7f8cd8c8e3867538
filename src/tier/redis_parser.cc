#include "tier/redis_parser.h"

#include <hiredis/hiredis.h>

#include <new>
#include <utility>

#include "base/error.h"

namespace kvilt {
namespace {

// hiredis calls these for each object of a reply; null is its "out of memory", which ends the connection.
struct ReplyMaker {
  static RedisReply* place(const redisReadTask* task) {
    if (task->parent == nullptr) return new (std::nothrow) RedisReply;
    return &static_cast<RedisReply*>(task->parent->obj)->array[static_cast<size_t>(task->idx)];
  }
  static void* text(const redisReadTask* task, char* data, size_t size) {
    RedisReply* out = place(task);
    if (!out) return nullptr;
    out->kind = task->type == REDIS_REPLY_ERROR ? RedisReply::Kind::kError : RedisReply::Kind::kText;
    try {
      out->text.assign(data, size);
    } catch (const std::bad_alloc&) {
      if (task->parent == nullptr) delete out;
      return nullptr;
    }
    return out;
  }
  template <class Count>  // an int in older releases of hiredis, a size_t in newer ones
  static void* array(const redisReadTask* task, Count count) {
    size_t& left = *static_cast<size_t*>(task->privdata);
    if (static_cast<size_t>(count) > left) return nullptr;
    left -= static_cast<size_t>(count);
    RedisReply* out = place(task);
    if (!out) return nullptr;
    out->kind = RedisReply::Kind::kArray;
    try {
      out->array.resize(static_cast<size_t>(count));
    } catch (const std::bad_alloc&) {
      if (task->parent == nullptr) delete out;
      return nullptr;
    }
    return out;
  }
  static void* number(const redisReadTask* task, long long value) {
    RedisReply* out = place(task);
    if (!out) return nullptr;
    out->kind = RedisReply::Kind::kNumber;
    out->number = value;
    return out;
  }
  // Of RESP3, which nobody asked for: refused as if there were no memory for them.
  static void* refused_number(const redisReadTask*, double, char*, size_t) { return nullptr; }
  static void* refused_truth(const redisReadTask*, int) { return nullptr; }
  static void* nil(const redisReadTask* task) { return place(task); }
  static void free(void* root) { delete static_cast<RedisReply*>(root); }
};

redisReplyObjectFunctions* maker_functions() {
  static redisReplyObjectFunctions functions = [] {
    redisReplyObjectFunctions out{};
    out.createString = &ReplyMaker::text;
    out.createArray = &ReplyMaker::array;
    out.createInteger = &ReplyMaker::number;
    out.createNil = &ReplyMaker::nil;
    out.freeObject = &ReplyMaker::free;
#if HIREDIS_MAJOR >= 1  // without these it would make objects of its own
    out.createDouble = &ReplyMaker::refused_number;
    out.createBool = &ReplyMaker::refused_truth;
#endif
    return out;
  }();
  return &functions;
}

}  // namespace

void RedisParser::Free::operator()(redisReader* reader) const { redisReaderFree(reader); }

RedisParser::RedisParser() : reader_(redisReaderCreateWithFunctions(maker_functions())) {
  if (reader_) reader_->privdata = &left_;
}

RedisParser::~RedisParser() = default;

Status RedisParser::feed(std::string_view bytes) {
  if (!reader_) return failure();
  return redisReaderFeed(reader_.get(), bytes.data(), bytes.size()) == REDIS_OK ? Status() : Status(failure());
}

Result<std::optional<RedisReply>> RedisParser::next() {
  void* made = nullptr;
  if (!reader_ || redisReaderGetReply(reader_.get(), &made) != REDIS_OK) return failure();
  if (!made) return std::optional<RedisReply>();
  const std::unique_ptr<RedisReply> whole(static_cast<RedisReply*>(made));
  left_ = kMostElements;
  return std::optional(std::move(*whole));
}

Error RedisParser::failure() const {
  if (!reader_) return error(Code::kExhausted, "no memory is left to read what it says");
  const bool refused = reader_->err == REDIS_ERR_OOM;  // by ReplyMaker, most likely
  return error(Code::kCorrupt, "{}",
               refused ? "its reply has more parts than any that was asked for" : reader_->errstr);
}

}  // namespace kvilt
