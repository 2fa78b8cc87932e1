// The places where NVRTC is looked for, in order.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cache/file_ops.h"

namespace octile {

// One folder, or the loader's own search.
struct NvrtcPlace {
  std::string folder;  // without a slash at its end; empty: the loader searches by name
  std::string why;     // why this folder: "beside Octile", "CUDA_HOME"
  // The names to open, the newest release first: paths of files that exist, or names for the
  // loader.
  std::vector<std::string> libraries;
  std::string refused;  // why a library that is there is not among them; empty: none was refused
  // A variable or the loader names it. Code of every other place has to pass check_code().
  bool is_named = true;
};

// The facts that decide which folders are looked into. Every path in it is absolute or empty.
struct NvrtcHints {
  std::string
      own_folder;  // own_file().folder: of the library, or of the program that it is linked into
  std::string recorded;       // the build's NVRTC folder
  std::string virtual_env;    // VIRTUAL_ENV
  std::string search_path;    // PATH: the first python3 in it is the Python that is meant
  std::string home;           // HOME: ~/.local is where `pip install --user` installs
  std::string cuda_home;      // CUDA_HOME
  std::string cuda_path;      // CUDA_PATH
  std::string usual_toolkit;  // /usr/local/cuda
};

// Returns what this process says. A program with more rights than its caller has only
// `usual_toolkit`: its caller decides by a link where it lies, and by variables where it looks.
NvrtcHints nvrtc_hints();

// Returns the places in the order in which they are tried, each folder once, whether it exists or
// not, except that a folder of Python packages is named only if it has packages of CUDA:
//   1. the library's own folder, and the library folder of its installation
//   2. the folder that the build recorded; packages record none
//   3. Python packages (nvidia/cu13/lib, nvidia/cuda_nvrtc/lib): those that the library lies in,
//      those of VIRTUAL_ENV, of the first python3 in PATH, and of the user
//   4. lib64 and lib of CUDA_HOME, then of CUDA_PATH
//   5. the loader's search (LD_LIBRARY_PATH, ldconfig)
//   6. lib64 and lib of /usr/local/cuda
// A library of a folder that nobody named has to pass check_code(). CUDA_HOME, CUDA_PATH,
// VIRTUAL_ENV, PATH and LD_LIBRARY_PATH name folders.
std::vector<NvrtcPlace> nvrtc_places(const NvrtcHints& hints, cache::FileOps& ops);
std::vector<NvrtcPlace> nvrtc_places();

// Returns one line for every library of the places, in order: what a later search has to find again
// for its result to be the same.
std::string nvrtc_places_text(const std::vector<NvrtcPlace>& places);

}  // namespace octile
