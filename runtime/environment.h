// The one table of environment variables. No other file of the library reads the environment.
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

// Returns the value of a variable of the table, or nullopt if it is unset or empty, or if the
// program has more rights than its caller (secure_getenv(3)). Asking for a name outside the table
// is a defect and returns nullopt.
std::optional<std::string> environment_value(std::string_view name);

}  // namespace octile
