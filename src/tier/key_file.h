// tier/key_file.h: a key that a person made (openssl rand -hex 32), from a file that others cannot read, or from text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/keyed_hash.h"
#include "kvilt/result.h"

namespace kvilt {

// 32 bytes, or 64 hexadecimal digits and perhaps the end of a line. Errors: kInvalidArgument; `name` is what it came from,
// and no part of the key is in the message.
Result<HashSecret> key_of(std::string_view text, const std::string& name);
// Errors: those, kInvalidArgument where others may read or write it, or its group write it (containers mount secrets that
// their group may read), kNotFound, kIo.
Result<HashSecret> read_key_file(const std::string& path);
// The file's, or else the text's; nothing where both are empty. Errors: those.
Result<std::optional<HashSecret>> given_key(const std::string& path, std::string_view text, const std::string& name);

}  // namespace kvilt
