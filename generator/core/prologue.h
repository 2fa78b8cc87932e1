// The text the generator puts before a template: library, constants, asserts, #line. Shared by
// every kernel family, so that all emitted sources have one shape.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/core/emitter.h"
#include "generator/core/error.h"

namespace octile {

// What stands behind the constants: a kernel, with the macro by which it takes its name, or a part
// that kernels behind it use.
struct TemplateBody {
  std::string_view path;
  std::string_view macro;        // empty: a part
  std::string_view kernel_name;  // empty: a part
};

class Prologue {
 public:
  // Each constant says why it has its value; `octile emit --explain` prints that.
  void add_int(std::string_view name, std::int64_t value, std::string_view why);
  void add_bool(std::string_view name, bool value, std::string_view why);
  void add_float(std::string_view name, float value, std::string_view why);  // printed as its bits
  // template <typename P> using `name` = `type`: which of the library's parts a body is built from.
  void add_part(std::string_view name, std::string_view type, std::string_view why);
  // A preprocessor name, for what must be a literal: a part of an instruction's text.
  void add_macro(std::string_view name, std::int64_t value, std::string_view why);
  void add_macro(std::string_view name, std::string_view text, std::string_view why);  // quoted
  // Further text of namespace cfg. `summary` and `why` as the others have them.
  void add_text(std::string text, std::string_view summary, std::string_view why);
  // `expression` is in terms of device names; the message is what a reader of the error sees.
  void add_assert(std::string_view expression, std::string_view message);

  // library files (paths under templates/) in the given order, then the constants, the bodies and
  // the asserts. Error: kInternal naming a path the set does not hold.
  Result<std::string> render(TemplateSet templates, std::span<const std::string_view> library,
                             std::span<const TemplateBody> bodies) const;

  std::string explain() const;  // one "name = value  (why)" a line

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
