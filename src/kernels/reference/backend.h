// kernels/reference/backend.h: the backend that every other one is compared with; plain C++, any machine.
#pragma once

#include "kernels/backend.h"

namespace kvilt::reference {

const Backend& backend();

}  // namespace kvilt::reference
