// grammar/schema_meet.h: one schema that says what several say together.
// Idea:       xgrammar reads one of a schema's ruling keywords and none beside it. Here what stands beside a union goes
//             into each of its branches, a $ref beside conditions becomes what it leads to, and the schemas of an allOf
//             become one. `(A or B) and C` is `(A and C) or (B and C)`, and the same holds for exactly one of them.
// Invariants: what fits the result fits all that it was made of; never the other way round at the cost of that. Where two
//             conditions cannot be written as one, that is an error which names them.
// Cost:       what it copies and looks at is bounded, over all calls together (kMostCopied values, Looked).
#pragma once

#include "grammar/schema_words.h"
#include "kvilt/result.h"

namespace kvilt {

class SchemaMeet {
 public:
  SchemaMeet(const SchemaJson& root, Looked& looked) : root_(root), looked_(looked) {}

  // The conditions of a schema with one ruling keyword and nothing beside it; or a boolean.
  Result<SchemaJson> flat(const SchemaJson& schema, int depth = 0);
  // Whether each value that fits the branch fits what stands beside it anyway.
  bool is_implied(const SchemaJson& beside, const SchemaJson& branch) const;

 private:
  static constexpr size_t kMostCopied = 40'000;

  // Of two that are flat. outer: the one that the other is in, where that matters (unevaluatedProperties).
  Result<SchemaJson> both(const SchemaJson& outer, const SchemaJson& inner, int depth);
  Result<SchemaJson> spread(const SchemaJson& schema, const char* word, const SchemaJson& beside, int depth);
  Result<SchemaJson> plain(const SchemaJson& outer, const SchemaJson& inner, int depth);
  Result<SchemaJson> values(SchemaJson out, const SchemaJson& outer, const SchemaJson& inner) const;
  Status objects(SchemaJson& out, const SchemaJson& outer, const SchemaJson& inner, int depth);
  Status lists(SchemaJson& out, const SchemaJson& outer, const SchemaJson& inner, int depth);
  Status inside(SchemaJson& out, const char* word, const SchemaJson& outer, const SchemaJson& inner, int depth);
  Result<SchemaJson> target_of(const SchemaJson& ref, int depth);
  Result<SchemaJson> unions(SchemaJson out, const SchemaJson& schema, int depth);
  Status spend(const SchemaJson& schema);

  const SchemaJson& root_;  // what a $ref begins at
  Looked& looked_;
  size_t copied_ = 0;
};

}  // namespace kvilt
