// The one table of environment variables. Nothing else in the library reads the environment.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace octile {

struct EnvironmentVariable {
  std::string_view name;
  std::string_view meaning;  // one line, with the default
};
std::span<const EnvironmentVariable> environment_variables();

// The value of a variable of the table; nullopt where it is unset or empty. A name outside the
// table is a defect and answers nullopt.
std::optional<std::string> environment_value(std::string_view name);

}  // namespace octile
