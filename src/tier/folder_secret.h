// tier/folder_secret.h: the secret of a cache folder, and with a key what seals all that is in it.
// Idea:       without a key the secret of the folder's digests is drawn and kept there. With one it follows from the key
//             and from the folder's salt, so that nothing secret is in the folder, and what is sealed for one folder opens
//             in no other.
// Invariants: a folder is sealed from its beginning or never; whoever comes without its key, with another one, or with a
//             key for a folder that has none gets an error, and nothing in the folder is changed.
#pragma once

#include <optional>
#include <string>

#include "base/sealer.h"
#include "tier/files.h"

namespace kvilt {

struct FolderSecret {
  HashSecret digests;            // the key of every digest in the folder
  std::optional<Sealer> sealer;  // with a key
  // What digests and sealer follow from: the secret itself, or with a key the salt, which is none.
  HashSecret seed = digests;
};

// What follows from a seed and perhaps a key.
FolderSecret folder_secret(const HashSecret& seed, const std::optional<HashSecret>& key);

// REQUIRES: the folder is locked. Errors: kInvalidArgument (the wrong key, or one too many or too few), kCorrupt (its
// proof of the key is damaged, so what it holds is lost), kExhausted, kIo.
Result<FolderSecret> open_folder_secret(const std::string& folder, const std::optional<HashSecret>& key, Files& files);
// The folder has this seed from now on, and what it held is lost. REQUIRES: it is locked. Errors: kExhausted, kIo.
Result<FolderSecret> begin_folder(const std::string& folder, const std::optional<HashSecret>& key,
                                  const HashSecret& seed, Files& files);

}  // namespace kvilt
