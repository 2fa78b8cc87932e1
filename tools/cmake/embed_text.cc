// Writes a C++ file with the text of files, as templates/embedded.h declares it. Run by the build:
//   octile_embed_text OUT HEADER NAMESPACE ROOT FILE...
// FILEs are relative to ROOT. Comments are blanked: no comment is part of a kernel's identity.
#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "tools/cmake/blank_comments.h"

namespace octile::build {
namespace {

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot read " + path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A raw string literal per file: the compiler reads it as one token.
std::string literal(const std::string& path, const std::string& text) {
  const std::string end = ")octile\"";
  if (text.find(end) != std::string::npos)
    throw std::runtime_error(path + " holds the text " + end + ", which ends its literal");
  return "R\"octile(" + text + end;
}

void embed(int count, char** arguments) {
  if (count < 6)
    throw std::runtime_error("usage: octile_embed_text OUT HEADER NAMESPACE ROOT FILE...");
  const std::string header = arguments[2], name_space = arguments[3], root = arguments[4];
  std::string constants, table;
  for (int i = 5; i < count; ++i) {
    const std::string path = arguments[i], name = "kFile" + std::to_string(i - 5);
    constants += "constexpr char " + name +
                 "[] = " + literal(path, blank_comments(read(root + "/" + path))) + ";\n";
    table += "    {\"" + path + "\", " + name + ", sizeof(" + name + ") - 1},\n";
  }
  std::ofstream out(arguments[1], std::ios::binary | std::ios::trunc);
  out << "#include \"" << header << "\"\n\nnamespace " << name_space << " {\nnamespace {\n"
      << constants << "const File kFiles[] = {\n"
      << table << "};\n}  // namespace\n\n"
      << "const File* files() { return kFiles; }\nint file_count() { return " << count - 5
      << "; }\n}  // namespace " << name_space << "\n";
  if (!out.flush()) throw std::runtime_error(std::string("cannot write ") + arguments[1]);
}

}  // namespace
}  // namespace octile::build

int main(int count, char** arguments) {
  try {
    octile::build::embed(count, arguments);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "octile_embed_text: %s\n", e.what());
    return 1;
  }
}
