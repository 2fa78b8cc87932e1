// The axes of a GEMM's configuration as one table with a row for each member. The configuration's
// text and its parsing, the kernel's name, the constants of the emitted source and the enumeration
// of candidates walk the table, so that a new axis is a new row.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "generator/gemm/config.h"
#include "generator/gemm/problem.h"

namespace octile {

// How a member of the configuration is read and written, for any type.
struct GemmAxisMember {
  int (*get)(const GemmConfig&);
  void (*set)(GemmConfig&, int);
  bool is_flag;
};

struct GemmAxisWord {
  int value;
  std::string_view word;
};

struct GemmAxis {
  // The field of the text. Members of one field follow each other in the table.
  std::string_view field = {};
  std::string_view allowed = {};  // "MxNxK", in the first row of a field
  std::string_view joint = {};    // what parts the value from that of the row before: "x"
  GemmAxisMember member{};
  std::span<const GemmAxisWord> words = {};  // all values there are; if empty, any number
  bool of_wgmma = false;                     // kernels of other matrix units have the default value
  bool only_if_set = false;                  // texts and names leave out the default value
  bool is_numerics = false;                  // it changes bits, not only speed
  std::string_view name_piece = {};          // what is before the value in the kernel's name
  // The enumeration's loop that takes the values, 1 the outermost; 0: derived from the others. Rows
  // of the same loop take their values together. Ties go to the first enumerated, so that the order
  // of loops and values decides them.
  int loop = 0;
  std::span<const int> values = {};
  // The constant of the emitted source, its place among them, and what it is for. The places keep
  // the texts as they are, because a text identifies a kernel.
  std::string_view constant = {};
  std::string_view purpose = {};
  int place = 0;
  bool (*has_constant)(const GemmProblem&) = nullptr;  // null: every problem
};

// Returns the table in the order of the configuration's text.
std::span<const GemmAxis> gemm_axes();

// Returns the rows that have a constant for the problem, in the order of their places.
std::vector<const GemmAxis*> axes_with_constants(const GemmProblem&);

// Returns the value as texts and names spell it.
std::string value_text(const GemmAxis&, const GemmConfig&);

// Returns "promote=128 splits=1": the fields whose rows `is_shown` accepts.
std::string fields_text(const GemmConfig&, bool (*is_shown)(const GemmAxis&, const GemmConfig&));

// Sets a field's members from its text. Returns false if there is no such field or it takes no such
// value.
bool parse_axis_field(std::string_view field, std::string_view text, GemmConfig& config);

// Returns "tile=MxNxK, stages=N, ...", for the error about a field that cannot be read.
std::string allowed_fields();

}  // namespace octile
