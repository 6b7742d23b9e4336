// SPDX-License-Identifier: Apache-2.0
// Names of what a test can choose from.
#include "support/run.hpp"

namespace test {

std::string name_of(const any_form& form) {
  switch (form.index()) {
    case 0:
      return "full";
    case 1:
      return "recurrent";
    case 2:
      return "chunkwise(" + std::to_string(std::get<bila::form::chunkwise>(form).size) + ")";
    default:
      return "automatic";
  }
}

std::string name_of(const any_norm& norm) {
  constexpr std::array names{"none", "row_sum", "max_one"};
  return names[norm.index()];
}

}  // namespace test
