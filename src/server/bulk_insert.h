// server/bulk_insert.h: many documents into a knowledge base by one request: JSON lines, or files of a form
// (docs/server.md#many-documents-at-once).
// Idea:       first all parts are read one by one, and written down by tens; then they are computed one by one, and the
//             client hears of each. Of the body one part at a time is taken apart, and it is given back before the
//             computing, which may take long.
// Invariants: a part that is wrong is named, with its number, and the others go on. Who leaves ends what is not done:
//             documents that are written down stay, and are computed by the first chat that names them.
// Threads:    the HTTP thread that answers.
#pragma once

#include "server/service.h"

namespace kvilt::server {

// REQUIRES: BodyParts::kind_of(body.type).
void insert_documents(Service& service, const Call& call, RawBody body, httplib::Response& response);

}  // namespace kvilt::server
