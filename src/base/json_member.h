// base/json_member.h: a field of a JSON object as clients mean it: null is as if it were not there.
// Idea:    a template, so that it serves values that may be changed and others, and this module needs no JSON library.
// Threads: any.
#pragma once

namespace kvilt {

// The field's value; null if it is absent or null, or if `object` is no object. T: nlohmann's JSON, const or not.
template <class T>
T* given(T& object, const char* name) {
  const auto it = object.find(name);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

}  // namespace kvilt
