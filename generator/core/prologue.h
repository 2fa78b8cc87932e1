// The text that the generator puts before a template: library, constants, asserts, #line. Every
// family uses it, so that all emitted sources have one shape.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/emitter.h"
#include "generator/core/error.h"

namespace octile {

// A file that follows the constants: a kernel, with the macro that gives it its name, or a part
// that later kernels use.
struct TemplateBody {
  std::string_view path;
  std::string_view macro;        // empty for a part
  std::string_view kernel_name;  // empty for a part
};

class Prologue {
 public:
  // `why` says why the constant has its value; `octile emit --explain` prints it.
  void add_int(std::string_view name, std::int64_t value, std::string_view why);
  void add_bool(std::string_view name, bool value, std::string_view why);
  void add_float(std::string_view name, float value, std::string_view why);  // printed as its bits
  // Adds `template <typename P> using name = type;`, which chooses a part of the library.
  void add_part(std::string_view name, std::string_view type, std::string_view why);
  // Adds a preprocessor name for a value that must be a literal in an instruction's text, or that
  // shall leave no variable in a cubin, as NVRTC makes of a constexpr.
  void add_macro(std::string_view name, std::int64_t value, std::string_view why);
  void add_macro(std::string_view name, std::string_view text, std::string_view why);  // quoted
  // Adds a preprocessor name for a type that a body defines.
  void add_type(std::string_view macro, std::string_view type, std::string_view why);
  // Adds any other text to namespace cfg. explain() prints `summary` and `why`.
  void add_text(std::string text, std::string_view summary, std::string_view why);
  // `expression` uses device names. A failed assert shows the message.
  void add_assert(std::string_view expression, std::string_view message);

  // Returns the library files (paths under templates/) in the given order, then the constants, the
  // bodies and the asserts. Errors: kInternal naming a path that the set does not hold.
  Result<std::string> render(TemplateSet templates, std::span<const std::string_view> library,
                             std::span<const TemplateBody> bodies) const;

  // Returns one line "name = value  (why)" for each constant.
  std::string explain() const;

 private:
  struct Constant {
    std::string declaration;  // "constexpr int kBlockM = 128;"
    std::string summary;      // "kBlockM = 128"
    std::string why;
  };
  std::vector<Constant> constants_;
  std::vector<Constant> macros_;
  std::vector<std::string> asserts_;
};

}  // namespace octile
