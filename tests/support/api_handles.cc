#include "tests/support/api_handles.h"

#include <nlohmann/json.hpp>

namespace octile::test {

nlohmann::json describe(octile_plan* plan) {
  std::size_t size = 0;
  EXPECT_EQ(octile_plan_describe(plan, nullptr, &size), OCTILE_OK);
  std::string text(size, '\0');
  EXPECT_EQ(octile_plan_describe(plan, text.data(), &size), OCTILE_OK) << octile_last_error();
  text.resize(size - 1);
  return nlohmann::json::parse(text);
}

}  // namespace octile::test
