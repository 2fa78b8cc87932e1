# Writes OUT, a C++ file that holds the text of every file of FILES (comma-separated, relative to ROOT) and
# defines files() and file_count() of NAMESPACE as HEADER declares them.
# Bytes, not string literals: no literal length limit and no escaping to get wrong.
string(REPLACE "," ";" files "${FILES}")
set(text "#include \"${HEADER}\"\n\nnamespace ${NAMESPACE} {\nnamespace {\n")
set(table "")
set(index 0)
foreach(file IN LISTS files)
  file(READ ${ROOT}/${file} content HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${content}")
  string(APPEND text "constexpr unsigned char kFile${index}[] = {${bytes}0};\n")
  string(APPEND table "    {\"${file}\", reinterpret_cast<const char*>(kFile${index}), sizeof(kFile${index}) - 1},\n")
  math(EXPR index "${index} + 1")
endforeach()
string(APPEND text "const File kFiles[] = {\n${table}};\n}  // namespace\n\n")
string(APPEND text "const File* files() { return kFiles; }\nint file_count() { return ${index}; }\n")
string(APPEND text "}  // namespace ${NAMESPACE}\n")
file(WRITE ${OUT} "${text}")
