// grammar/schema_union.h: whether the schemas of a oneOf exclude each other.
// Idea:       where no value fits two of them, exactly one of them is any of them, and that a grammar can say.
// Invariants: what is said to exclude each other does so whatever else the schemas say.
#pragma once

#include "grammar/schema_words.h"

namespace kvilt {

// An object behind a $ref that must have a property from now on.
struct RequiredLater {
  std::string ref;
  std::string key;
};

// Whether no value fits two of the branches: they are of other types, have other values, or are objects with one property
// that has other values in each. Where none of two objects requires that property, both shall: an answer has the tag by
// which readers tell them apart. Those behind a $ref are added to `later`: whoever walks the tree may be inside them.
// Errors (false): also where too much was looked at, which `looked` says.
bool make_exclusive(SchemaJson& root, SchemaJson& branches, Looked& looked, std::vector<RequiredLater>& later);

// REQUIRES: nobody holds a reference into the tree. Errors (false): it is no object with that property any more.
bool require_now(SchemaJson& root, const RequiredLater& what);

}  // namespace kvilt
